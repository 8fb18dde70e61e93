"""What was slow for a while is not held against drafting: costs and speeds recover soon after it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from doubles.drafts import chain
from doubles.hindsight import Hindsight
from doubles.property_tests import examples
from doubles.simulated_machine import BF16, Q4_0, Q8_0, SimulatedMachine
from doubles.simulation import DraftCosts, Profile, Simulation, Step, beyond, curve, plain_text, rate
from doubles.slow_time import SlowTime
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import Verdict
from eaglelocal.core.sampling import Sampled
from eaglelocal.speculation.costs.draft_costs import NUM_FALLEN, NUM_RECENT, RecentMedian
from eaglelocal.speculation.costs.draft_costs import DraftCosts as LearnedDraftCosts
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.cost_checks import RETRY_GAP, CostChecks
from eaglelocal.speculation.policy.step_report import StepReport

pytestmark = pytest.mark.full

CURVES = {"bf16": BF16, "q4_0": Q4_0}
GOOD = plain_text(Profile((0.9, 0.88, 0.86, 0.84, 0.82, 0.8)))
ONE_STEP_S = 0.001  # a time in which a single step begins
SLOW_TIMES = {
    "everything, briefly": SlowTime(seconds=2.0, decode=3.0, draft=3.0, other=3.0),
    "everything, long": SlowTime(seconds=60.0, decode=2.0, draft=2.0, other=2.0),
    "everything, again and again": SlowTime(seconds=5.0, decode=2.0, draft=2.0, other=2.0, times=4),
    "everything, by chance": SlowTime(seconds=5.0, decode=2.0, draft=2.0, other=2.0, spread=0.8),
    "drafted rows": SlowTime(seconds=60.0, decode=3.0, least_rows=2),
    "many rows": SlowTime(seconds=60.0, decode=3.0, least_rows=4),
    "the head": SlowTime(seconds=20.0, draft=3.0),
    "the clock, in a decode": SlowTime(seconds=ONE_STEP_S, decode=1e4),
    "the clock, in a draft": SlowTime(seconds=ONE_STEP_S, draft=1e6),
    "the clock, elsewhere": SlowTime(seconds=ONE_STEP_S, other=1e6),
}


def machine(curve_name: str, seed: int = 0) -> SimulatedMachine:
    return SimulatedMachine(seed=seed, ratios=curve(CURVES[curve_name]), hiccups=0.02)


def run_after(curve_name: str, slow_time: SlowTime, seed: int) -> list[Step]:
    """Return the steps of the 500 tokens that follow a slow time, which begins at any moment of a step."""
    run = Simulation(machine(curve_name, seed), {0: GOOD}, seed=seed, answer_tokens=100)
    run.run(400)
    later_s = random.Random(seed).uniform(0.0, 5.0) if slow_time.seconds > ONE_STEP_S else 0.0
    run.machine.slow_time = replace(slow_time, begin_s=run.machine.clock_s + later_s)
    while run.machine.clock_s < run.machine.slow_time.end_s:
        run.step()
    return run.run(500)


@pytest.mark.parametrize("slow_name", SLOW_TIMES)
@pytest.mark.parametrize("curve_name", CURVES)
def test_drafting_is_what_it_was_from_64_tokens_after_a_slow_time(curve_name: str, slow_name: str) -> None:
    best = Hindsight(machine(curve_name), DraftCosts()).best_fixed(GOOD)
    shares = [rate(beyond(run_after(curve_name, SLOW_TIMES[slow_name], seed), 64)) / best for seed in range(3)]
    assert statistics.mean(shares) > 0.93  # 0.97 and the noise of 1 300 tokens
    assert min(shares) > 0.8


@given(
    seconds=st.floats(0.1, 30.0),
    decode=st.floats(1.0, 3.0),
    draft=st.floats(1.0, 3.0),
    least_rows=st.integers(1, 9),
    spread=st.sampled_from((0.0, 0.5)),
    seed=st.integers(0, 99),
)
@examples(10)
def test_no_slow_time_ends_drafting(
    seconds: float, decode: float, draft: float, least_rows: int, spread: float, seed: int
) -> None:
    slow_time = SlowTime(seconds=seconds, decode=decode, draft=draft, least_rows=least_rows, spread=spread)
    steps = beyond(run_after("bf16", slow_time, seed), 200)
    assert sum(step.num_tokens for step in steps) > 2 * len(steps)


@pytest.mark.parametrize("seconds", [10.0, 60.0])
def test_a_head_that_was_dear_drafts_soon_after_it_is_cheap_again(seconds: float) -> None:
    """Asleep, it is tried in single steps, and wakes with the first that shows it."""
    slow_time = SlowTime(seconds=seconds, draft=20.0)
    assert statistics.mean(share_of_undisturbed(BF16, slow_time, 300, seed) for seed in range(6)) > 0.85


def test_rows_that_were_dear_are_drafted_soon_after_they_are_cheap_again() -> None:
    """Within 64 tokens: drafting may be tried a few times meanwhile, and one time shows it."""
    slow_time = SlowTime(seconds=60.0, decode=3.0, least_rows=2)
    assert statistics.mean(share_of_undisturbed(Q8_0, slow_time, 64, seed) for seed in range(6)) > 0.8


def share_of_undisturbed(ratios: Sequence[float], slow_time: SlowTime, num_tokens: int, seed: int) -> float:
    """Return the speed of the tokens after a slow time, relative to the same ones of a run without it."""
    sure, costs = plain_text(Profile((0.97,))), DraftCosts(step_s=0.0035, row_s=0.0003, drafted_overhead_s=0.002)
    machines = [SimulatedMachine(seed=seed, ratios=curve(ratios), hiccups=0.02) for _ in range(2)]
    run, beside = (Simulation(machine, {0: sure}, costs, seed=seed, paired=True) for machine in machines)
    run.run(400)
    run.machine.slow_time = replace(slow_time, begin_s=run.machine.clock_s)
    while run.machine.clock_s < run.machine.slow_time.end_s:
        run.steps.append(run.step())
    num_before = sum(step.num_tokens for step in run.steps)
    beside.run(num_before + num_tokens)
    return rate(run.run(num_tokens)) / rate(beyond(beside.steps, num_before))


# ---- costs
def measured(*sizes: int) -> StepCosts:
    costs = StepCosts()
    costs.calibrate({rows: [1.0 + 0.1 * rows] * 3 for rows in (1, *sizes)})
    return costs


def slow_down(costs: StepCosts, factor: float) -> None:
    for _ in range(30):
        costs.learn(1, 1.1)
        costs.learn(8, factor * 1.8)


def test_what_became_dear_is_known_to_have_been_cheap() -> None:
    costs = measured(4, 8)
    assert not costs.is_raised
    slow_down(costs, 3.0)
    dear = costs.optimistic_seconds(1, 8, 0)
    usual = costs.optimistic_seconds(1, 8, 0, as_usual=True)
    assert costs.is_raised
    assert dear[7] > 2.5 * usual[7]
    assert usual[7] == pytest.approx(1.8, rel=0.1)
    assert usual[0] == dear[0]


def test_costs_that_stay_are_usual_in_the_end() -> None:
    costs = measured(8)
    slow_down(costs, 3.0)
    for _ in range(400):
        costs.learn(8, 5.4)
        costs.learn(1, 1.1)
    assert costs.is_raised  # after a few minutes
    for _ in range(3000):
        costs.learn(8, 5.4)
        costs.learn(1, 1.1)
    assert not costs.is_raised


def test_what_was_cheap_for_a_minute_is_not_usual() -> None:
    costs = measured(8)
    slow_down(costs, 0.6)
    slow_down(costs, 1.0)
    assert not costs.is_raised
    slow_down(costs, 3.0)
    assert costs.optimistic_seconds(1, 8, 0, as_usual=True)[7] == pytest.approx(1.8, rel=0.1)


def checked(checks: CostChecks, num_rows: int, seconds: float, *, is_retry: bool = False) -> bool:
    """Return whether a step with so many rows changed what costs are believed to be."""
    draft = chain(*range(1, num_rows))
    report = StepReport(
        num_rows=num_rows,
        num_prefill_rows=0,
        num_cells=0,
        decode_s=seconds,
        draft_calls=(),
        other_s=0.0,
        verdicts={0: (draft, Verdict((), (Sampled(7),)))},
    )
    return checks.record(report, is_retry=is_retry)


@given(st.floats(0.8, 1.3))
def test_one_decode_shows_that_all_sizes_cost_what_is_usual(factor: float) -> None:
    costs = measured(4, 8)
    for _ in range(12):
        costs.learn(1, 1.1)
        costs.learn(4, 4.2)
        costs.learn(8, 5.4)
    checks = CostChecks(costs)
    assert not checked(checks, 1, 1.1)
    assert not checked(checks, 8, 5.4)
    assert not checked(checks, 8, 4.5)
    assert checked(checks, 8, 1.8 * factor)
    assert not costs.is_raised
    assert [costs.ratio(rows) for rows in (4, 8)] == pytest.approx([1.4 / 1.1, 1.8 / 1.1], rel=0.1)
    assert not checked(checks, 8, 1.8 * factor)


def test_a_dear_size_is_retried_until_one_shows_that_it_is_cheap() -> None:
    costs = measured(4, 8)
    checks = CostChecks(costs)
    for _ in range(2 * RETRY_GAP):
        checked(checks, 1, 1.1)
    assert not checks.is_retry_due, "nothing is expensive"
    slow_down(costs, 3.0)
    assert checks.is_retry_due
    checked(checks, 1, 1.1, is_retry=True)
    assert checks.is_retry_due, "nothing was drafted, which shows nothing"
    checked(checks, 8, 5.4, is_retry=True)
    for _ in range(RETRY_GAP):
        assert not checks.is_retry_due
        checked(checks, 1, 1.1)
    assert checks.is_retry_due


def test_what_ran_first_in_a_slow_time_costs_what_its_neighbors_do_when_that_is_over() -> None:
    costs = measured(4, 8)
    slow_down(costs, 3.0)
    for _ in range(30):
        costs.learn(6, 4.8)
    checks = CostChecks(costs)
    assert costs.seconds(6) == pytest.approx(4.8, rel=0.1)
    assert costs.optimistic_seconds(1, 6, 0, as_usual=True)[5] < 1.8
    assert checked(checks, 6, 1.6, is_retry=True)
    assert costs.seconds(6) == pytest.approx(1.6, rel=0.1)


@pytest.mark.parametrize(("is_noisy", "is_usual"), [(False, True), (True, False)])
def test_a_new_size_has_a_usual_cost_after_a_calm_time(is_noisy: bool, is_usual: bool) -> None:
    chance, costs = random.Random(1), measured(8)
    factors = [math.exp(chance.gauss(0.0, 0.5 if is_noisy else 0.02)) for _ in range(60)]
    for factor in factors:
        costs.learn(1, 1.1 * factor)
    for _ in range(20):
        costs.learn(4, 1.7)
        costs.learn(1, 1.1)
    for _ in range(30):
        costs.learn(1, 1.1)
        costs.learn(4, 5.1)
        costs.learn(8, 5.4)
    hoped = costs.optimistic_seconds(1, 4, 0, as_usual=True)[3] / costs.seconds(1, 0)
    assert (hoped > 1.35) is is_usual, "1.55, or 1.27 between its neighbors"


@given(st.floats(0.3, 0.9), st.integers(1, 4))
def test_no_size_is_priced_under_a_step_without_drafts(factor: float, least: int) -> None:
    """However cheap it seems: a decode of more rows does not take less time."""
    costs = measured(2, 3, 4, 8)
    for _ in range(40):
        costs.learn(1, 1.1)
        costs.learn(8, factor)
    seconds = costs.optimistic_seconds(least, 16, 0)
    assert min(seconds) == seconds[0]


@given(st.lists(st.floats(0.01, 1.0), max_size=30), st.floats(0.01, 1.0))
def test_a_median_follows_three_far_lower_samples(samples: list[float], level: float) -> None:
    recent = RecentMedian([10.0 * (1.0 + value) for value in samples] or [10.0])
    for _ in range(NUM_FALLEN):
        recent.add(level)
    assert recent.median == level


@given(st.floats(1.6, 50.0), st.integers(NUM_RECENT, 40))
def test_one_draft_step_shows_that_draft_steps_are_cheap_again(factor: float, num_dear: int) -> None:
    recent = RecentMedian([1.0] * 20 + [factor] * num_dear)
    assert recent.is_dear
    recent.add(1.05)
    assert recent.median == 1.05
    assert not recent.is_dear


def test_draft_steps_that_stay_dear_are_usual_in_the_end() -> None:
    recent = RecentMedian([1.0] * 20)
    num_dear = 0
    while not num_dear or recent.is_dear:
        recent.add(3.0)
        num_dear += recent.is_dear
    assert 500 < num_dear < 2000


def test_a_first_draft_step_that_was_too_cheap_makes_no_later_one_dear() -> None:
    recent = RecentMedian([0.1])
    for _ in range(NUM_RECENT):
        recent.add(1.0)
    assert not recent.is_dear


def test_a_drafter_is_as_dear_as_its_last_draft_step() -> None:
    """Sizes that were expensive for more slots than decode now do not count."""
    costs = LearnedDraftCosts()
    for cost in [1.0] * 20 + [3.0] * NUM_RECENT:
        costs.add_draft_step("head", 8, cost)
    assert costs.is_dear("head")
    assert not costs.is_dear("ngram")
    costs.add_draft_step("head", 1, 1.0)
    assert not costs.is_dear("head")


@given(st.lists(st.floats(1.0, 1.4), min_size=1, max_size=60))
def test_a_median_of_like_samples_is_of_the_last_fifteen(samples: list[float]) -> None:
    recent = RecentMedian(samples)
    last = sorted(samples[-15:])
    assert recent.median == last[len(last) // 2]
