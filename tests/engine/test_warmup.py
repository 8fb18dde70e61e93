"""Warm-up steps before the first request: they run everything that a step runs, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles.drafters import count_indexed
from doubles.engine_harness import AnswerResult, drive
from doubles.random_models import write_agreeing_pairs
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.head_context import LlamaHeadContext
from eaglelocal.core.request import AUTO_SPEC
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.engine import warmup
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.step_times import list_useful_sizes
from eaglelocal.engine.warmup import Warmup
from eaglelocal.loading import engine_builder

SIZES = (1, 2, 5, 17, 30)
KINDS = {"eagle3": "F32-head.gguf", "draft_model": "F32.gguf", "ngram": None, "none": None}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, str, int]]:
    """The decodes and encodes of all contexts: the context, the method's name, and the number of rows."""
    found = list[tuple[Any, str, int]]()

    def watch(kind: type[LlamaContext | LlamaHeadContext], name: str, num_rows: Callable[[Any], int]) -> None:
        call = getattr(kind, name)

        def watched(context: Any, rows: Any, *more: object, **how: object) -> object:
            found.append((context, name, num_rows(rows)))
            return call(context, rows, *more, **how)

        monkeypatch.setattr(kind, name, watched)

    watch(LlamaContext, "decode", lambda batch: len(batch.tokens))
    watch(LlamaHeadContext, "decode", lambda batch: len(batch.tokens))
    watch(LlamaHeadContext, "encode", len)
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warming")
    write_agreeing_pairs(folder, ["F32"], TINY)
    return folder


@pytest.fixture(params=[(kind, slots) for kind in KINDS for slots in (1, 3)], ids=lambda p: f"{p[0]}-{p[1]}")
def engines(request: pytest.FixtureRequest, files: Path) -> Iterator[tuple[Engine, Engine]]:
    """Two alike."""
    kind, num_slots = request.param
    draft = files / name if (name := KINDS[kind]) else None
    made = [real_engine(files / "F32.gguf", kind, draft, spec=AUTO_SPEC, num_slots=num_slots) for _ in range(2)]
    yield made[0], made[1]
    for engine in made:
        engine.close()


def result(engine: Engine) -> dict[str, AnswerResult]:
    return drive(engine, [ask(str(i), [7 + i, *range(20, 50)], temperature=0.7, seed=3) for i in range(3)])


def warm_up(engine: Engine, *, makes_kernels: bool) -> None:
    warmup = Warmup(engine.context, engine.drafters, max_outputs=17)
    warmup.measure(engine.controller.costs, num_slots=engine.info.num_slots, makes_kernels=makes_kernels)


def test_warmup_leaves_no_cells(engines: tuple[Engine, Engine], calls: list[tuple[Any, str, int]]) -> None:
    warmed, fresh = engines
    warmup = Warmup(warmed.context, warmed.drafters, max_outputs=17 if warmed.drafters else 1)
    for size in SIZES:
        warmup.prepare(size)
    assert warmed.miscounted_slots() == []
    lookups = [drafter for drafter in warmed.drafters if isinstance(drafter, Ngram)]
    assert [count_indexed(drafter) for drafter in lookups] == [0] * len(lookups)
    contexts = {context for context, _, _ in calls}
    assert len(contexts) == 1 + len(warmed.drafters) - len(lookups)
    assert all(context.last_position(0) == -1 for context in contexts)
    answers = result(warmed), result(fresh)
    assert {name: one.tokens for name, one in answers[0].items()} == {n: one.tokens for n, one in answers[1].items()}


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
def test_a_draft_s_model_runs_every_size_and_one_row_after_it(
    files: Path, kind: str, calls: list[tuple[Any, str, int]]
) -> None:
    engine = real_engine(files / "F32.gguf", kind, files / str(KINDS[kind]), spec=AUTO_SPEC)
    calls.clear()
    warm_up(engine, makes_kernels=True)
    sizes = [size for context, name, size in calls if context is not engine.context and name == "decode"]
    assert set(range(2, 18)) <= {*sizes}
    assert sizes.count(1) >= 17
    engine.close()


@pytest.mark.parametrize(("most_s", "runs"), [(1e9, True), (0.0, False)])
def test_a_whole_prompt_runs_once_unless_it_would_take_long(
    files: Path, monkeypatch: pytest.MonkeyPatch, most_s: float, runs: bool
) -> None:
    prepared: list[int] = []
    prepare = Warmup.prepare
    monkeypatch.setattr(warmup, "MAX_PROMPT_S", most_s)
    monkeypatch.setattr(Warmup, "prepare", lambda self, rows: (prepared.append(rows), prepare(self, rows)))
    engine = real_engine(files / "F32.gguf", "eagle3", files / "F32-head.gguf", spec=AUTO_SPEC, n_batch=64)
    for makes_kernels in (False, True):
        prepared.clear()
        warm_up(engine, makes_kernels=makes_kernels)
        assert (64 in prepared) is (makes_kernels and runs)
    assert engine.miscounted_slots() == []
    engine.close()


def test_the_last_decode_before_sizes_are_timed_is_no_first_one(
    files: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, str, int]]
) -> None:
    """A head that has read a decode's states encodes along with the next decode: that must not be a timed one."""
    asked: list[bool] = []
    engine = real_engine(files / "F32.gguf", "eagle3", files / "F32-head.gguf", spec=AUTO_SPEC)
    time_rows = Warmup.time_rows

    def watched(warmup: Warmup, num_rows: int) -> float:
        names = [name for context, name, _ in calls if name == "encode" or context is engine.context]
        asked.append(names[-1] == "encode")
        return time_rows(warmup, num_rows)

    monkeypatch.setattr(Warmup, "time_rows", watched)
    warm_up(engine, makes_kernels=True)
    assert asked[0] and not any(asked[1:])
    engine.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_ctx", "slots"), [(16, 1), (16, 4), (256, 16)])
def test_contexts_that_hold_no_more_than_a_size(files: Path, kind: str, n_ctx: int, slots: int) -> None:
    draft = files / name if (name := KINDS[kind]) else None
    engine = real_engine(files / "F32.gguf", kind, draft, spec=AUTO_SPEC, n_ctx=n_ctx, num_slots=slots, n_batch=512)
    max_rows = slots * 17 if kind != "none" else slots
    for size in list_useful_sizes(min(n_ctx, max_rows), num_slots=slots, max_prompt_rows=n_ctx):
        Warmup(engine.context, engine.drafters, max_outputs=max_rows).prepare(size)
    assert engine.miscounted_slots() == []
    engine.close()


@pytest.mark.parametrize("uses_gpu", [True, False])
def test_drafts_are_made_before_the_first_request_where_a_gpu_computes(
    files: Path, monkeypatch: pytest.MonkeyPatch, uses_gpu: bool
) -> None:
    fit = engine_builder.fit_plan
    monkeypatch.setattr(engine_builder, "fit_plan", lambda *a, **how: replace(fit(*a, **how), uses_gpu=uses_gpu))
    engine = real_engine(files / "F32.gguf", "eagle3", files / "F32-head.gguf", spec=AUTO_SPEC)
    assert (engine.drafters[-1].native_s > 0.0) is uses_gpu
    costs = engine.controller.costs
    costs.learn_drafts("another", 1, [0.001])
    assert (costs.draft_seconds("another", 1) == 0.0) is uses_gpu
    engine.close()
