"""The real head context: the proposals of a row do not depend on the rows that it is decoded with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.random_models import HeadShape, TargetShape, write_agreeing_head, write_head, write_target
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import HeadFormat, LlamaHeadContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch, ExtraLevels, Floats, PairBatch, Proposals, State
from eaglelocal.drafters.eagle3 import MAX_WAITING_PAIRS
from eaglelocal.memory.contexts import ROWS_PER_SLOT

N = 6


PARAMS = ContextParams(n_ctx=256, num_sequences=3, n_batch=64, kv_type="f32", flash_attn="off")


@pytest.fixture(params=["borrowed", "own, reduced vocabulary"])
def models(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LlamaModel, LlamaModel]]:
    """A target and a head."""
    reduced = HeadShape(width=64, n_ff=64, draft_vocab=200, own_output=True)
    shape = HeadShape(width=64, n_ff=64) if request.param == "borrowed" else reduced
    target = LlamaModel(load_library(), write_target(tmp_path / "target.gguf", TINY), Placement(repack=False))
    draft = LlamaModel(load_library(), write_head(tmp_path / "head.gguf", shape, TINY), Placement(repack=False))
    yield target, draft
    draft.close()
    target.close()


@pytest.fixture
def head(models: tuple[LlamaModel, LlamaModel]) -> Iterator[LlamaHeadContext]:
    context = LlamaContext(models[0], PARAMS, taps=(1, 2, 3))
    opened = LlamaHeadContext(models[1], PARAMS, target=context)
    yield opened
    opened.close()
    context.close()


def pairs(slots: list[int], outputs: list[int]) -> PairBatch:
    """N pairs for each slot, slot after slot."""
    rng = np.random.default_rng(0)
    tokens = [int(t) for t in rng.integers(0, 250, N * 3)]
    states = rng.normal(size=(N * 3, 64)).astype(np.float32)
    rows = [slot * N + i for slot in slots for i in range(N)]
    fed = [states[r].tobytes() for r in rows]
    return PairBatch([tokens[r] for r in rows], fed, [r % N for r in rows], [r // N for r in rows], outputs)


def floats(state: State) -> Floats:
    return np.frombuffer(state, np.float32)


def one_by_one(head: LlamaHeadContext, batch: PairBatch) -> list[Proposals]:
    said = []
    for i in range(len(batch.tokens)):
        single = PairBatch(
            batch.tokens[i : i + 1],
            batch.states[i : i + 1],
            batch.positions[i : i + 1],
            batch.sequences[i : i + 1],
            [0],
        )
        said.append(head.decode(single, 2, confident=True))
    for slot in range(3):
        head.remove(slot, 0)
    return said


@pytest.mark.parametrize("slots", [[0], [2], [0, 1, 2]])
@pytest.mark.parametrize("asked", ["last of each", "all", "some"])
def test_a_row_proposes_what_it_would_alone(head: LlamaHeadContext, slots: list[int], asked: str) -> None:
    lasts = [N * (i + 1) - 1 for i in range(len(slots))]
    outputs = {"last of each": lasts, "all": list(range(N * len(slots))), "some": sorted({1, 3, *lasts})}[asked]
    batch = pairs(slots, outputs)
    alone = one_by_one(head, batch)
    together = head.decode(batch, 2, confident=True)
    for i, row in enumerate(outputs):
        single = alone[row].states
        assert together.tokens[i] == alone[row].tokens[0]
        np.testing.assert_allclose(together.confidences[i], alone[row].confidences[0], rtol=1e-4)
        np.testing.assert_allclose(floats(together.states[i]), floats(single[0]), atol=1e-4)


@pytest.mark.parametrize("norms", [HeadFormat(), HeadFormat(tap_eps=1e-3)])
def test_rows_are_encoded_the_same_along_with_the_decode_after_it_and_from_copies(
    models: tuple[LlamaModel, LlamaModel], norms: HeadFormat
) -> None:
    context = LlamaContext(models[0], PARAMS, taps=(1, 2, 3))
    head = LlamaHeadContext(models[1], PARAMS, target=context, form=norms)
    rows = Batch([5, 6, 7, 8], [0, 1, 2, 3], [(0,)] * 4, [True] * 4)
    encoded, tapped = [], None
    for _ in range(2):  # the second time it is known that they will be asked for
        context.remove(0, 0)
        tapped = context.decode(rows).features([1, 3])
        assert tapped is not None
        encoded.append(head.encode([tapped]))
    assert tapped is not None
    encoded.append(head.encode([tapped.copied()]))
    for states in encoded[1:]:
        for state, first in zip(states, encoded[0], strict=True):
            np.testing.assert_allclose(floats(state), floats(first), atol=1e-5)
    head.close()
    context.close()


@pytest.mark.parametrize("norms", [HeadFormat(), HeadFormat(tap_eps=1e-3)])
def test_more_rows_are_encoded_than_one_call_of_the_head_takes(
    models: tuple[LlamaModel, LlamaModel], norms: HeadFormat
) -> None:
    """In parts of four: of some rows, of all along with the decode, and of kept ones, behind cells in the cache."""
    wanted = [0, 2, 3, 5, 7, 8, 9, 10, 12]
    rows = Batch(list(range(5, 18)), list(range(13)), [(0,)] * 13, [True] * 13)
    said: dict[int, list[list[State]]] = {}
    for n_batch in (64, 4):
        context = LlamaContext(models[0], PARAMS, taps=(1, 2, 3))
        head = LlamaHeadContext(models[1], replace(PARAMS, n_batch=n_batch), target=context, form=norms)
        head.decode(PairBatch([1, 2], [bytes(4 * 64)] * 2, [0, 1], [0, 0], []), 1, confident=False)
        found = []
        for _ in range(2):  # the second time along with the decode
            context.remove(0, 0)
            tapped = context.decode(rows).features(wanted)
            assert tapped is not None
            found.append(head.encode([tapped]))
        found.append(head.encode([tapped.copied()]))
        found.append(head.encode([np.concatenate([tapped.copied()] * 8)])[: len(wanted)])  # more than a decode has
        assert head.last_position(0) == 1, "encoding leaves no cells"
        said[n_batch] = found
        head.close()
        context.close()
    for whole, parts in zip(said[64], said[4], strict=True):
        for one, other in zip(whole, parts, strict=True):
            np.testing.assert_allclose(floats(one), floats(other), atol=1e-5)


def test_what_waits_for_a_draft_fits_a_call_of_the_head() -> None:
    """With as many slots as there may be; the two figures live in rooms that do not know each other."""
    assert ROWS_PER_SLOT > MAX_WAITING_PAIRS


@pytest.mark.parametrize("slots", [[2], [0, 1, 2]])
def test_several_levels_in_one_call_are_those_of_several_calls(head: LlamaHeadContext, slots: list[int]) -> None:
    batch = pairs(slots, [N * (i + 1) - 1 for i in range(len(slots))])
    together = head.decode(batch, 1, confident=True, depth=3)
    said = head.decode(batch, 1, confident=True)  # over the cells of the call before
    tokens, confidences = list(said.tokens), list(said.confidences)
    for level in range(2):
        best = [ranked[0] for ranked in said.tokens]
        rows = PairBatch(best, said.states, [N + level] * len(slots), slots, list(range(len(slots))))
        said = head.decode(rows, 1, confident=True)
        tokens, confidences = tokens + said.tokens, confidences + said.confidences
    assert together.tokens == tokens
    np.testing.assert_allclose(together.confidences, confidences, rtol=1e-4)
    for one, other in zip(together.states, said.states, strict=True):
        np.testing.assert_allclose(floats(one), floats(other), atol=1e-4)
    assert [head.last_position(slot) for slot in slots] == [N + 1] * len(slots)


@pytest.mark.parametrize("slots", [[2], [0, 1, 2]])
def test_levels_go_on_as_long_as_all_rows_are_sure(head: LlamaHeadContext, slots: list[int]) -> None:
    batch = pairs(slots, [N * (i + 1) - 1 for i in range(len(slots))])
    whole = head.decode(batch, 1, confident=True, depth=6)
    levels = [whole.confidences[i : i + len(slots)] for i in range(0, len(whole.confidences), len(slots))]
    least = [min(best for (best,) in level) for level in levels]
    asked = sorted({0.0, 1.1, *least, *(confidence + 1e-4 for confidence in least)})
    for depth, further, confidence in product((1, 2, 4), (0, 1, 2), asked):
        said = head.decode(batch, 1, confident=True, depth=depth, extra_levels=ExtraLevels(further, confidence))
        num_sure = next((n for n, each in enumerate(least) if each < confidence), len(least))
        expected = depth if num_sure < depth else min(depth + further, num_sure + 1)
        assert said.tokens == whole.tokens[: expected * len(slots)]
        assert [head.last_position(slot) for slot in slots] == [N - 2 + expected] * len(slots)
        state = head.decode(batch, 1, confident=True, depth=expected).states
        np.testing.assert_array_equal([floats(one) for one in said.states], [floats(one) for one in state])


def test_no_level_is_added_after_the_end_of_an_answer(
    models: tuple[LlamaModel, LlamaModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drafted() -> list[int]:
        context = LlamaContext(models[0], PARAMS, taps=(1, 2, 3))
        head = LlamaHeadContext(models[1], PARAMS, target=context)
        said = head.decode(pairs([0], [N - 1]), 1, confident=True, extra_levels=ExtraLevels(3, 0.0))
        head.close()
        context.close()
        return [best for (best,) in said.tokens]

    monkeypatch.setattr(models[0].vocabulary, "end_tokens", [])
    tokens = drafted()
    assert len(tokens) == 4
    for end in tokens:
        monkeypatch.setattr(models[0].vocabulary, "end_tokens", [255, end])
        assert drafted() == tokens[: tokens.index(end) + 1]


def test_rows_that_ask_for_nothing_are_still_written(head: LlamaHeadContext) -> None:
    batch = pairs([0], [])
    alone = one_by_one(head, batch)
    written = PairBatch(batch.tokens[:-1], batch.states[:-1], batch.positions[:-1], batch.sequences[:-1], [])
    assert head.decode(written, 1, confident=False).tokens == []
    assert head.last_position(0) == N - 2
    last = PairBatch(batch.tokens[-1:], batch.states[-1:], batch.positions[-1:], batch.sequences[-1:], [0])
    assert head.decode(last, 2, confident=True).tokens == alone[-1].tokens


def test_a_head_that_agrees_is_accepted(tmp_path: Path) -> None:
    """A target whose layers add next to nothing, and a head that says the same: nearly all drafts must pass."""
    shape = TargetShape(n_embd=64, n_layer=4, n_ff=64, layer_gain=0.01)
    target = write_target(tmp_path / "target.gguf", shape)
    head = write_agreeing_head(tmp_path / "head.gguf", target, shape)
    engine = real_engine(target, "eagle3", head, num_slots=2, num_draft_tokens=3)
    result = drive(engine, [ask(str(i), (33 + i, 60, 97), max_tokens=60) for i in range(6)])
    engine.close()
    speculation = [answer.finished.speculation for answer in result.values() if answer.finished]
    assert len(speculation) == 6
    assert sum(s.accepted_tokens for s in speculation) > 0.9 * sum(s.draft_tokens for s in speculation)
