"""P-EAGLE heads of several layers in the engine, on the real llama.cpp: both contexts hold the same positions."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.layered_heads import add_upper_layers
from doubles.random_models import HeadShape, write_agreeing_head, write_head, write_target
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal import locations
from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import LlamaHeadContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import PairBatch, Proposals
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AUTO_SPEC, fixed_spec
from eaglelocal.errors import EagleLocalError, EngineError, ResourceError
from eaglelocal.gguf import writer
from eaglelocal.gguf.draft_pairing import read_draft, read_model
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.upper_layers import find_upper_layers
from eaglelocal.gguf.writer import patch_header
from eaglelocal.hub.heads.requantized_copy import is_current, make_light_copy
from eaglelocal.loading.engine_builder import build
from eaglelocal.memory.budget import RAM
from eaglelocal.memory.estimate import weight_buffers

SHAPE = replace(TINY, layer_gain=0.2)
HEAD = HeadShape(width=64, n_ff=64, num_depths=5, own_embeddings=True, own_output=True, draft_vocab=200)
PARAMS = ContextParams(n_ctx=256, num_sequences=3, n_batch=64, kv_type="f32", flash_attn="off")
STATE = np.random.default_rng(8).normal(size=(40, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", SHAPE)


@pytest.fixture(scope="module")
def random_head(target: Path) -> Path:
    below = write_head(target.with_name("below.gguf"), HEAD, SHAPE)
    return add_upper_layers(below, target, target.with_name("random.gguf"), num_layers=4)


@pytest.fixture(scope="module")
def agreeing_head(target: Path) -> Path:
    below = write_agreeing_head(target.with_name("agreeing-below.gguf"), target, SHAPE, num_depths=5)
    return add_upper_layers(below, target, target.with_name("agreeing.gguf"), num_layers=3, gain=0.02)


@pytest.fixture
def head(target: Path, random_head: Path) -> Iterator[LlamaHeadContext]:
    with contextlib.ExitStack() as opened:
        yield open_head(opened, target, random_head, Placement(repack=False))


def open_head(opened: contextlib.ExitStack, target: Path, path: Path, placement: Placement) -> LlamaHeadContext:
    """Open a head's two contexts over the target's."""
    header = read_header(path)
    target_model = LlamaModel(load_library(), target, placement)
    opened.callback(target_model.close)
    progress: list[float] = []
    model = LlamaModel(load_library(), path, placement, layers=find_upper_layers(header), on_progress=progress.append)
    opened.callback(model.close)
    assert progress == sorted(progress) and progress[-1] == 1
    context = LlamaContext(target_model, PARAMS, taps=EagleInfo.from_header(header).target_layers)
    opened.callback(context.close)
    head = LlamaHeadContext(model, PARAMS, target=context)
    opened.callback(head.close)
    return head


def write_pairs(head: LlamaHeadContext, first: int, end: int, *, slot: int = 0, outputs: int = 0) -> Proposals:
    """Write the pairs of these positions, and propose at the last `outputs` of them."""
    rows = range(first, end)
    batch = PairBatch(
        tokens=[11 + row for row in rows],
        states=[STATE[row].tobytes() for row in rows],
        positions=list(rows),
        sequences=[slot] * len(rows),
        outputs=list(range(len(rows) - outputs, len(rows))),
    )
    return head.decode(batch, 3, confident=True)


def propose_at(head: LlamaHeadContext, position: int, *, slot: int = 0) -> tuple[list[int], list[float]]:
    said = write_pairs(head, position, position + 1, slot=slot, outputs=1)
    return said.tokens[0], said.confidences[0]


def check_alike(said: tuple[list[int], list[float]], expected: tuple[list[int], list[float]]) -> None:
    assert said[0] == expected[0]
    np.testing.assert_allclose(said[1], expected[1], atol=1e-4)


@pytest.mark.parametrize("parts", [(0, 30), (0, 1, 2, 30), (0, 29, 30)])
def test_a_row_sees_the_same_whatever_calls_wrote_those_before_it(
    head: LlamaHeadContext, parts: tuple[int, ...]
) -> None:
    expected = propose_in_one(head)
    head.remove(0, 0)
    for first, end in itertools.pairwise(parts):
        write_pairs(head, first, end)
    check_alike(propose_at(head, 30), expected)


def propose_in_one(head: LlamaHeadContext) -> tuple[list[int], list[float]]:
    said = write_pairs(head, 0, 31, outputs=1)
    return said.tokens[0], said.confidences[0]


def test_rejected_rows_leave_both_caches(head: LlamaHeadContext) -> None:
    expected = propose_in_one(head)
    write_pairs(head, 31, 36, outputs=5)  # a draft
    assert head.last_position(0) == 35
    head.remove(0, 20)
    assert head.last_position(0) == 19
    write_pairs(head, 20, 30)
    check_alike(propose_at(head, 30), expected)


def test_the_upper_layers_see_the_rows_before(head: LlamaHeadContext) -> None:
    """The comparisons here can fail: without the upper layers' cells a row says something else."""
    expected = propose_in_one(head)
    head.remove(0, 0)
    write_pairs(head, 0, 30)
    assert head.upper is not None
    head.upper.cells.remove(0, 0)
    said = propose_at(head, 30)
    assert said[0] != expected[0] or not np.allclose(said[1], expected[1], atol=1e-2)


