"""What was slow for a while is not held against drafting: costs and speeds recover soon after it."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from doubles.hindsight import Hindsight
from doubles.property_tests import examples
from doubles.simulated_machine import BF16, Q4_0, Q8_0, SimulatedMachine
from doubles.simulation import DraftCosts, Profile, Simulation, Step, beyond, curve, plain_text, rate
from doubles.slow_time import SlowTime
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.speculation.costs.step_costs import StepCosts

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


def slow_down(costs: StepCosts, factor: float, num_steps: int = 12) -> None:
    for _ in range(num_steps):
        costs.learn(1, 1.1)
        costs.learn(4, factor * 1.4)
        costs.learn(8, factor * 1.8)


def run_plain(costs: StepCosts, num_steps: int) -> None:
    for _ in range(num_steps):
        costs.learn(1, 1.1)


@given(st.floats(1.5, 8.0))
def test_what_became_dear_and_does_not_run_is_believed_to_return(factor: float) -> None:
    costs = measured(4, 8)
    slow_down(costs, factor)
    assert costs.ratio(8) == pytest.approx(factor * 1.8 / 1.1, rel=0.1)
    run_plain(costs, 100)
    assert costs.ratio(8) < 1.2 * 1.8 / 1.1
    assert costs.seconds(1) == pytest.approx(1.1, rel=0.05)


@given(st.floats(2.0, 6.0))
def test_what_is_still_dear_is_known_after_one_decode(factor: float) -> None:
    costs = measured(4, 8)
    slow_down(costs, factor)
    run_plain(costs, 40)
    costs.learn(8, factor * 1.8)
    assert costs.ratio(8) == pytest.approx(factor * 1.8 / 1.1, rel=0.2)


def test_the_longer_it_is_dear_the_later_it_is_tried_again() -> None:
    waits = []
    for num_steps in (10, 200):
        costs = measured(4, 8)
        slow_down(costs, 3.0, num_steps)
        waits.append(0)
        while costs.ratio(8) > 1.5 * 1.8 / 1.1:
            run_plain(costs, 1)
            waits[-1] += 1
    assert waits[0] < 40 < waits[1] < 200


@given(st.floats(0.9, 1.1))
def test_one_decode_shows_that_all_sizes_cost_what_is_usual(factor: float) -> None:
    costs = measured(4, 8)
    slow_down(costs, 3.0)
    costs.learn(8, 1.8 * factor)
    assert [costs.ratio(rows) for rows in (4, 8)] == pytest.approx([1.4 / 1.1, 1.8 / 1.1], rel=0.2)


def test_one_draft_step_shows_that_draft_steps_are_cheap_again() -> None:
    costs = measured(4, 8)
    for seconds in (*[0.1] * 30, *[2.0] * 10):
        run_plain(costs, 1)
        costs.learn_drafts("head", 1, [seconds])
    assert costs.draft_seconds("head", 1) == pytest.approx(2.0, rel=0.1)
    run_plain(costs, 1)
    costs.learn_drafts("head", 1, [0.11])
    assert costs.draft_seconds("head", 1) == pytest.approx(0.11, rel=0.2)


def test_costs_that_stay_are_usual_in_the_end() -> None:
    costs = measured(4, 8)
    slow_down(costs, 3.0, 400)
    run_plain(costs, 100)
    assert costs.ratio(8) > 2.0 * 1.8 / 1.1


def test_a_machine_that_is_slow_as_a_whole_raises_no_size() -> None:
    costs = measured(4, 8)
    for _ in range(20):
        costs.learn(8, 3.0 * 1.8)
    assert costs.ratio(8) == pytest.approx(1.8 / 1.1, rel=0.15)
    assert not costs.is_raised


@given(st.floats(0.3, 0.9), st.integers(1, 4))
def test_no_size_is_priced_under_a_step_without_drafts(factor: float, least: int) -> None:
    """However cheap it seems: a decode of more rows does not take less time."""
    costs = measured(2, 3, 4, 8)
    for _ in range(40):
        costs.learn(1, 1.1)
        costs.learn(8, factor)
    seconds = costs.optimistic_seconds(least, 16, 0)
    assert min(seconds) == seconds[0]
