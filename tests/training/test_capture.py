"""Captured states equal those of an ordinary decode, for every target and however the text is split."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from doubles.hybrid_model import write_hybrid
from doubles.random_models import TargetShape, write_target
from doubles.runnable_models import write_runnable

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import OFF
from eaglelocal.errors import EagleLocalError, EngineError
from eaglelocal.gguf.architectures import FinalState
from eaglelocal.gguf.draft_pairing import read_model
from eaglelocal.gguf.reader import read_header
from eaglelocal.training.target_capture import (
    CAPTURE_ROWS,
    LEAST_LIKELY,
    MAX_LOGIT,
    NUM_TOP,
    Captured,
    TargetCapture,
)

pytestmark = pytest.mark.full

N_CTX = 2 * CAPTURE_ROWS + 44
LAST = -1  # stands for the state behind the last layer
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 299, N_CTX)]
TARGETS = {  # whose states heads can read, and taps, in any order; the text is longer than the window of gpt-oss
    "llama": (3, 0, 1),
    "qwen3": (1, 2, 3),
    "gpt-oss": (1, 2, LAST),
    "qwen35": (2, 4, 7),
    "nemotron_h": (1, 3, LAST),
    "gemma4": (1, 3, 5),
    "lfm2": (0, 1, 2),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("targets")
    special = {"llama": write_target(folder / "llama.gguf"), "lfm2": write_hybrid(folder / "lfm2.gguf")}
    return special | {name: write_runnable(folder / f"{name}.gguf", name) for name in TARGETS if name not in special}


def taps_of(name: str, path: Path) -> tuple[int, ...]:
    n_layer = read_model(read_header(path)).n_layer
    return tuple(n_layer if tap == LAST else tap for tap in TARGETS[name])


def plan_of(path: Path, **changes: object) -> Plan:
    fields: dict[str, object] = {"n_ctx": N_CTX, "threads": 1, "kv_type": "f32", "flash_attn": "off"} | changes
    return Plan(target=path, target_label=path.stem, draft_kind="none", draft_label="none", spec=OFF, **fields)  # type: ignore[arg-type]


@contextmanager
def opened(path: Path, taps: tuple[int, ...]) -> Iterator[TargetCapture]:
    with TargetCapture(plan_of(path), taps) as capture:
        yield capture


def decoded(path: Path, taps: tuple[int, ...], tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Taps [rows, taps, width] and logits [rows, vocab] of one decode of all rows."""
    n = len(tokens)
    params = ContextParams(n_ctx=N_CTX, n_batch=max(n, 1), kv_type="f32", flash_attn="off")
    model = LlamaModel(load_library(), path, Placement(repack=False))
    by_nextn = read_model(read_header(path)).final_state is FinalState.NEXTN
    context = LlamaContext(model, params, taps=taps, final_by_nextn=by_nextn)
    try:
        context.decode(Batch(tokens, list(range(n)), [(0,)] * n, [True] * n))
        return context.copy_taps(list(range(n))), np.stack([context.logits(row) for row in range(n)])
    finally:
        context.close()
        model.close()


def check(captured: Captured, taps: np.ndarray, logits: np.ndarray, first: int) -> None:
    assert captured.taps.shape == taps.shape
    np.testing.assert_allclose(captured.taps, taps, atol=1e-3 * taps.std())
    wanted = logits[first:]
    assert captured.logits.dtype == np.float16 and captured.tokens.shape == (len(wanted), NUM_TOP)
    is_there = captured.logits > -MAX_LOGIT
    expected = np.take_along_axis(wanted, captured.tokens.astype(np.int64), -1)
    tolerance = 5e-3 * max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(captured.logits[is_there].astype(np.float32), expected[is_there], atol=tolerance)
    near = wanted >= wanted.max(-1, keepdims=True) - LEAST_LIKELY + tolerance
    assert (is_there.sum(-1) >= np.minimum(near.sum(-1), NUM_TOP)).all()
    gaps = np.sort(wanted, -1)
    is_clear = gaps[:, -1] - gaps[:, -2] > 1e-3 * wanted.std()
    assert is_clear.mean() > 0.9
    np.testing.assert_array_equal(captured.tokens[is_clear, 0], wanted.argmax(-1)[is_clear])


@pytest.mark.parametrize("name", TARGETS)
def test_a_text_is_read_as_one_decode_reads_it(name: str, paths: dict[str, Path]) -> None:
    taps = taps_of(name, paths[name])
    expected = decoded(paths[name], taps, TEXT)
    with opened(paths[name], taps) as capture:
        assert capture.n_ctx == N_CTX
        check(capture.read(TEXT, CAPTURE_ROWS - 5), *expected, CAPTURE_ROWS - 5)
        again = capture.read(TEXT[:40], 7)  # nothing of the text before is left
        check(again, expected[0][:40], expected[1][:40], 7)


LENGTHS = (
    (1, 0),
    (2, 1),
    (CAPTURE_ROWS, 0),
    (CAPTURE_ROWS, CAPTURE_ROWS - 1),
    (CAPTURE_ROWS + 1, CAPTURE_ROWS),
    (N_CTX, N_CTX - 1),
)


@pytest.mark.parametrize(("length", "first"), LENGTHS)
def test_texts_of_every_length(length: int, first: int, paths: dict[str, Path]) -> None:
    taps = TARGETS["llama"]
    states, logits = decoded(paths["llama"], taps, TEXT[:length])
    with opened(paths["llama"], taps) as capture:
        check(capture.read(TEXT[:length], first), states, logits, first)


@pytest.mark.parametrize("n_ctx", [16, N_CTX])
def test_a_text_that_is_too_long_is_refused(n_ctx: int, paths: dict[str, Path]) -> None:
    fits = TEXT[:16]
    states, logits = decoded(paths["llama"], (1, 2, 3), fits)
    with TargetCapture(plan_of(paths["llama"], n_ctx=n_ctx), (1, 2, 3)) as capture:
        with pytest.raises(EngineError, match=f"does not fit {n_ctx}"):
            capture.read([*TEXT, 1], 0)
        check(capture.read(fits, 0), states, logits, 0)


def test_a_file_that_is_not_a_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.gguf").write_bytes(b"GGUF")
    with pytest.raises(EagleLocalError), opened(tmp_path / "none.gguf", ()):
        pass


def test_logits_beyond_half_precision_stay_finite(tmp_path: Path) -> None:
    path = write_target(tmp_path / "loud.gguf", TargetShape(layer_gain=1.0))
    amplify(path, "output_norm.weight", 1e6)
    with opened(path, (1, 2, 3)) as capture:
        said = capture.read(TEXT[:8], 0).logits
    assert np.isfinite(said).all()
    assert np.abs(said).max() == np.float16(MAX_LOGIT)


def amplify(path: Path, name: str, gain: float) -> None:
    header = read_header(path)
    tensor = header.tensors[name]
    with path.open("r+b") as file:
        file.seek(header.shards[0].data_offset + tensor.offset)
        values = np.frombuffer(file.read(tensor.nbytes), np.float32) * np.float32(gain)
        file.seek(header.shards[0].data_offset + tensor.offset)
        file.write(values.tobytes())