@pytest.mark.parametrize("placement", [Placement(repack=True), Placement(repack=False, no_mmap=True)])
def test_weights_are_read_or_mapped(target: Path, random_head: Path, placement: Placement) -> None:
    expected, said = (propose_alone(target, random_head, each) for each in (Placement(repack=False), placement))
    check_alike(said, expected)


def propose_alone(target: Path, path: Path, placement: Placement) -> tuple[list[int], list[float]]:
    with contextlib.ExitStack() as opened:
        head = open_head(opened, target, path, placement)
        return propose_in_one(head)


def test_a_copied_slot_proposes_the_same(head: LlamaHeadContext) -> None:
    expected = propose_in_one(head)
    head.share(0, 2, 0, 30)
    check_alike(propose_at(head, 30, slot=2), expected)
    head.remove(0, 0)
    check_alike(propose_at(head, 30, slot=2), expected)


def test_pairs_that_left_the_window_are_forgotten_in_both(head: LlamaHeadContext) -> None:
    assert head.upper is not None
    write_pairs(head, 0, 30)
    head.forget(0, 10)
    first_position = load_library().api.llama_memory_seq_pos_min
    assert [first_position(cells.memory, 0) for cells in (head.cells, head.upper.cells)] == [10, 10]
    assert head.last_position(0) == 29


def test_swapped_cells_come_back_in_any_slot(head: LlamaHeadContext) -> None:
    expected = propose_in_one(head)
    head.remove(0, 30)
    cells = head.swap_out(0)
    assert len(cells) == head.swapped_bytes(0)
    head.remove(0, 0)
    write_pairs(head, 0, 12)
    for slot in (0, 1):
        head.swap_in(slot, cells)
        assert head.last_position(slot) == 29
        check_alike(propose_at(head, 30, slot=slot), expected)


@pytest.mark.parametrize("kept", ["half of the first", "the first"])
def test_damaged_cells_leave_an_empty_slot(head: LlamaHeadContext, kept: str) -> None:
    write_pairs(head, 0, 30)
    cells = head.swap_out(0)
    end = len(cells) // 5 if kept == "half of the first" else len(cells) - 100
    with pytest.raises(ResourceError):
        head.swap_in(1, cells[:end].copy())
    assert head.last_position(1) == -1
    assert head.last_position(0) == 29


def test_a_closed_head_says_so(head: LlamaHeadContext) -> None:
    write_pairs(head, 0, 5)
    head.close()
    with pytest.raises(EngineError):
        write_pairs(head, 5, 6)
    with pytest.raises(EngineError, match="closed"):
        head.remove(0, 0)


