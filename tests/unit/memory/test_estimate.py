"""Where the memory of a plan is: one card, two, none, some of the layers, a head, unified memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.season_models import write_season
from doubles.weightless_models import REAL, write_sketch
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.core.plan import Plan
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.gguf.model_shape import ModelShape, read_shape
from eaglelocal.gguf.projector import RESERVED_TOKENS, Projector
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.upper_layers import LAYER_EMBEDDING
from eaglelocal.memory.budget import RAM, AdjustableSizes, Buffer, FreeMemory, MemoryKind, check_fits, subtract_margins
from eaglelocal.memory.cache_bytes import CacheParams, cache_bytes, kv_bytes_of_layer, row_bytes
from eaglelocal.memory.contexts import converted_cache_bytes, inputs_bytes, plan_contexts
from eaglelocal.memory.estimate import RUNTIME_BYTES, encoding_bytes, estimate, runtime_bytes, sum_by_purpose
from eaglelocal.memory.placement import place_layers
from eaglelocal.planning.options import make_catalog_options

GIB, MIB = 2**30, 2**20
CPU = (FreeMemory(RAM, 32 * GIB),)
ONE = (*CPU, FreeMemory("CUDA0", 24 * GIB))
TWO = (*ONE, FreeMemory("CUDA1", 24 * GIB))

# Llama 3.1 8B at Q4_K_M, as its header states it
EIGHT_B = ModelShape(
    architecture="llama",
    n_layer=32,
    n_embd=4096,
    n_vocab=128256,
    n_head=32,
    key_dim=128,
    value_dim=128,
    kv_heads=(8,) * 32,
    windows=(None,) * 32,
    layer_states=(0,) * 32,
    n_ff=14336,
    weights_bytes=4_912_898_304,
    embedding_bytes=295_501_824,
    output_bytes=430_956_544,
    active_bytes=4_617_396_480,
    max_context=131072,
)
HEAD = replace(
    EIGHT_B,
    architecture="eagle3",
    n_layer=1,
    kv_heads=(8,),
    windows=(None,),
    layer_states=(0,),
    weights_bytes=849_000_000,
    embedding_bytes=0,
    output_bytes=262_144_000,
    active_bytes=849_000_000,
)
HYBRID = replace(
    EIGHT_B, architecture="qwen35", kv_heads=(0, 0, 0, 8) * 8, layer_states=(3 * MIB, 3 * MIB, 3 * MIB, 0) * 8
)
PLAN = Plan(target=Path("m.gguf"), target_label="m", n_ctx=8192, flash_attn="on")
WITH_HEAD = replace(PLAN, draft_kind="eagle3", draft=Path("h.gguf"))


EYES = Projector(
    kind="qwen3vl_merger",
    width=4096,
    num_patches=16384,
    num_merged=4,
    patch_size=16,
    n_embd=1152,
    n_ff=4304,
    n_head=16,
    has_windows=False,
    weights_bytes=1_160_000_000,
)


ADAPTER_BYTES = 4096 * 16 * 4  # of each tensor
ADAPTER = tuple(
    TensorInfo(
        name=f"{weight}.lora_{part}", shape=(4096, 16), type=GGML_TYPES_BY_NAME["F32"], offset=0, nbytes=ADAPTER_BYTES
    )
    for weight in (*(f"blk.{layer}.attn_q.weight" for layer in range(32)), "output.weight", "token_embd.weight")
    for part in "ab"
)


def on(buffers: Sequence[Buffer], device: str, *kinds: MemoryKind) -> int:
    return sum(b.num_bytes for b in buffers if b.device == device and (not kinds or b.kind in kinds))


def test_a_card_holds_all_but_the_embeddings() -> None:
    held = estimate(PLAN, EIGHT_B, None, ONE)
    assert on(held, "CUDA0", MemoryKind.WEIGHTS) == EIGHT_B.weights_bytes - EIGHT_B.embedding_bytes
    assert on(held, RAM, MemoryKind.WEIGHTS) == EIGHT_B.embedding_bytes
    assert on(held, "CUDA0", MemoryKind.CACHE) == GIB
    assert on(held, RAM, MemoryKind.CACHE) == 0
    assert on(held, "CUDA0", MemoryKind.RUNTIME) == RUNTIME_BYTES["CUDA"]


def test_tied_embeddings_lie_on_the_card_once_more() -> None:
    tied = replace(EIGHT_B, tied_output_bytes=EIGHT_B.embedding_bytes, output_bytes=16384)
    assert on(estimate(PLAN, tied, None, ONE), "CUDA0", MemoryKind.WEIGHTS) == tied.weights_bytes
    assert on(estimate(PLAN, tied, None, ONE), RAM, MemoryKind.WEIGHTS) == tied.embedding_bytes
    assert (
        sum_by_purpose(estimate(PLAN, tied, None, CPU)).weights_bytes == tied.weights_bytes
    )  # and once where there is none


@pytest.mark.parametrize("gpu_layers", [0, 1, 10, 32, 33, None])
def test_layers_on_the_host(gpu_layers: int | None) -> None:
    held = estimate(replace(PLAN, gpu_layers=gpu_layers), EIGHT_B, None, ONE)
    offloaded = 32 if gpu_layers is None else max(min(gpu_layers, 33) - 1, 0)  # the output goes first
    assert on(held, "CUDA0", MemoryKind.CACHE) == offloaded * 32 * MIB
    assert on(held, RAM, MemoryKind.CACHE) == (32 - offloaded) * 32 * MIB
    assert sum_by_purpose(held).weights_bytes == pytest.approx(EIGHT_B.weights_bytes, abs=32)
    assert (on(held, "CUDA0") == 0) == (gpu_layers == 0)


def test_two_cards_share_as_asked() -> None:
    held = estimate(replace(PLAN, shares=(3.0, 1.0)), EIGHT_B, None, TWO)
    assert [on(held, gpu, MemoryKind.CACHE) // (32 * MIB) for gpu in ("CUDA0", "CUDA1")] == [25, 7]
    assert on(held, "CUDA1", MemoryKind.RUNTIME) == on(held, "CUDA0", MemoryKind.RUNTIME) > 0
    alone = estimate(PLAN, EIGHT_B, None, ONE)
    assert on(held, "CUDA1", MemoryKind.BUFFERS) > on(
        alone, "CUDA0", MemoryKind.BUFFERS
    )  # copies of what passes between them


@pytest.mark.parametrize(
    ("device", "kv_type", "attention", "mib"),
    [
        ("MTL0", "f16", "on", 512),
        ("MTL0", "q8_0", "on", 512),
        ("CUDA0", "q8_0", "on", 512),
        ("CUDA0", "f16", "on", 0),
        ("Vulkan0", "q8_0", "on", 0),
        ("MTL0", "f16", "off", 0),
    ],
)
def test_flash_attention_keeps_a_layer_in_f16_where_it_widens_it(
    device: str, kv_type: str, attention: str, mib: int
) -> None:
    asked = replace(PLAN, kv_type=kv_type, flash_attn=attention, n_ctx=131072)
    sizes = plan_contexts(asked, EIGHT_B)[0].sizes
    assert converted_cache_bytes(EIGHT_B, sizes, device) == mib * MIB
    there = (FreeMemory(RAM, 64 * GIB), FreeMemory(device, 64 * GIB))
    with_it, without = (
        on(estimate(asked, EIGHT_B, None, rooms), rooms[1].device, MemoryKind.BUFFERS)
        for rooms in (there, (there[0], FreeMemory("Other0", 64 * GIB)))
    )
    assert (with_it > without) is bool(mib)


@pytest.mark.parametrize(("shares", "device"), [((), "CUDA1"), ((99.0, 1.0), "CUDA0")])
def test_a_head_lies_on_the_card_of_its_targets_output(shares: tuple[float, ...], device: str) -> None:
    held = [b for b in estimate(replace(WITH_HEAD, shares=shares), EIGHT_B, HEAD, TWO) if b.of_draft]
    assert {b.device for b in held} == {RAM, device}
    assert on(held, device, MemoryKind.WEIGHTS) == HEAD.weights_bytes


@pytest.mark.parametrize(("n_ctx", "least"), [(8192, int(EIGHT_B.bytes_of_layer(0) * 0.6)), (131072, 512 * MIB)])
def test_the_first_card_has_room_for_what_it_computes_of_the_others_layers(n_ctx: int, least: int) -> None:
    """The largest matrix of a layer, or the cache of one: whichever is more."""
    whole = estimate(replace(PLAN, n_ctx=n_ctx), EIGHT_B, None, TWO[:2])
    partly = estimate(replace(PLAN, n_ctx=n_ctx, gpu_layers=20), EIGHT_B, None, TWO[:2])
    assert on(partly, "CUDA0", MemoryKind.BUFFERS) - on(whole, "CUDA0", MemoryKind.BUFFERS) >= least


def test_two_cards_need_four_more_input_buffers() -> None:
    two, one = (estimate(PLAN, EIGHT_B, None, rooms) for rooms in (TWO, ONE))
    (job,) = plan_contexts(PLAN, EIGHT_B)
    copies = 4 * inputs_bytes(job.shape, job.sizes)
    assert on(two, RAM, MemoryKind.BUFFERS) - on(one, RAM, MemoryKind.BUFFERS) == copies
    assert on(two, "CUDA1", MemoryKind.BUFFERS) - on(one, "CUDA0", MemoryKind.BUFFERS) == copies  # each has the output


def test_a_head_and_its_taps() -> None:
    held, alone = (estimate(plan, EIGHT_B, draft, ONE) for plan, draft in ((WITH_HEAD, HEAD), (PLAN, None)))
    sums, plain = sum_by_purpose(held), sum_by_purpose(alone)
    assert (sums.draft_bytes, sums.draft_kv_bytes) == (HEAD.weights_bytes, 33 * MIB)
    assert (plain.draft_bytes, plain.draft_kv_bytes) == (0, 0)
    assert sums.weights_bytes == plain.weights_bytes
    taps = 3 * 512 * 4096 * 4
    assert sums.compute_bytes - plain.compute_bytes > 2 * taps
    assert sums.total_bytes == sum(buffer.num_bytes for buffer in held)


def test_a_draft_may_stay_off_the_card() -> None:
    held = estimate(replace(WITH_HEAD, draft_gpu_layers=0), EIGHT_B, HEAD, ONE)
    lies = Counter((buffer.device, buffer.of_draft) for buffer in held if buffer.kind is MemoryKind.WEIGHTS)
    assert lies.keys() == {(RAM, False), ("CUDA0", False), (RAM, True)}


def test_a_second_slot_and_its_trees_cost_cells_once() -> None:
    two = replace(WITH_HEAD, num_slots=2, unified=True)
    assert plan_contexts(two, EIGHT_B, HEAD)[0].sizes.num_branches == 8
    assert sum_by_purpose(estimate(two, EIGHT_B, HEAD, CPU)).kv_bytes == 2 * GIB


def test_states_are_kept_for_every_row_that_may_be_taken_back() -> None:
    drafting = replace(PLAN, draft_kind="ngram")
    states = sum_by_purpose(estimate(PLAN, HYBRID, None, CPU)).kv_bytes - GIB // 4
    assert states == 24 * 3 * MIB
    for rollback, kept in ((None, 2), (8, 8), (20, 16)):
        plan = replace(drafting, rollback=rollback)
        assert sum_by_purpose(estimate(plan, HYBRID, None, CPU)).kv_bytes - GIB // 4 == states * (1 + kept)
    with_head = replace(drafting, draft_kind="eagle3")
    assert plan_contexts(with_head, HYBRID)[0].sizes.num_snapshots == 4
    assert plan_contexts(drafting, HYBRID)[0].sizes.num_branches == 0


def test_windows_are_kept_whole_unless_the_plan_says_otherwise() -> None:
    narrow = replace(EIGHT_B, windows=(1024, None) * 16)
    whole, spared = (
        sum_by_purpose(estimate(replace(PLAN, swa_full=is_full), narrow, None, CPU)).kv_bytes
        for is_full in (True, False)
    )
    assert whole == GIB
    assert spared == GIB // 2 + 16 * 1536 * 4096


def test_the_gpu_of_an_apple_chip_works_in_main_memory() -> None:
    there = (FreeMemory(RAM, 20 * GIB), FreeMemory("MTL0", 21 * GIB, in_ram=True))
    check_fits(estimate(PLAN, EIGHT_B, None, there), subtract_margins(there), AdjustableSizes(n_ctx=8192))
    with pytest.raises(ResourceError, match="in RAM"):
        check_fits(
            estimate(PLAN, EIGHT_B, None, there), (FreeMemory(RAM, 6 * GIB), there[1]), AdjustableSizes(n_ctx=8192)
        )


def test_margins_leave_unknown_rooms_unknown() -> None:
    there = (
        FreeMemory(RAM, 16 * GIB),
        FreeMemory("CUDA0", 8 * GIB),
        FreeMemory("CUDA1", None),
        FreeMemory("CUDA2", 100 * MIB),
    )
    assert [room.free_bytes for room in subtract_margins(there)] == [int(16 * GIB * 0.95) + 1, 7 * GIB, None, 0]


def test_an_unknown_device_is_taken_for_the_largest() -> None:
    assert runtime_bytes("CUDA1") == RUNTIME_BYTES["CUDA"]
    assert runtime_bytes("NEW0") == max(RUNTIME_BYTES.values())


@pytest.mark.parametrize(
    ("kv_type", "of_128"),
    [
        ("f16", 256),
        ("bf16", 256),
        ("f32", 512),
        ("q8_0", 136),
        ("q5_1", 96),
        ("q5_0", 88),
        ("q4_0", 72),
        ("iq4_nl", 72),
    ],
)
def test_bytes_of_a_row(kv_type: str, of_128: int) -> None:
    assert row_bytes(kv_type, 128) == of_128


def test_a_type_that_no_cache_has_is_refused() -> None:
    with pytest.raises(UsageError, match="--kv-type cannot be q8_0,q6_k"):
        CacheParams(n_ctx=512, kv_type="q8_0,q6_k")


def test_keys_and_values_may_differ() -> None:
    keys, values, both = (
        kv_bytes_of_layer(EIGHT_B, 0, CacheParams(n_ctx=1024, kv_type=kv_type))
        for kv_type in ("q8_0", "q5_1", "q8_0,q5_1")
    )
    assert both == keys // 2 + values // 2 == 1024 * 8 * (136 + 96)


def test_without_flash_attention_values_are_as_wide_as_the_widest() -> None:
    """Gemma 4's narrow layers have smaller heads."""
    shape = replace(EIGHT_B, windows=(512, None) * 16, window_key_dim=64, window_value_dim=64)
    flash, plain = (CacheParams(n_ctx=1024, flash_attn=on) for on in (True, False))
    assert kv_bytes_of_layer(shape, 0, flash) == 1024 * (8 * 64 + 8 * 64) * 2
    assert kv_bytes_of_layer(shape, 0, plain) == 1024 * (8 * 64 + 8 * 128) * 2
    assert kv_bytes_of_layer(shape, 1, plain) == kv_bytes_of_layer(shape, 1, flash)


