"""Work that waits for idle moments: done in pieces until a request comes, and stored costs that it confirms."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest
from doubles.engine_harness import EngineHarness
from doubles.scripted_context import ScriptedContext, Table

from eaglelocal.core.request import AUTO_SPEC, ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.engine import warmup
from eaglelocal.engine.warmup import Warmup
from eaglelocal.speculation.costs.step_costs import StepCosts

TABLE = Table(seed=1)
SIZES = (1, 2, 4, 8, 17)


def true_s(num_rows: int) -> float:
    return 0.01 * (1.0 + 0.05 * num_rows)


def measured(seconds: Callable[[int], float]) -> object:
    costs = StepCosts()
    costs.calibrate({rows: [seconds(rows)] * 3 for rows in SIZES})
    return costs.state()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every decode; the clock advances only by them."""
    asked: list[int] = []

    class Clock:
        now = 0.0

        @staticmethod
        def perf_counter() -> float:
            return Clock.now

    class Timed(Warmup):
        def _decode(self, num_rows: int) -> object:  # type: ignore[override]
            asked.append(num_rows)
            Clock.now += true_s(num_rows)
            return super()._decode(num_rows)

    monkeypatch.setattr(warmup, "time", Clock)
    monkeypatch.setattr(warmup, "Warmup", Timed)
    return asked


def start(costs: StepCosts, stored: object) -> list[None]:
    """Measure before the first request; the work that is left comes out as a list when it is done."""
    context = ScriptedContext(TABLE, n_ctx=128, n_batch=48)
    return list(warmup.Warmup(context, (), max_outputs=17).measure(costs, num_slots=1, stored=stored))


def test_with_stored_costs_nothing_runs_before_the_first_request(decoded: list[int]) -> None:
    context, costs = ScriptedContext(TABLE, n_ctx=128, n_batch=48), StepCosts()
    work = warmup.Warmup(context, (), max_outputs=17).measure(costs, num_slots=1, stored=measured(true_s))
    assert decoded == []
    next(work)
    assert decoded == [1]
    assert len([*work]) + 1 == len(decoded)
    assert set(decoded) == {1, 4}
    assert costs.seconds(4) == pytest.approx(true_s(4), rel=0.05)


def test_without_stored_costs_only_few_rows_run_before_the_first_request(decoded: list[int]) -> None:
    context, costs = ScriptedContext(TABLE, n_ctx=128, n_batch=48), StepCosts()
    work = warmup.Warmup(context, (), max_outputs=17).measure(costs, num_slots=1)
    assert {*decoded} == {1, 2, 4, 8}
    for rows in (2, 4, 8):
        assert costs.ratio(rows, 0) == pytest.approx(true_s(rows) / true_s(1), rel=0.05)
    before = len(decoded)
    assert len([*work]) == len(decoded) - before
    assert {*SIZES} <= {*decoded[before:]}


def test_a_slow_model_is_measured_for_less_than_a_second(decoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One row takes 0.4 s: two sizes are timed before the first request, three more are when nothing else is to do."""
    monkeypatch.setattr(sys.modules[__name__], "true_s", lambda rows: 0.4 * (1.0 + 0.05 * rows))
    context, costs = ScriptedContext(TABLE, n_ctx=128, n_batch=48), StepCosts()
    work = warmup.Warmup(context, (), max_outputs=17).measure(costs, num_slots=1)
    assert decoded == [1, 1, 2]
    list(work)
    assert {1, 2, 4} <= {*decoded}


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_stored_curve_that_is_wrong_is_measured_again(decoded: list[int], factor: float) -> None:
    costs = StepCosts()
    start(costs, measured(lambda rows: true_s(rows) * (factor if rows > 1 else 1.0)))
    assert {*SIZES} <= {*decoded}
    for rows in SIZES:
        assert costs.ratio(rows, 0) == pytest.approx(true_s(rows) / true_s(1), rel=0.1)


@pytest.mark.parametrize("level", [3.0, 1 / 3])
@pytest.mark.parametrize("many", [1.0, 1 / 3])
def test_real_steps_correct_stored_costs(level: float, many: float) -> None:
    """No idle moment came: a machine that is slower or faster by 3, and rows that cost three times as much."""
    harness = EngineHarness(TABLE, (Ngram(128),), spec=AUTO_SPEC)
    costs = harness.engine.controller.costs
    steady = measured(lambda rows: level * (1.0 + 0.05 * rows) * (many if rows > 1 else 1.0))
    assert costs.restore(steady)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    harness.run([ChatRequest(id="a", tokens=(5, 6, 7, 5, 6, 7), spec=AUTO_SPEC, params=params)])
    harness.engine.snapshot()  # the last steps are learned too
    ran = [cost for cost in costs.measured().decodes if cost.num_samples > 8]  # three of them are stored ones
    assert ran and math.log(costs.seconds(1) / 1.05) == pytest.approx(0.0, abs=0.15)
    for cost in ran:
        assert costs.seconds(cost.num_rows, 0) == pytest.approx(1.0 + 0.05 * cost.num_rows, rel=0.25)


def test_a_request_ends_idle_work() -> None:
    harness = EngineHarness(TABLE, (Ngram(128),), spec=AUTO_SPEC)
    done: list[int] = []

    def pieces() -> object:
        for piece in range(10):
            done.append(piece)
            yield

    harness.engine.idle_work = pieces()  # type: ignore[arg-type]
    assert harness.engine.has_work and harness.engine.step() == [] and done == [0]
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    answers = harness.run([ChatRequest(id="a", tokens=(5, 6), spec=AUTO_SPEC, params=params)])
    assert len(answers["a"].tokens) == 3
    assert done == [0] and not harness.engine.has_work


def test_idle_work_ends_by_itself() -> None:
    harness = EngineHarness(TABLE, (Ngram(128),), spec=AUTO_SPEC)
    harness.engine.idle_work = iter((None, None))
    for _ in range(3):
        assert harness.engine.has_work
        harness.engine.step()
    assert not harness.engine.has_work