@pytest.mark.parametrize(("slots", "unified"), [(1, None), (3, True), (3, False)])
@pytest.mark.parametrize("kind", ["random", "agreeing"])
def test_texts_are_the_plain_texts(
    target: Path, kind: str, slots: int, unified: bool | None, request: pytest.FixtureRequest
) -> None:
    draft = request.getfixturevalue(f"{kind}_head")
    stem = list(range(20, 200))
    requests = [ask(str(n), [*stem[: 150 - 40 * n], 5 + n], max_tokens=30) for n in range(4)]
    plain = real_engine(target)
    expected = {name: answer.tokens for name, answer in drive(plain, requests).items()}
    plain.close()
    engine = real_engine(target, kind="eagle3", draft=draft, num_draft_tokens=5, num_slots=slots, unified=unified)
    for _ in range(2):  # the second time prompts are there, and caches are cut far back
        assert {name: answer.tokens for name, answer in drive(engine, requests).items()} == expected
    accepted = engine.snapshot().speculation.accepted_per_position
    assert kind == "random" or accepted[0] > 20
    assert engine.miscounted_slots() == []
    engine.close()


def test_it_is_priced_as_a_block_and_counted_whole(target: Path, agreeing_head: Path) -> None:
    engine = real_engine(target, kind="eagle3", draft=agreeing_head, spec=AUTO_SPEC)
    drive(engine, [ask("one", range(10, 40), max_tokens=40)])
    assert engine.snapshot().costs.block_size == 5
    header = read_header(agreeing_head)
    assert engine.info.model_bytes > read_header(target).tensor_bytes + header.tensor_bytes
    engine.close()


def test_a_copy_in_fewer_bits_is_one_file_too(
    target: Path, agreeing_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MIN_BYTES", 1)
    monkeypatch.setattr(locations, "light_heads_dir", lambda: tmp_path / "light")
    copy = make_light_copy(agreeing_head, "q4_0", on_progress=lambda share: None)
    assert list((tmp_path / "light").iterdir()) == [copy] and is_current(copy)
    before, after = (read_header(path) for path in (agreeing_head, copy))
    assert after.tensors.keys() == before.tensors.keys()
    assert {
        after.tensors[name].type.name for name in ("output.weight", "blk.0.attn_q.weight", "blk.2.ffn_up.weight")
    } == {"Q4_0"}
    requests = [ask(str(n), range(20, 60 + n), max_tokens=30) for n in range(3)]
    texts = []
    for fields in ({}, {"kind": "eagle3", "draft": copy, "num_draft_tokens": 5, "num_slots": 2}):
        engine = real_engine(target, **fields)  # type: ignore[arg-type]
        texts.append({name: answer.tokens for name, answer in drive(engine, requests).items()})
        accepted = engine.snapshot().speculation.accepted_tokens
        engine.close()
    assert texts[0] == texts[1] and accepted > 20


def test_on_a_gpu_the_output_of_upper_layers_is_in_ram_too(agreeing_head: Path) -> None:
    """llama.cpp keeps embeddings there, and these are the output."""
    header = read_header(agreeing_head)
    shape = read_shape(header)
    sums = {"GPU": 0, RAM: 0}
    for buffer in weight_buffers(shape, ["GPU"] * 4, ["GPU"] * 3):
        sums[buffer.device] += buffer.num_bytes
    embeddings, output = (header.tensors[f"{name}.weight"].nbytes for name in ("token_embd", "output"))
    assert sums == {"GPU": header.tensor_bytes - embeddings, RAM: embeddings + output}
    assert shape.active_bytes == header.tensor_bytes - embeddings


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw, begin: raw[:begin], "cut short: its layers 1 to 3 are missing"),
        (lambda raw, begin: raw[: begin + 3000], "cut short"),
        (lambda raw, begin: raw[:begin] + raw[begin:].replace(b"no_vocab", b"other123"), "tokenizer.ggml.model is"),
        (
            lambda raw, begin: raw[:begin] + raw[begin:].replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_ux.weight"),
            "lacks the tensor blk.2.ffn_up.weight",
        ),
    ],
)
def test_a_damaged_file_is_refused_with_one_line(
    target: Path, random_head: Path, tmp_path: Path, damage: object, says: str
) -> None:
    begin = find_upper_layers(read_header(random_head)).begin  # type: ignore[union-attr]
    draft = tmp_path / "damaged.gguf"
    draft.write_bytes(damage(random_head.read_bytes(), begin))  # type: ignore[operator]
    check_refused(target, draft, says)