@given(
    n_ctx=st.integers(1, 131072),
    slots=st.integers(1, 16),
    kv_type=st.sampled_from(["f16", "q8_0", "q5_1", "q8_0,q4_0", "q4_0"]),
    unified=st.booleans(),
)
def test_more_never_takes_less(n_ctx: int, slots: int, kv_type: str, unified: bool) -> None:
    sizes = CacheParams(n_ctx=n_ctx, num_slots=slots, kv_type=kv_type, unified=unified)
    here = cache_bytes(EIGHT_B, sizes)
    assert cache_bytes(EIGHT_B, replace(sizes, n_ctx=n_ctx + 256)) > here
    assert cache_bytes(EIGHT_B, replace(sizes, num_slots=slots + 1)) >= here
    assert here >= n_ctx * slots * 32 * (row_bytes(sizes.key_type, 1024) + row_bytes(sizes.value_type, 1024))
    windowed = replace(EIGHT_B, windows=(1024, None) * 16)
    assert cache_bytes(windowed, replace(sizes, swa_full=False)) <= cache_bytes(windowed, sizes) == here


def test_what_is_looked_up_for_each_layer_stays_in_main_memory(tmp_path: Path) -> None:
    """Gemma 4 E4B: a third of its bytes is looked up, a row for a token; a card neither holds nor reads it."""
    shape = read_shape(read_header(write_sketch(tmp_path / "e4b.gguf", REAL["gemma-4-e4b"])))
    looked_up = 2688 * MIB * 34 // 32  # 262144 rows of 42 x 256 values, in Q8_0
    assert shape.embedding_bytes - shape.tied_output_bytes == looked_up
    held = estimate(PLAN, shape, None, ONE)
    assert on(held, "CUDA0", MemoryKind.WEIGHTS) == shape.weights_bytes - looked_up
    assert on(held, RAM, MemoryKind.WEIGHTS) == shape.embedding_bytes
    assert shape.active_bytes == shape.weights_bytes - looked_up


