"""The real target context: logits and features of a row do not depend on the rows it is decoded with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from doubles.random_models import write_target
from doubles.real_engine import TINY

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch, Floats
from eaglelocal.errors import EngineError

TEXTS = ([5, 6, 7, 8, 9, 10, 11], [40, 41], [90, 91, 92, 93], [33])


@pytest.fixture
def context(tmp_path: Path) -> Iterator[LlamaContext]:
    model = LlamaModel(load_library(), write_target(tmp_path / "target.gguf", TINY), Placement(repack=False))
    params = ContextParams(n_ctx=256, num_sequences=4, n_batch=64, kv_type="f32", flash_attn="off")
    opened = LlamaContext(model, params, taps=(1, 2, 3))
    yield opened
    opened.close()
    model.close()


def alone(context: LlamaContext, slot: int) -> tuple[Floats, list[int]]:
    """Features [rows, taps, n_embd] and best tokens of one text, row by row."""
    features, best = [], []
    for position, token in enumerate(TEXTS[slot]):
        decoded = context.decode(Batch([token], [position], [(slot,)], [True]))
        row = decoded.features([0])
        assert row is not None
        features.append(row.copied()[0])
        best.append(context.propose([0], 1, confident=False).tokens[0][0])
    context.remove(slot, 0)
    return np.array(features), best


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 0)])
@pytest.mark.parametrize("sampled", ["all", "last", "some"])
def test_rows_of_several_slots_come_back_in_the_order_of_the_batch(
    context: LlamaContext, order: tuple[int, ...], sampled: str
) -> None:
    expected = {slot: alone(context, slot) for slot in order}
    batch = Batch([], [], [], [])
    rows: list[tuple[int, int]] = []
    for slot in order:
        for position, token in enumerate(TEXTS[slot]):
            is_last = position == len(TEXTS[slot]) - 1
            batch.tokens.append(token)
            batch.positions.append(position)
            batch.sequences.append((slot,))
            batch.outputs.append({"all": True, "last": is_last, "some": is_last or position % 2 == 1}[sampled])
            rows.append((slot, position))
    tapped = context.decode(batch).features(list(range(len(rows))))
    assert tapped is not None
    found = tapped.copied()
    assert found.shape == (len(rows), 3, 64)
    for row, (slot, position) in enumerate(rows):
        features, best = expected[slot]
        np.testing.assert_allclose(found[row], features[position], atol=1e-4)
        if batch.outputs[row]:
            assert context.propose([row], 1, confident=False).tokens[0][0] == best[position]


def test_lost_gpu_work_is_an_error(context: LlamaContext, monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_library()
    monkeypatch.setattr(library, "lost_work", "")
    context.decode(Batch([5], [0], [(0,)], [True]))
    library.log_callback(4, b"ggml_metal_synchronize: error: command buffer 0 failed with status 5\n", None)
    with pytest.raises(EngineError, match="command buffer 0 failed with status 5"):
        context.decode(Batch([6], [1], [(0,)], [True]))


def test_a_row_that_is_run_once_leaves_nothing(context: LlamaContext) -> None:
    before = alone(context, 0)
    context.run_once()
    assert context.last_position(0) == -1
    after = alone(context, 0)
    assert np.array_equal(before[0], after[0]) and before[1] == after[1]
