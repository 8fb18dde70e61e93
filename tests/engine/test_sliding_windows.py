"""Sliding-window caches: the same text with and without drafts, far beyond the window; what is gone is not reused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.real_engine import ask, real_engine
from doubles.windowed_model import WINDOW, write_windowed

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch, Floats
from eaglelocal.core.request import ChatRequest
from eaglelocal.engine.engine import Engine
from eaglelocal.loading import engine_builder
from eaglelocal.probe.probe import probe

PROMPT = tuple(20 + i % 37 for i in range(150))  # repeats itself, so that a lookup has something to propose
SIZES = {"n_ctx": 1024, "n_batch": 64}
FAR = 450  # tokens; a cache of windows has 256 cells here


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_windowed(tmp_path_factory.mktemp("windowed") / "windowed.gguf")


def said(engine: Engine, request: ChatRequest) -> tuple[list[int], int]:
    """(tokens, prompt tokens found in the cache)."""
    result = drive(engine, [request])[request.id]
    assert result.started is not None and result.failed is None
    return result.tokens, result.started.cached_tokens


def test_rows_that_were_taken_back_leave_the_window_as_it_was(target: Path) -> None:
    """Every decode has three rows too many, which are removed: the logits stay those of a cache that holds all."""
    model = LlamaModel(load_library(), target, Placement(repack=False))
    rng = np.random.default_rng(1)
    text = rng.integers(20, 250, 700).tolist()
    whole, windows = (
        LlamaContext(model, ContextParams(n_ctx=1024, n_batch=64, kv_type="f32", flash_attn="off", swa_full=is_full))
        for is_full in (True, False)
    )
    for position in range(len(text)):
        wrong = [7, 8, 9]
        after = [last_logits(context, text[position], position, wrong) for context in (whole, windows)]
        if position % 50 == 49 or position > 600:
            np.testing.assert_allclose(after[0], after[1], atol=1e-3)  # rounding differs by processor
    whole.close()
    windows.close()
    model.close()


def last_logits(context: LlamaContext, token: int, position: int, wrong: list[int]) -> Floats:
    n = 1 + len(wrong)
    rows = Batch([token, *wrong], list(range(position, position + n)), [(0,)] * n, [True] * n)
    context.decode(rows)
    logits = context.logits(0).copy()
    context.remove(0, position + 1)
    return logits


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", ["none", "ngram", "draft_model"])
def test_the_text_is_that_of_whole_caches(target: Path, kind: str, slots: int) -> None:
    draft = target if kind == "draft_model" else None
    texts = []
    for whole in (True, False):
        engine = real_engine(target, kind, draft, num_slots=slots, swa_full=whole, **SIZES)
        requests = [ask(f"r{i}", (*PROMPT, 40 + i), max_tokens=FAR) for i in range(slots)]
        result = drive(engine, requests)
        texts.append([result[request.id].tokens for request in requests])
        engine.close()
    assert texts[0] == texts[1]
    assert all(len(tokens) == FAR > WINDOW for tokens in texts[0])


def test_what_goes_on_is_reused_and_what_was_changed_is_not(target: Path) -> None:
    engine = real_engine(target, "ngram", swa_full=False, **SIZES)
    answer, _ = said(engine, ask("first", PROMPT))
    _, cached = said(engine, ask("onward", (*PROMPT, *answer, 7, 8)))
    assert cached == len(PROMPT) + len(answer) - 1
    changed = ask("changed", (*PROMPT, *answer[:5], 9, 9))
    result, cached = said(engine, changed)
    engine.close()
    assert cached == 0
    whole = real_engine(target, swa_full=True, **SIZES)
    assert said(whole, changed) == (result, 0)
    _, cached = said(whole, ask("again", changed.tokens))
    whole.close()
    assert cached == len(changed.tokens) - 1


@pytest.mark.parametrize(("free", "is_whole"), [(2**34, True), (4 * 2**20, False)])
def test_windows_are_whole_where_that_fits(
    target: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_whole: bool
) -> None:
    """Two layers of four have a window: 4 MiB of cache for 4096 positions, or 2 and a little."""
    here = probe()
    smaller = replace(here, memory=replace(here.memory, available_bytes=free))
    monkeypatch.setattr(engine_builder, "probe", lambda: smaller)
    real_engine(target, n_ctx=4096, n_batch=64).close()  # its caches do not count below
    engine = real_engine(target, n_ctx=4096, n_batch=64)
    cache_bytes = engine.info.cache_bytes
    notes = [note for note in engine.info.notes if "windows" in note]
    engine.close()
    assert cache_bytes == pytest.approx(4 * 2**20 if is_whole else 2 * 2**20 + 2**17, abs=2**15)
    assert bool(notes) != is_whole