def test_the_catalogue_counts_it_alike() -> None:
    catalog = load_catalog(user_folder=Path("/nonexistent"))
    known = next(make_catalog_options(catalog.target("gemma-4-e4b"), catalog, quant="Q8_0")).shape
    assert known.n_layer_embd == pytest.approx(42 * 256, rel=0.02)
    assert known.embedding_bytes - known.tied_output_bytes == pytest.approx(2688 * MIB * 34 // 32, rel=0.05)
    assert known.active_bytes == known.weights_bytes - known.embedding_bytes + known.tied_output_bytes


TABLE_BYTES = 28_800_138_240  # of Qwen3.8-Flash-Next: 26.8 of 103.7 GiB
BUILT_IN, APPLE = (replace(ONE[1], device=name, in_ram=True) for name in ("CUDA0", "MTL0"))


@pytest.mark.parametrize(
    ("rooms", "is_loaded"),
    [(CPU, False), (ONE, False), (TWO, False), ((*CPU, APPLE), False), ((*CPU, BUILT_IN), True)],
    ids=str,
)
def test_a_table_of_n_grams_stays_in_the_file(rooms: Sequence[FreeMemory], is_loaded: bool) -> None:
    """Rows are read from an SSD, except beside a built-in GPU that cannot use mapped files."""
    shape = replace(EIGHT_B, table_bytes=TABLE_BYTES)
    held, without = (sum_by_purpose(estimate(PLAN, each, None, rooms)) for each in (shape, EIGHT_B))
    assert held.weights_bytes - without.weights_bytes == (TABLE_BYTES if is_loaded else 0)


def test_a_catalogue_and_a_file_count_a_table_apart(tmp_path: Path) -> None:
    catalog = load_catalog(user_folder=Path("/nonexistent"))
    target = catalog.targets["qwen3.8-flash-next"]
    (known,) = make_catalog_options(target, catalog, quant="Q4_K_XL")
    file = target.quantizations["Q4_K_XL"].num_bytes
    assert (known.shape.table_bytes, known.shape.weights_bytes) == (TABLE_BYTES, file - TABLE_BYTES)
    header = read_header(write_season(tmp_path / "m.gguf", "qwen4exp"))
    table = header.tensors[LAYER_EMBEDDING]
    assert (small := read_shape(header)).table_bytes == 0  # one of up to 4 GiB is loaded
    large = replace(table, nbytes=TABLE_BYTES)
    shape = read_shape(replace(header, tensors={**header.tensors, LAYER_EMBEDDING: large}))
    assert (shape.table_bytes, shape.weights_bytes) == (TABLE_BYTES, small.weights_bytes - table.nbytes)


MOE = replace(EIGHT_B, n_expert=128, n_expert_used=8, expert_bytes=(100 * MIB,) * 32)


@pytest.mark.parametrize(("n_cpu_moe", "gpu_layers"), [(1, None), (10, None), (32, None), (10, 33), (32, 20), (5, 20)])
def test_experts_in_main_memory_are_all_that_leaves_the_card(n_cpu_moe: int, gpu_layers: int | None) -> None:
    plan = replace(PLAN, gpu_layers=gpu_layers)
    whole, parted = (estimate(replace(plan, n_cpu_moe=count), MOE, None, ONE) for count in (0, n_cpu_moe))
    on_host = 0 if gpu_layers is None else max(33 - gpu_layers, 0)
    moved = max(n_cpu_moe - on_host, 0) * 100 * MIB
    assert on(whole, "CUDA0", MemoryKind.WEIGHTS) - on(parted, "CUDA0", MemoryKind.WEIGHTS) == moved
    assert on(parted, RAM, MemoryKind.WEIGHTS) - on(whole, RAM, MemoryKind.WEIGHTS) == moved
    assert on(parted, "CUDA0", MemoryKind.CACHE) == on(whole, "CUDA0", MemoryKind.CACHE)
    assert sum_by_purpose(parted).weights_bytes == sum_by_purpose(whole).weights_bytes
    if on_host < n_cpu_moe:  # the card reads long prompts with them: a matrix at a time; the processor has buffers
        more = on(parted, "CUDA0", MemoryKind.BUFFERS) - on(whole, "CUDA0", MemoryKind.BUFFERS)
        assert on_host or more >= 66 * MIB
        assert on(parted, RAM, MemoryKind.BUFFERS) >= on(whole, RAM, MemoryKind.BUFFERS)


def test_a_catalogue_knows_experts_by_their_parameters_and_a_file_to_the_byte(tmp_path: Path) -> None:
    header = read_header(write_sketch(tmp_path / "m.gguf", REAL["qwen3-30b-a3b"]))
    exact = read_shape(header)
    names = [f"blk.7.ffn_{part}_exps.weight" for part in ("gate", "up", "down")]
    assert exact.expert_bytes == (sum(header.tensors[name].nbytes for name in names),) * 48
    catalog = load_catalog(user_folder=Path("/nonexistent"))
    (about,) = make_catalog_options(catalog.targets["qwen3-30b-a3b"], catalog, quant="Q8_0")
    assert sum(about.shape.expert_bytes) == pytest.approx(sum(exact.expert_bytes), rel=0.02)
    assert not EIGHT_B.expert_bytes


@pytest.mark.parametrize(
    ("shape", "count", "problem"),
    [
        (EIGHT_B, 0, ""),
        (EIGHT_B, 1, "this model has no experts"),
        (MOE, 32, ""),
        (MOE, 33, "this model has 32 layers"),
    ],
)
def test_experts_that_there_are_not(shape: ModelShape, count: int, problem: str) -> None:
    assert shape.experts_problem(count) == problem


@pytest.mark.parametrize(
    ("gpu_layers", "rooms", "where"), [(None, ONE, "CUDA0"), (3, TWO, "CUDA0"), (0, ONE, RAM), (None, CPU, RAM)]
)
def test_images_are_read_where_the_target_lies(
    gpu_layers: int | None, rooms: tuple[FreeMemory, ...], where: str
) -> None:
    held = estimate(replace(PLAN, gpu_layers=gpu_layers), EIGHT_B, None, rooms, EYES)
    assert on(held, where, MemoryKind.IMAGES) == EYES.weights_bytes + encoding_bytes(EYES.limit_tokens(RESERVED_TOKENS))
    without = sum_by_purpose(estimate(replace(PLAN, gpu_layers=gpu_layers), EIGHT_B, None, rooms))
    assert sum_by_purpose(held).images_bytes + without.total_bytes == sum_by_purpose(held).total_bytes
    assert without.images_bytes == 0


def test_attention_that_is_not_flash_keeps_all_scores_of_a_picture() -> None:
    assert encoding_bytes(EYES) < 2 * GIB
    assert encoding_bytes(EYES, flash_attn=False) > 16 * 16384**2 * 4
    assert encoding_bytes(replace(EYES, has_windows=True)) - encoding_bytes(EYES) == 6 * 16384**2


def test_what_images_take_is_named_with_a_way_out() -> None:
    held = estimate(PLAN, EIGHT_B, None, (FreeMemory(RAM, 6 * GIB),), EYES)
    with pytest.raises(ResourceError, match=r"[\d.]+ GiB for images and") as error:
        check_fits(held, (FreeMemory(RAM, 6 * GIB),), AdjustableSizes(n_ctx=PLAN.n_ctx))
    assert "--mmproj none" in error.value.hint


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, gpu_layers=20), replace(PLAN, shares=(3.0, 1.0)), WITH_HEAD])
@pytest.mark.parametrize("rooms", [CPU, ONE, TWO])
def test_adapters_lie_where_the_layers_lie_that_they_change(plan: Plan, rooms: Sequence[FreeMemory]) -> None:
    if plan.shares and len(rooms) < 3:
        return
    draft = HEAD if plan.draft else None
    gpus = [room for room in rooms if room.device != RAM]
    devices = place_layers(EIGHT_B, gpus, plan.shares, gpu_layers=plan.gpu_layers)
    expected = Counter((*devices, RAM))  # RAM: that of the embeddings
    held, plain = (estimate(plan, EIGHT_B, draft, rooms, None, added) for added in (ADAPTER, ()))
    for room in rooms:
        more = on(held, room.device, MemoryKind.WEIGHTS) - on(plain, room.device, MemoryKind.WEIGHTS)
        assert more == expected[room.device] * 2 * ADAPTER_BYTES, room.device
