"""The real head context: what a row proposes does not depend on the rows that it is decoded with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from doubles.random_models import HeadShape, TargetShape, write_agreeing_head, write_head, write_target
from doubles.real_engine import TINY, ask, real_engine
from doubles.rig import drive

from eaglelocal.backend.context import ContextParams, LlamaContext
from eaglelocal.backend.head import LlamaHeadContext
from eaglelocal.backend.library import load_library
from eaglelocal.backend.model import Model
from eaglelocal.core.batch import PairBatch, Proposals

N = 6


@pytest.fixture(params=["borrowed", "own, reduced vocabulary"])
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LlamaHeadContext]:
    reduced = HeadShape(width=64, n_ff=64, draft_vocab=200, own_output=True)
    shape = HeadShape(width=64, n_ff=64) if request.param == "borrowed" else reduced
    target = Model(load_library(), write_target(tmp_path / "target.gguf", TINY), repack=False)
    draft = Model(load_library(), write_head(tmp_path / "head.gguf", shape, TINY), repack=False)
    params = ContextParams(n_ctx=256, num_sequences=3, n_batch=64, kv_type="f32", flash_attention="off")
    context = LlamaContext(target, params, taps=(1, 2, 3))
    opened = LlamaHeadContext(draft, params, target=context)
    yield opened
    opened.close()
    context.close()
    draft.close()
    target.close()


def pairs(slots: list[int], outputs: list[int]) -> PairBatch:
    """N pairs for each slot, slot after slot."""
    rng = np.random.default_rng(0)
    tokens = [int(t) for t in rng.integers(0, 250, N * 3)]
    states = rng.normal(size=(N * 3, 64)).astype(np.float32)
    rows = [slot * N + i for slot in slots for i in range(N)]
    return PairBatch([tokens[r] for r in rows], states[rows], [r % N for r in rows], [r // N for r in rows], outputs)


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
        np.testing.assert_allclose(together.states[i], single[0], atol=1e-4)


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
    told = drive(engine, [ask(str(i), (33 + i, 60, 97), max_tokens=60) for i in range(6)])
    engine.close()
    speculation = [answer.finished.speculation for answer in told.values() if answer.finished]
    assert len(speculation) == 6
    assert sum(s.accepted_tokens for s in speculation) > 0.9 * sum(s.draft_tokens for s in speculation)