def test_damage_anywhere_in_the_second_header_is_refused_or_harmless(
    target: Path, random_head: Path, tmp_path: Path
) -> None:
    """Never another error than one for people: llama.cpp would abort on some of these files."""
    raw, header, beside = random_head.read_bytes(), read_header(random_head), read_header(target)
    info, rng, refused = read_model(beside), random.Random(5), 0
    first, end = header.shards[1].begin, header.shards[1].data_offset
    damaged = tmp_path / "damaged.gguf"
    for _ in range(150):
        data = bytearray(raw)
        data[rng.randrange(first, end)] ^= 1 << rng.randrange(8)
        damaged.write_bytes(data)
        try:
            read_shape(read_header(damaged))
            read_draft(read_header(damaged), info)
        except EagleLocalError:
            refused += 1
    assert refused > 100


def test_the_layers_of_another_head_are_refused(target: Path, random_head: Path, tmp_path: Path) -> None:
    below = write_head(tmp_path / "below.gguf", replace(HEAD, n_ff=128), SHAPE)
    other = add_upper_layers(below, target, tmp_path / "other.gguf", num_layers=4)
    begins = [find_upper_layers(read_header(path)).begin for path in (random_head, other)]  # type: ignore[union-attr]
    mixed = tmp_path / "mixed.gguf"
    mixed.write_bytes(random_head.read_bytes()[: begins[0]] + other.read_bytes()[begins[1] :])
    check_refused(target, mixed, "its upper layers are not of this head: llama.feed_forward_length is 128, expected 64")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"eaglelocal.num_layers": 10**9}, "claims 1000000000 layers, more than the limit of 64"),
        ({"eaglelocal.num_layers": 3}, "llama.block_count is 3, expected 2"),
        ({"eaglelocal.draft_tokens": (999, *range(199))}, "names tokens 0 to 999 of 300"),
        ({"eagle3.rope.freq_base": 5.0}, "llama.rope.freq_base is 10000.0, expected 5.0"),
        ({"eagle3.block_count": 2}, "it has 2 layers, llama.cpp runs heads with one"),
    ],
)
def test_keys_that_contradict_the_layers_are_refused(
    target: Path, random_head: Path, tmp_path: Path, change: dict[str, float], says: str
) -> None:
    draft = tmp_path / "changed.gguf"
    draft.write_bytes(random_head.read_bytes())
    patch_header(read_header(draft), change)
    check_refused(target, draft, says)


def test_several_layers_without_a_mask_are_refused(target: Path, tmp_path: Path) -> None:
    below = write_head(tmp_path / "below.gguf", replace(HEAD, num_depths=None), SHAPE)
    head = add_upper_layers(below, target, tmp_path / "head.gguf", num_layers=2)
    check_refused(target, head, "it has 2 layers, and only P-EAGLE heads of several layers are run")


def test_more_drafted_tokens_than_the_target_has_are_refused(target: Path, tmp_path: Path) -> None:
    """Native code ranks in memory for the target's tokens."""
    below = write_head(tmp_path / "below.gguf", HEAD, SHAPE)
    tokens = tuple([0] * 400)
    head = add_upper_layers(below, target, tmp_path / "head.gguf", num_layers=2, draft_tokens=tokens)
    check_refused(target, head, "it drafts over 400 tokens of 300")


def check_refused(target: Path, draft: Path, says: str) -> None:
    plan = Plan(target=target, target_label="t", draft_kind="eagle3", draft=draft, spec=fixed_spec(4), n_ctx=256)
    with pytest.raises(EagleLocalError) as caught:
        build(plan, lambda _: None)
    assert says in caught.value.message
    assert caught.value.hint
