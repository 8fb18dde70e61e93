"""From a plan to its parts without a model: which context and placement each one gets."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.projectors import projector_bytes
from doubles.random_models import HeadShape, TargetShape, write_head, write_target
from doubles.runnable_models import write_runnable
from doubles.windowed_model import write_windowed

from eaglelocal.backend.llama_library import load_library
from eaglelocal.core.plan import MAX_BRANCHES, NO_ROOM_FOR_IMAGES, Plan
from eaglelocal.core.request import MAX_DRAFT_TOKENS
from eaglelocal.core.tensor_overrides import parse_overrides
from eaglelocal.errors import IncompatibleError, ResourceError, UsageError
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.loading.context_parts import (
    ModelHeader,
    find_shares,
    make_parts,
    make_placement,
    make_placements,
    read_models,
)
from eaglelocal.loading.fit import (
    check_experts,
    check_graph,
    check_memory,
    check_shares,
    decide_open_settings,
    fit_plan,
    list_image_choices,
    list_rollback_choices,
    list_window_choices,
)
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind
from eaglelocal.probe.machine import MainMemory
from eaglelocal.probe.probe import probe

SHAPE = TargetShape(n_embd=64, n_layer=4, n_ff=64)
TWO_GPUS = (FreeMemory(RAM, None), FreeMemory("CUDA0", None), FreeMemory("CUDA1", None))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    target = write_target(tmp_path / "t.gguf", SHAPE)
    head = write_head(tmp_path / "h.gguf", HeadShape(width=64, n_ff=64), SHAPE)
    return Plan(target=target, target_label="t", draft_kind="eagle3", draft=head, n_ctx=512, num_slots=2, unified=True)


def test_a_head_gets_an_output_a_row_and_the_target_one_a_drafted_row(plan: Plan) -> None:
    target, head = make_parts(plan, read_models(plan), [make_placement(plan)] * 2, threads=3)
    assert (target.context.num_sequences, target.context.num_branches) == (2, 2 * MAX_BRANCHES)
    assert target.context.max_outputs == 2 * (1 + MAX_DRAFT_TOKENS)
    assert (head.context.max_outputs, head.context.num_branches, head.context.unified) == (128, 2 * MAX_BRANCHES, True)
    assert (target.taps, head.taps) == ((1, 2, 3), ())
    assert target.context.threads == head.context.threads == 3


@pytest.mark.parametrize(
    ("free", "shares", "of_head"),
    [
        ((24, 0.7), (23 * 2**30, 0.0), (1, 0)),
        ((24, 1.5), (), (1, 0)),
        ((0.5, 0.7), (), (0, 1)),
        ((24, None), (), (0, 1)),
        ((24, 24, 1.5), (), (0, 1, 0)),
        ((24,), (), ()),
    ],
)
def test_a_gpu_that_others_have_filled_gets_no_layers_and_a_head_lies_with_the_output(
    plan: Plan, free: tuple[float | None, ...], shares: tuple[float, ...], of_head: tuple[float, ...]
) -> None:
    rooms = [FreeMemory(f"CUDA{i}", None if gib is None else int(gib * 2**30)) for i, gib in enumerate(free)]
    assert find_shares(plan, (FreeMemory(RAM, None), *rooms)) == shares
    placed = make_placements(plan, probe(), load_library(), read_models(plan), (FreeMemory(RAM, None), *rooms))
    assert [placement.shares for placement in placed] == [shares, of_head]


@pytest.mark.parametrize(
    ("there", "fields", "on"),
    [
        (TWO_GPUS, {}, "CUDA1"),
        (TWO_GPUS, {"device": "CUDA0"}, "CUDA0"),
        (TWO_GPUS, {"split": "none"}, "CUDA0"),
        (TWO_GPUS, {"shares": (9.0, 1.0)}, "CUDA0"),
        (TWO_GPUS, {"gpu_layers": 1}, "CUDA0"),  # the output alone
        (TWO_GPUS, {"gpu_layers": 0}, None),
        (TWO_GPUS, {"draft_gpu_layers": 0}, None),
        (TWO_GPUS[:2], {"gpu_layers": 0, "draft_gpu_layers": 9}, "CUDA0"),
        (TWO_GPUS[:1], {}, None),
    ],
)
def test_a_heads_own_table_of_tokens_lies_where_it_computes(
    plan: Plan, tmp_path: Path, there: tuple[FreeMemory, ...], fields: dict[str, object], on: str | None
) -> None:
    shape = HeadShape(width=64, n_ff=64, draft_vocab=64, own_output=True)
    asked = replace(plan, draft=write_head(tmp_path / "few.gguf", shape, SHAPE), **fields)  # type: ignore[arg-type]
    _, head = make_placements(asked, probe(), load_library(), read_models(asked), there)
    assert head.d2t_device == on
    _, whole = make_placements(replace(plan, **fields), probe(), load_library(), read_models(plan), there)  # type: ignore[arg-type]
    assert whole.d2t_device is None, "it has the target's tokens"


@pytest.mark.parametrize(
    ("free_gib", "fields", "is_read"),
    [
        (8, {"n_cpu_moe": 1}, True),
        (8, {"overrides": parse_overrides("_exps=CPU")}, True),
        (8, {}, False),
        (8, {"overrides": parse_overrides("token_embd=CPU")}, False),  # it lies there anyway
        (8, {"n_cpu_moe": 1, "gpu_layers": 0}, False),
        (0.001, {"n_cpu_moe": 1}, False),
        (None, {"n_cpu_moe": 1}, False),
    ],
)
def test_experts_apart_from_a_gpu_are_read_into_memory_where_they_fit(
    tmp_path: Path, free_gib: float | None, fields: dict[str, object], is_read: bool
) -> None:
    path = write_runnable(tmp_path / "moe.gguf", "qwen3moe")
    asked = Plan(target=path, target_label="moe", n_ctx=256, **fields)  # type: ignore[arg-type]
    there = (FreeMemory(RAM, None if free_gib is None else int(free_gib * 2**30)), FreeMemory("CUDA0", 24 * 2**30))
    (placed,) = make_placements(asked, probe(), load_library(), read_models(asked), there)
    assert placed.no_mmap is is_read
    in_ram = (there[0], replace(there[1], in_ram=True))
    assert not make_placements(asked, probe(), load_library(), read_models(asked), in_ram)[0].no_mmap


@pytest.mark.parametrize(("held_mib", "fits"), [(767, True), (769, False)])
def test_a_card_keeps_room_for_what_its_library_takes(
    plan: Plan, held_mib: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = (
        FreeMemory(RAM, 2**40),
        FreeMemory("CUDA0", 2**30),
        FreeMemory("CUDA1", 1),
        FreeMemory("Vulkan0", 2**30, in_ram=True),
    )
    held = [
        Buffer("CUDA0", MemoryKind.WEIGHTS, held_mib * 2**20),
        Buffer("CUDA1", MemoryKind.BUFFERS, 0),
        Buffer("Vulkan0", MemoryKind.CACHE, 2**30),  # in main memory, which has its own margin
    ]
    monkeypatch.setattr("eaglelocal.loading.fit.plan_buffers", lambda *_, **__: held)
    parts = make_parts(plan, read_models(plan), [make_placement(plan)] * 2, threads=1)
    with contextlib.nullcontext() if fits else pytest.raises(ResourceError, match="on CUDA0"):
        check_memory(plan, read_models(plan), parts, load_library(), there)


def test_what_reads_images_is_counted_before_anything_is_loaded(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eyes = tmp_path / "mmproj-F16.gguf"
    eyes.write_bytes(projector_bytes(width=64, kind="qwen3vl_merger", tensor="mm.2.bias", shape=(64,)))
    monkeypatch.setattr("eaglelocal.loading.fit.plan_buffers", lambda *_, **__: [])
    plan = replace(plan, n_ctx=8192)
    parts = make_parts(plan, read_models(plan), [make_placement(plan)] * 2, threads=1)
    check_memory(plan, read_models(plan), parts, load_library(), (FreeMemory(RAM, 2**28),))
    seeing = replace(plan, projector=eyes)
    with pytest.raises(ResourceError, match="for images") as error:
        check_memory(seeing, read_models(plan), parts, load_library(), (FreeMemory(RAM, 2**28),))
    assert "--mmproj none" in error.value.hint
    eyes.write_bytes(projector_bytes(width=32))
    with pytest.raises(IncompatibleError, match="rows of width 32"):
        check_memory(seeing, read_models(plan), parts, load_library(), (FreeMemory(RAM, 2**28),))


@pytest.mark.parametrize(("is_asked", "wanted"), [(True, [True]), (False, [True, False])])
def test_images_go_before_a_model_does_not_load(plan: Plan, is_asked: bool, wanted: list[bool]) -> None:
    seeing = replace(plan, projector=Path("mmproj.gguf"), is_projector_required=is_asked)
    choices = list(list_image_choices(seeing))
    assert [choice.projector is not None for choice in choices] == wanted
    assert choices[-1].projector_note == ("" if is_asked else NO_ROOM_FOR_IMAGES)
    assert list(list_image_choices(plan)) == [plan]


def test_four_slots_have_caches_of_their_own_but_for_the_head(plan: Plan) -> None:
    four = replace(plan, num_slots=4, unified=None)
    target, head = make_parts(four, read_models(four), [make_placement(four)] * 2, threads=1)
    assert (target.context.unified, head.context.unified) == (False, True)
    assert target.context.num_branches == 0


@pytest.mark.parametrize(
    ("num_slots", "there", "gpu_layers", "device", "unified"),
    [
        (1, TWO_GPUS[:1], None, None, True),
        (2, TWO_GPUS[:1], None, None, False),
        (2, TWO_GPUS, None, None, True),
        (2, TWO_GPUS, None, "CUDA1", True),
        (2, TWO_GPUS, None, "CPU", False),
        (2, TWO_GPUS, 0, None, False),
        (3, TWO_GPUS, None, None, False),
    ],
)
def test_two_slots_share_a_cache_on_a_gpu_only(
    plan: Plan, num_slots: int, there: tuple[FreeMemory, ...], gpu_layers: int | None, device: str | None, unified: bool
) -> None:
    asked = replace(plan, num_slots=num_slots, gpu_layers=gpu_layers, device=device, unified=None)
    target, head = read_models(asked)
    assert decide_open_settings(asked, [target, head], there).is_unified is unified
    assert not decide_open_settings(replace(asked, unified=False), [target, head], there).is_unified
    alone = num_slots == 1
    for other in ({"architecture": "lfm2"}, {"windows": (512,) * target.shape.n_layer}):
        odd = replace(target, shape=replace(target.shape, **other))
        assert decide_open_settings(asked, [odd, head], there).is_unified is alone
        assert decide_open_settings(asked, [target, odd], there).is_unified is unified  # a head's window is no cache's
        drafting = replace(asked, draft_kind="draft_model")
        assert decide_open_settings(drafting, [target, odd], there).is_unified is alone


def test_states_to_go_back_to_are_as_many_as_fit(plan: Plan) -> None:
    shape = read_shape(read_header(plan.target))
    hybrid = replace(shape, architecture="lfm2", layer_states=(2**20,) * 3 + (0,))
    lookup = replace(plan, draft_kind="ngram", draft=None)
    assert list(list_rollback_choices(plan, shape)) == [plan]  # cells are cut
    assert [each.rollback for each in list_rollback_choices(plan, hybrid)] == [8, 4, 2]
    assert [each.max_draft for each in list_rollback_choices(lookup, hybrid)] == [8, 4, 2, 0]
    assert "3 MiB each" in [*list_rollback_choices(lookup, hybrid)][-1].draft_reason
    assert [each.rollback for each in list_rollback_choices(replace(plan, n_batch=6), hybrid)] == [4, 2]
    settled = [replace(plan, rollback=3), replace(plan, draft_kind="none", draft=None)]
    assert [list(list_rollback_choices(each, hybrid)) for each in settled] == [[each] for each in settled]


@pytest.mark.parametrize(
    ("gpu_layers", "draft_gpu_layers", "expected"),
    [(None, None, (None, None)), (20, None, (20, None)), (0, None, (0, 0)), (0, 1, (0, 1)), (None, 0, (None, 0))],
)
def test_the_draft_lies_on_the_gpu_where_any_of_the_target_does(
    plan: Plan, gpu_layers: int | None, draft_gpu_layers: int | None, expected: tuple[int | None, int | None]
) -> None:
    placed = replace(plan, gpu_layers=gpu_layers, draft_gpu_layers=draft_gpu_layers, shares=(2.0, 1.0), device="CUDA0")
    places = [make_placement(placed, of_draft=of_draft) for of_draft in (False, True)]
    assert tuple(place.gpu_layers for place in places) == expected
    assert {(place.shares, place.devices) for place in places} == {((2.0, 1.0), "CUDA0")}


@pytest.mark.parametrize(
    ("huge_pages", "is_brief", "can_repack", "read", "moved"),
    [
        ("always", False, True, ["Q4_0"], ["F32"]),
        ("always", True, True, ["Q4_0"], []),
        ("always", False, False, [], ["F32"]),
        ("always", True, False, [], []),
        ("never", False, True, [], []),
    ],
)
def test_which_weights_are_read_or_move(
    plan: Plan, huge_pages: str, is_brief: bool, can_repack: bool, read: list[str], moved: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    library, machine = load_library(), probe()
    monkeypatch.setattr(library, "layouts", ("CPU_REPACK",) if can_repack else ("AMX",))
    machine = replace(
        machine,
        cpu=replace(machine.cpu, vector_extensions=("avx2",)),
        memory=MainMemory(available_bytes=2**30, huge_pages=huge_pages),
    )
    target, draft = read_models(plan)
    of_type = {name: with_type(target, name) for name in ("F32", "Q4_0", "Q8_0")}
    there = [FreeMemory(RAM, 2**30)]
    asked = replace(plan, is_brief=is_brief)
    found = {name: make_placements(asked, machine, library, [source, draft], there) for name, source in of_type.items()}
    assert [name for name, (place, _) in found.items() if place.no_mmap] == read
    assert [name for name, (place, _) in found.items() if place.moves_weights] == moved
    assert {place.moves_weights for _, place in found.values()} == {"F32" in moved}, (
        "the head's own type decides over the head"
    )


def with_type(model: ModelHeader, name: str) -> ModelHeader:
    header = model.header
    of_type = replace(next(iter(header.tensors.values())).type, name=name)
    tensors = {key: replace(tensor, type=of_type) for key, tensor in header.tensors.items()}
    return replace(model, info=replace(model.info, header=replace(header, tensors=tensors)))


def test_a_plan_says_so_to_both_models(plan: Plan) -> None:
    places = [make_placement(plan, of_draft=of_draft, no_mmap=True) for of_draft in (False, True)]
    assert [place.no_mmap for place in places] == [True, True]


def test_shares_must_be_of_the_gpus_that_there_are(plan: Plan) -> None:
    shared = replace(plan, shares=(3.0, 1.0))
    check_shares(shared, TWO_GPUS)
    check_shares(plan, TWO_GPUS[:1])
    with pytest.raises(UsageError, match=r"--split 3,1 gives 2 shares, but llama\.cpp uses CUDA0$"):
        check_shares(replace(shared, device="CUDA0"), TWO_GPUS)
    with pytest.raises(UsageError, match=r"llama\.cpp uses no GPU"):
        check_shares(shared, TWO_GPUS[:1])


def test_swa_full_are_tried_first(tmp_path: Path, plan: Plan) -> None:
    windowed = read_shape(read_header(write_windowed(tmp_path / "w.gguf")))
    plain = read_shape(read_header(plan.target))
    assert [choice.swa_full for choice in list_window_choices(plan, windowed)] == [True, False]
    assert [choice.swa_full for choice in list_window_choices(plan, plain)] == [None]
    settled = replace(plan, swa_full=False)
    assert list(list_window_choices(settled, windowed)) == [settled]


@pytest.mark.parametrize(
    ("architecture", "kv_type", "num_slots", "aborts"),
    [
        ("phi3", "q8_0", 2, True),
        ("phi3", "f16,q8_0", 2, True),
        ("phi3", "q8_0", 1, False),
        ("phi3", "f16", 8, False),
        ("llama", "q4_0", 8, False),
    ],
)
def test_what_llama_cpp_would_abort_on_is_refused(
    plan: Plan, architecture: str, kv_type: str, num_slots: int, aborts: bool
) -> None:
    shape = replace(read_models(plan)[0].shape, architecture=architecture)
    asked = replace(plan, kv_type=kv_type, num_slots=num_slots, unified=num_slots == 1)
    if not aborts:
        check_graph(asked, shape)
        return
    with pytest.raises(ResourceError, match="cannot give 2 slots of a phi3 model caches of") as refusal:
        check_graph(asked, shape)
    assert refusal.value.hint == "--kv-type f16"


@pytest.mark.parametrize(("count", "words"), [(0, ""), (2, "has no experts"), (9, "has no experts")])
def test_a_dense_target_has_no_experts_to_keep_apart(plan: Plan, count: int, words: str) -> None:
    target, asked = read_shape(read_header(plan.target)), replace(plan, n_cpu_moe=count)
    if not words:
        return check_experts(asked, target)
    with pytest.raises(UsageError, match=f"--n-cpu-moe {count}: this model {words}") as caught:
        check_experts(asked, target)
    assert caught.value.hint == "leave --n-cpu-moe out"
    return None


def test_experts_of_the_target_alone_lie_apart(plan: Plan) -> None:
    parted = replace(plan, n_cpu_moe=3)
    assert (make_placement(parted).n_cpu_moe, make_placement(parted, of_draft=True).n_cpu_moe) == (3, 0)


@pytest.mark.parametrize(
    ("flash", "gpu_layers", "uses_gpu", "can"),
    [
        ("off", None, True, False),
        ("off", 3, True, False),
        ("off", 0, True, True),
        ("off", None, False, True),
        ("on", None, True, True),
        ("auto", None, True, True),
    ],
)
def test_values_that_lie_transposed_on_a_gpu_are_not_swapped(
    plan: Plan, flash: str, gpu_layers: int | None, uses_gpu: bool, can: bool
) -> None:
    parts = fit_plan(plan, probe(), load_library(), threads=1)
    asked = replace(parts.plan, flash_attn=flash, gpu_layers=gpu_layers)
    assert replace(parts, plan=asked, uses_gpu=uses_gpu).can_swap is can
