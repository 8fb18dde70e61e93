"""Step costs, against a simulated machine that drifts, steps and hiccups."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from doubles.property_tests import examples
from doubles.simulated_machine import BF16, Q4_0, Q8_0, SimulatedMachine, drifting
from doubles.tiers import some_of
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.stats import SizeCost
from eaglelocal.speculation.costs.cost_curve import (
    BEYOND,
    OPTIMISM,
    REACH,
    WELL_KNOWN,
    interpolate_costs,
    make_optimistic,
)
from eaglelocal.speculation.costs.saved_costs import MAX_ROWS, SavedCosts
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.token_costs import TokenCosts

STARTED_WITH = (1, 2, 4, 8)
Choose = Callable[[SimulatedMachine, int], int]


def mixed(machine: SimulatedMachine, step: int) -> int:
    return machine.chance.choice([1, 3, 4, 5, 6, 9])


def in_runs(machine: SimulatedMachine, step: int) -> int:
    """The same size forty times, then another: nothing is measured beside it."""
    return (4, 5, 1, 4, 8, 4, 6)[step // 40 % 7]


def mostly_one(machine: SimulatedMachine, step: int) -> int:
    return 5 if machine.chance.random() < 0.9 else machine.chance.choice([3, 4, 6])


def calibrated(machine: SimulatedMachine) -> StepCosts:
    costs = StepCosts()
    seconds: dict[int, list[float]] = {rows: [] for rows in STARTED_WITH}
    for _ in range(3):
        for rows, took in seconds.items():
            took.append(machine.decode(rows))
    costs.calibrate(seconds)
    return costs


def run(costs: StepCosts, machine: SimulatedMachine, choose: Choose, num_steps: int, at_once: int = 1) -> None:
    """`at_once`: steps that are learned together."""
    seen: dict[int, list[float]] = {}
    for step in range(num_steps):
        rows = choose(machine, step)
        seen.setdefault(rows, []).append(machine.decode(rows))
        if (step + 1) % at_once == 0 or step + 1 == num_steps:
            for size, took in seen.items():
                costs.learn_many(size, took)
            seen = {}


def errors(costs: StepCosts, machine: SimulatedMachine) -> list[float]:
    """Of every size that was seen."""
    seen = [rows for rows in range(1, 18) if costs.num_samples(rows)]
    return [abs(costs.seconds(rows, 0) / machine.true_seconds(rows) - 1) for rows in seen]


def measured() -> StepCosts:
    costs = StepCosts()
    costs.calibrate({1: [1.0, 0.99, 1.0, 9.0], 5: [2.0, 2.0, 2.0, 2.1]})
    return costs


# ---- before and between measurements
def test_before_it_is_measured_every_size_costs_the_same() -> None:
    costs = StepCosts()
    assert not costs.is_known
    assert costs.ratio(7) == 1.0
    assert costs.seconds(7) == 0.0
    assert costs.plain_seconds(2.0, num_rows=5, num_plain_rows=1) == 2.0
    assert costs.measured().decodes == ()


@pytest.mark.parametrize(("rows", "ratio"), [(0, 0.0), (1, 1.0), (3, 1.5), (5, 2.0), (10, 4.0)])
def test_medians_where_measured_lines_between_shares_beyond(rows: int, ratio: float) -> None:
    assert measured().ratio(rows) == pytest.approx(ratio)


def test_beyond_a_cliff_it_goes_on_rising() -> None:
    assert interpolate_costs({1: 1.0, 2: 1.1, 3: 3.0}, 5) == pytest.approx([0, 1, 1.1, 3, 4.9, 6.8])


@given(st.dictionaries(st.integers(1, 64), st.floats(0.1, 100), min_size=1), st.integers(1, 100))
def test_no_size_looks_free(points: dict[int, float], rows: int) -> None:
    points = dict(sorted(points.items()))
    last = max(points)
    table = interpolate_costs(points, max(rows, last))
    assert all(table[size] == pytest.approx(cost) for size, cost in points.items())
    if rows > last:
        assert table[rows] >= 0.999 * points[last] * rows / last


def test_what_was_never_seen_is_said_to_be_uncertain() -> None:
    costs = measured()
    assert costs.num_samples(5) == 4
    assert costs.num_samples(4) == costs.num_samples(9) == 0
    assert costs.deviation(5) < costs.deviation(4) < costs.deviation(9)
    assert costs.deviation(1) == 0.0


# ---- speed-up estimates
@given(st.integers(1, 64), st.floats(1e-4, 10))
def test_a_step_without_drafts_costs_itself(rows: int, seconds: float) -> None:
    assert measured().plain_seconds(seconds, num_rows=rows, num_plain_rows=rows) == pytest.approx(seconds)


@given(st.floats(1e-4, 10), st.floats(1e-2, 100))
def test_a_slower_minute_cancels(seconds: float, factor: float) -> None:
    costs = measured()
    one = costs.plain_seconds(seconds, num_rows=5, num_plain_rows=1)
    assert costs.plain_seconds(seconds * factor, num_rows=5, num_plain_rows=1) == pytest.approx(one * factor)


# ---- learning
@pytest.mark.parametrize("at_once", [1, 2, 16])
@pytest.mark.parametrize("choose", [mixed, in_runs, mostly_one])
@pytest.mark.parametrize("ratios", some_of([(BF16,), (Q8_0,), (Q4_0,)]))
def test_after_two_hundred_steps_of_drift_and_hiccups_seen_sizes_are_known(
    ratios: Sequence[float], choose: Choose, at_once: int
) -> None:
    found: list[float] = []
    for seed in range(8):
        machine = SimulatedMachine(seed, ratios, drifting)
        costs = calibrated(machine)
        run(costs, machine, choose, 200, at_once)
        for _ in range(20):
            run(costs, machine, choose, max(5, at_once), at_once)
            found += errors(costs, machine)
    assert statistics.median(found) < 0.05
    assert sorted(found)[int(0.9 * len(found))] < 0.12


@pytest.mark.parametrize("at_once", [1, 2, 16])
@pytest.mark.parametrize("choose", [mixed, in_runs, mostly_one])
def test_thirty_steps_after_a_sudden_slow_down_it_is_known(choose: Choose, at_once: int) -> None:
    found: list[float] = []
    for seed in range(8):
        machine = SimulatedMachine(seed, level=lambda step: 0.07 if step < 200 else 0.105)
        costs = calibrated(machine)
        run(costs, machine, choose, 200 + 30 - machine.step, at_once)
        found += errors(costs, machine)
    assert statistics.median(found) < 0.06


@pytest.mark.parametrize("at_once", [1, 2, 16])
def test_a_run_of_one_size_does_not_bend_the_curve(at_once: int) -> None:
    """Up and down by 30 %: with nothing beside it, all of it is the level's."""
    machine = SimulatedMachine(level=drifting)
    costs = calibrated(machine)
    before = costs.ratio(8) / costs.ratio(4)
    run(costs, machine, lambda *_: 4, 600, at_once)
    assert costs.ratio(8) / costs.ratio(4) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("at_once", [1, 2, 16])
def test_hiccups_of_one_size_do_not_move_the_level(at_once: int) -> None:
    """One decode of ten takes ten times as long."""
    chance = random.Random(3)
    costs = StepCosts()
    costs.calibrate({1: [0.07] * 3, 5: [0.1] * 3})
    levels = []
    for _ in range(60):
        took = [0.1 * chance.gauss(1.0, 0.02) * (10.0 if chance.random() < 0.1 else 1.0) for _ in range(at_once)]
        costs.learn_many(5, took)
        levels.append(abs(math.log(costs.seconds(5, 0) / 0.1)))
    assert max(levels) < 0.16


def test_many_decodes_count_as_many() -> None:
    costs = measured()
    before = costs.num_samples(5)
    costs.learn_many(5, [2.0] * 16)
    costs.learn_many(5, [2.0] * 2)
    assert costs.num_samples(5) == before + 18


def test_a_busy_machine_is_not_chased() -> None:
    """Two decodes of five wait for other programs, up to five times as long as they take."""
    found: list[float] = []
    for seed in range(8):
        machine = SimulatedMachine(seed, BF16, hiccups=0.4)
        costs = calibrated(machine)
        run(costs, machine, mixed, 600)
        assert costs.measured().noise > 0.2
        found += [abs(costs.ratio(rows, 0) / BF16[rows - 1] - 1) for rows in (3, 4, 5, 6, 9)]
    assert statistics.median(found) < 0.15


def test_one_size_that_was_misjudged_is_found_out() -> None:
    machine = SimulatedMachine(hiccups=0.0)
    costs = StepCosts()
    costs.calibrate({1: [0.07] * 3, 4: [0.6] * 3, 5: [0.33] * 3})
    run(costs, machine, lambda _, step: (1, 5, 4)[step % 3], 60)
    assert costs.ratio(4, 0) == pytest.approx(Q8_0[3], rel=0.08)


@examples(25)
@given(st.integers(0, 10_000), st.lists(st.floats(0.05, 0.8), min_size=16, max_size=16))
def test_any_steps_are_learnt(seed: int, rises: list[float]) -> None:
    ratios = [1.0]
    for rise in rises:
        ratios.append(min(8.0, ratios[-1] * (1 + rise) if rise > 0.3 else ratios[-1] + rise / 4))
    machine = SimulatedMachine(seed, ratios, drifting)
    costs = calibrated(machine)
    found: list[float] = []
    for num_steps in (240, 30, 30):  # right behind a few hiccups in a row it may be off for a moment
        run(costs, machine, lambda machine, _: machine.chance.randint(1, 9), num_steps)
        found += errors(costs, machine)
    assert statistics.median(found) < 0.12


def test_context_is_learnt_for_all_sizes_from_a_few() -> None:
    machine = SimulatedMachine(ratios=BF16, level=drifting, per_cell=0.08, per_row_cell=0.1)
    costs = calibrated(machine)
    for step in range(1500):
        rows, cells = (1, 3, 5)[step % 3], step * 7 % 3000
        costs.learn(rows, machine.decode(rows, cells), num_cells=cells)
    for rows in (1, 2, 5, 8):
        assert costs.seconds(rows, 2500) == pytest.approx(machine.true_seconds(rows, 2500), rel=0.12)
    context = costs.measured().context
    assert context is not None
    assert context.per_row_cell_s == pytest.approx(0.1 * 0.07 / 1000, rel=0.4)


def test_context_makes_rows_dearer() -> None:
    costs = measured()
    assert costs.ratio(5, 4000) > costs.ratio(5, 100) > costs.ratio(5, 0) == pytest.approx(2.0)
    costs.learn(1, 1.2, num_cells=4000)
    assert costs.ratio(5) == costs.ratio(5, 4000)


@given(st.lists(st.tuples(st.integers(0, 600), st.floats(allow_nan=True, allow_infinity=True)), max_size=60))
def test_whatever_is_reported_costs_stay_positive_and_finite(steps: list[tuple[int, float]]) -> None:
    costs = measured()
    for rows, seconds in steps:
        costs.learn(rows, seconds, num_cells=rows)
    for rows in (1, 4, 17, MAX_ROWS):
        assert 0.0 < costs.seconds(rows, 1000) < math.inf


def test_a_long_life_among_many_sizes() -> None:
    """More sizes than are kept apart, at 16 slots."""
    machine = SimulatedMachine(ratios=[1 + 0.1 * rows for rows in range(MAX_ROWS)], level=drifting)
    costs = calibrated(machine)
    run(costs, machine, lambda machine, _: machine.chance.randint(1, MAX_ROWS), 3000)
    for rows in (1, 20, 100, 250):
        assert costs.seconds(rows, 0) == pytest.approx(machine.true_seconds(rows), rel=0.15)


# ---- draft steps and the rest
def test_draft_steps_by_drafter_and_rows() -> None:
    costs = measured()
    assert costs.draft_seconds("head", 1) == 0.0
    for seconds in (0.02, 0.02, 0.5, 0.02, 0.021):
        costs.learn_drafts("head", 1, [seconds])
    costs.learn_drafts("head", 3, [0.03])
    costs.learn_drafts("model", 1, [0.3])
    assert costs.draft_seconds("head", 1) == pytest.approx(0.02, rel=0.15), "a single hiccup"
    assert costs.draft_seconds("head", 2) == pytest.approx(0.025, rel=0.15)
    assert costs.draft_seconds("head", 6) == pytest.approx(0.06, rel=0.05)
    assert costs.draft_seconds("model", 1) == pytest.approx(0.3)
    assert costs.draft_seconds("lookup", 1) == 0.0


def test_draft_steps_slow_down_with_the_machine() -> None:
    costs = measured()
    costs.learn_drafts("head", 1, [0.02])
    for _ in range(30):
        costs.learn(1, 1.5)
    assert costs.draft_seconds("head", 1) == pytest.approx(0.03, rel=0.05)


def test_the_rest_of_a_step() -> None:
    costs = measured()
    assert costs.overhead(True, 1) == 0.0
    costs.learn_overheads(False, [(1, 0.01)])
    assert costs.overhead(True, 1) == pytest.approx(0.01, rel=0.02)
    costs.learn_overheads(True, [(1, 0.03)])
    assert costs.overhead(True, 1) == pytest.approx(0.03, rel=0.02)
    assert costs.overhead(False, 1) == pytest.approx(0.01, rel=0.02)


def test_the_rest_of_a_step_grows_with_its_rows() -> None:
    costs = measured()
    for rows in (4, 64, 16, 30) * 100:
        costs.learn_overheads(True, [(rows, 0.012 + 0.002 * rows)])
    known = [costs.overhead(True, rows) for rows in (1, 4, 34, 64, 500)]
    assert known == pytest.approx([0.014, 0.02, 0.08, 0.14, 1.012], rel=0.05)
    assert costs.overhead(False, 4) == pytest.approx(0.02, rel=0.05), "a new kind costs what the other one does"


def test_steps_of_one_size_do_not_tell_what_a_row_takes() -> None:
    costs = measured()
    for seconds in (0.01, 0.02) * 20:
        costs.learn_overheads(True, [(16, seconds)])
    assert costs.drafted_row_s == 0.0
    assert 0.01 < costs.overhead(True, 16) < 0.02


def test_what_awake_drafters_cost_does_not_depend_on_where_they_ran() -> None:
    costs = measured()
    for rows in (40, 64, 52, 46) * 12:
        costs.learn_overheads(True, [(rows, 0.012 + 0.002 * rows)])
    for rows in (1, 2, 3, 4) * 12:
        costs.learn_overheads(False, [(rows, 0.003 + 0.002 * rows)])
    token_costs = TokenCosts(costs, lambda: 1.0, num_base_rows=1, num_cells=0)
    assert token_costs.drafted == pytest.approx(0.009, rel=0.1)


def test_a_single_slow_step_does_not_tell_what_a_row_takes() -> None:
    costs = measured()
    for rows in (4, 16) * 12:
        costs.learn_overheads(True, [(rows, 0.01)])
    costs.learn_overheads(True, [(16, 60.0)])  # suspended
    assert costs.drafted_row_s < 0.0005


@pytest.mark.parametrize("num_prefill_rows", [0, 256])
def test_a_drafted_row_pays_its_part_of_the_host_time(num_prefill_rows: int) -> None:
    costs = measured()
    token_costs = TokenCosts(
        costs,
        lambda: 1.0,
        num_base_rows=4 + num_prefill_rows,
        num_prefill_rows=num_prefill_rows,
        num_cells=0,
    )
    before, drafted = token_costs.rows(60), token_costs.drafted
    for rows in (4, 64, 16, 30) * 100:
        costs.learn_overheads(True, [(rows, 0.012 + 0.002 * rows)])
    for _ in range(12):
        costs.learn_overheads(False, [(4, 0.01)])
    after = token_costs.rows(60)
    assert after[60] - before[60] == pytest.approx(0.12, rel=0.05)
    assert (drafted, token_costs.drafted) == (0.0, pytest.approx(0.01, rel=0.1))


def test_what_was_measured_is_reported() -> None:
    costs = measured()
    costs.learn_drafts("head", 1, [0.02])
    reported = costs.measured()
    assert [(cost.num_rows, cost.num_samples) for cost in reported.decodes] == [(1, 4), (5, 4)]
    assert [cost.seconds for cost in reported.decodes] == pytest.approx([1.0, 2.0])
    assert reported.draft_steps[0][0] == "head"
    assert reported.context is None


# ---- on disk
def test_what_was_learnt_outlives_the_process() -> None:
    machine = SimulatedMachine()
    costs = calibrated(machine)
    run(costs, machine, mixed, 200)
    costs.learn_drafts("head", 2, [0.01])
    costs.learn_overheads(True, [(1, 0.002)])
    again = StepCosts()
    assert again.restore(json.loads(json.dumps(costs.state())))
    for rows in range(1, 20):
        assert again.seconds(rows, 700) == pytest.approx(costs.seconds(rows, 700), rel=0.05)  # it is believed less
        assert again.num_samples(rows) == costs.num_samples(rows)
    assert again.draft_seconds("head", 2) == pytest.approx(costs.draft_seconds("head", 2))
    assert again.overhead(False, 1) == pytest.approx(costs.overhead(False, 1))


def test_the_noise_is_kept_on_disk_and_unknown_in_files_without_it() -> None:
    costs = calibrated(SimulatedMachine())
    state = json.loads(json.dumps(costs.state()))
    assert SavedCosts.read(state).measured().noise == pytest.approx(costs.measured().noise)
    assert costs.measured().noise > 0
    del state["noise"]
    assert SavedCosts.read(state).measured().noise == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_costs_on_disk_are_read_without_restoring_them(seed: int) -> None:
    machine = SimulatedMachine(seed)
    costs = calibrated(machine)
    run(costs, machine, (mixed, in_runs, mostly_one)[seed % 3], 40 * seed)
    if seed % 2:
        costs.learn_drafts("head", 2, [0.01])
        costs.learn_drafts("ngram", 1, [0.001])
        costs.learn_overheads(seed > 3, [(1, 0.002)])
    state = json.loads(json.dumps(costs.state()))
    again = StepCosts()
    assert again.restore(state)
    expected, read = again.measured(), SavedCosts.read(state).measured()
    for kind in ("decodes", "draft_steps", "plain_overhead_s", "drafted_overhead_s"):
        assert flatten(getattr(read, kind)) == pytest.approx(flatten(getattr(expected, kind)))


def flatten(costs: object) -> list[float]:
    """The numbers of costs, in order; names of drafters are left out."""
    if isinstance(costs, tuple):
        return [number for cost in costs for number in flatten(cost)]
    if isinstance(costs, SizeCost):
        return [costs.num_rows, costs.seconds, costs.num_samples]
    return [costs] if isinstance(costs, float) else []


def test_a_restored_curve_keeps_its_shape_on_a_slower_day() -> None:
    machine = SimulatedMachine(hiccups=0.0)
    costs = calibrated(machine)
    run(costs, machine, mixed, 200)
    again = StepCosts()
    again.restore(costs.state())
    slower = SimulatedMachine(1, level=lambda step: 0.14, hiccups=0.0)
    run(again, slower, mostly_one, 15)
    assert again.seconds(9, 0) == pytest.approx(slower.true_seconds(9), rel=0.12)


VALID = measured().state()


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        "costs",
        {},
        {**VALID, "format": 99},
        {**VALID, "level": math.nan},
        {**VALID, "slopes": [0.1]},
        {**VALID, "sizes": [[0, 1.0, 0.1, 3]]},
        {**VALID, "sizes": [[2, -1.0, 0.1, 3]]},
        {**VALID, "sizes": [[2.5, 1.0, 0.1, 3]]},
        {**VALID, "drafters": {"head": 3}},
        {**VALID, "overheads": [1.0]},
        {**VALID, "row_overheads": [1.0]},
        {**VALID, "row_overheads": [1.0, -1.0]},
        {**VALID, "sizes": [[10**400, 1.0, 0.1, 3]]},
        {**VALID, "sizes": [[2, 1.0, 0.1, 10**400]]},
    ],
)
def test_foreign_states_change_nothing(state: object) -> None:
    costs = measured()
    assert not costs.restore(state)
    assert costs.state() == VALID


def test_the_first_decode_is_believed_without_a_calibration() -> None:
    costs = StepCosts()
    costs.learn(1, 0.01)
    costs.learn_drafts("head", 1, [0.002])
    assert costs.seconds(1) == pytest.approx(0.01)
    assert costs.draft_seconds("head", 1) == pytest.approx(0.002)


def test_the_noise_of_an_earlier_engine_is_known_again() -> None:
    costs = StepCosts()
    assert costs.restore({**VALID, "noise": 0.4})
    assert costs.measured().noise == pytest.approx(0.4)


def test_a_draft_step_that_is_cheap_again_shows_that_decodes_are() -> None:
    costs = StepCosts()
    costs.calibrate({rows: [1.0 + 0.1 * rows] * 3 for rows in (1, 8)})
    for _ in range(12):
        costs.learn(1, 1.1)
        costs.learn(8, 5.4)
        costs.learn_drafts("head", 1, [0.1])
    for _ in range(6):
        costs.learn(1, 1.1)
        costs.learn(8, 5.4)
        costs.learn_drafts("head", 1, [0.5])
    assert costs.seconds(8) == pytest.approx(5.4, rel=0.1)
    costs.learn_drafts("head", 1, [0.1])
    assert costs.seconds(8) < 2.2


# ---- what is hoped
def hope_of(points: dict[int, tuple[float, float]], most: int) -> list[float]:
    """Of costs, with how far each is from settled."""
    costs = {rows: cost for rows, (cost, _) in points.items()}
    return make_optimistic(costs, {rows: WELL_KNOWN + doubt for rows, (_, doubt) in points.items()}, most, noise=0.0)


def test_of_what_is_well_known_nothing_is_hoped() -> None:
    machine = SimulatedMachine(hiccups=0.0, noise=0.01, per_cell=0.02)
    costs = StepCosts()
    costs.calibrate({rows: [machine.decode(rows) for _ in range(3)] for rows in range(1, 18)})
    costs.learn(3, machine.decode(3, 900), num_cells=900)
    asked = [costs.seconds(rows, 1200) for rows in range(2, 18)]
    assert costs.optimistic_seconds(2, 17, 1200) == pytest.approx(asked)
    assert StepCosts().optimistic_seconds(2, 39, 1200) == [0.0] * 38


@pytest.mark.parametrize(
    ("points", "rows", "cost"),
    [
        ({1: (1.0, 0.0), 2: (2.3, 0.0)}, 4, 2.3 * 2**BEYOND),  # as far as a try
        ({1: (1.0, 0.0), 2: (2.3, 0.0)}, 5, 2.3 + 3 * 1.3),  # and no further
        ({1: (1.0, 0.0), 2: (1.0, 0.0)}, 4, 2**BEYOND),
        ({1: (1.0, 0.0), 9: (3.0, 0.2)}, 9, 3.0 * math.exp(-0.2 * OPTIMISM)),  # timed once
        ({1: (1.0, 0.0), 9: (3.0, 0.0)}, 5, 2.0 * math.exp(-0.25 * OPTIMISM)),  # never
        ({1: (1.0, 0.0), 9: (1.1, 0.0)}, 2, 1.0),  # no less than the cheaper neighbour
    ],
)
def test_a_size_of_which_little_is_known_may_be_cheaper(
    points: dict[int, tuple[float, float]], rows: int, cost: float
) -> None:
    assert hope_of(points, 20)[rows] == pytest.approx(cost)


@given(
    st.dictionaries(st.integers(2, 40), st.tuples(st.floats(0.5, 50.0), st.floats(0.0, 1.0)), min_size=1),
    st.integers(1, 80),
)
def test_hope_is_never_less_than_doubt_allows(known: dict[int, tuple[float, float]], most: int) -> None:
    points = dict(sorted(({1: (1.0, 0.0)} | known).items()))
    believed = interpolate_costs({rows: cost for rows, (cost, _) in points.items()}, most)
    found = hope_of(points, most)
    assert len(found) == most + 1 and found[0] == 0.0 and found[1:2] == believed[1:2]
    for rows, cost in enumerate(found):
        if rows in points:
            assert cost <= believed[rows] * (1 + 1e-9)
        elif rows > REACH * max(points):
            assert cost > 0.0
        elif rows:
            assert cost >= min(c * math.exp(-OPTIMISM * d) for c, d in points.values()) * (1 - 1e-9)


def test_no_size_is_hoped_to_cost_less_than_a_step_without_drafts() -> None:
    """Sixteen slots: a slot's first row would else seem to give seconds back, and what is promised turns negative."""
    took = [(1, 1.0, 1.03), (16, 1.5, 1.54), (32, 1.6, 6.0), (48, 1.7, 1.73)]
    costs = StepCosts()
    costs.calibrate({rows: [ratio, 1.02 * ratio, slowest] for rows, ratio, slowest in took})
    found = costs.optimistic_seconds(16, 64, 0)
    assert found[0] == min(found)
    assert found[16] < costs.seconds(32, 0)


def test_what_first_ran_far_into_a_context_costs_what_it_does_at_its_beginning() -> None:
    """What the context adds is a guess then, larger than the decode: nothing that is left may be taken for the size."""
    costs = StepCosts()
    costs.calibrate({1: [1.0] * 3, 2: [1.1] * 3})
    for rows in (5, 5, 9, 1, 5, 9):
        costs.learn(rows, 1.5, num_cells=100_000)
    assert 0.3 < costs.seconds(5, 0) / costs.seconds(1, 0) < 5.0
    assert 0.3 < costs.seconds(9, 0) / costs.seconds(1, 0) < 9.0


def test_a_size_that_met_a_hiccup_at_first_is_tried_again() -> None:
    costs = StepCosts()
    costs.calibrate({rows: [1.0 + rows / 10] * 3 for rows in (1, 2, 4, 8)})
    believed = costs.seconds(6, 0)
    costs.learn(6, 4.0 * believed)
    for _ in range(30):
        costs.learn(1, 1.1)
    assert costs.optimistic_seconds(1, 6, 0)[5] < 2.2 * believed
    for _ in range(3):
        costs.learn(6, 4.0 * believed)
    assert costs.optimistic_seconds(1, 6, 0)[5] > 3.0 * believed, "it was none"


@pytest.mark.parametrize("seconds", [1e7, 1e305])
def test_a_machine_that_slept_during_a_decode_leaves_a_state_that_is_understood(seconds: float) -> None:
    costs = measured()
    costs.learn(6, seconds)
    assert 0.0 < costs.seconds(MAX_ROWS, 1000) < math.inf
    assert StepCosts().restore(costs.state())


# ---- on a GPU
def test_the_first_of_a_kind_makes_its_kernels_and_is_not_learned_from() -> None:
    costs = StepCosts(makes_kernels=True)
    costs.calibrate({1: [0.01] * 3, 4: [0.012] * 3})
    costs.learn(7, 3.0)
    costs.learn_drafts("head", 1, [2.0])
    costs.learn_overheads(True, [(1, 1.0)])
    assert costs.num_samples(7) == 0
    assert costs.draft_seconds("head", 1) == costs.overhead(True, 1) == 0.0
    costs.learn(7, 0.013)
    costs.learn_drafts("head", 1, [0.001])
    costs.learn_overheads(True, [(1, 0.0005)])
    assert costs.num_samples(7) == 1
    assert costs.seconds(7) < 0.02
    assert costs.draft_seconds("head", 1) == pytest.approx(0.001)
    assert costs.overhead(True, 1) == pytest.approx(0.0005)
    costs.learn(4, 0.012)  # what calibration has run is known from the start
    assert costs.num_samples(4) == 4


def test_of_many_that_are_learned_together_the_first_is_left_out() -> None:
    costs = StepCosts(makes_kernels=True)
    costs.calibrate({1: [0.01] * 3, 4: [0.012] * 3})
    costs.learn_many(2, [5.0, 0.011])
    assert costs.num_samples(2) == 1
    assert costs.seconds(2) < 0.02


def test_on_a_processor_every_sample_counts() -> None:
    costs = StepCosts()
    costs.learn(1, 0.01)
    costs.learn_drafts("head", 1, [0.002])
    assert costs.num_samples(1) == 1
    assert costs.draft_seconds("head", 1) == pytest.approx(0.002)


def test_a_kind_of_step_that_was_never_seen_costs_what_the_other_one_does() -> None:
    costs = StepCosts()
    costs.calibrate({1: [0.01] * 3, 4: [0.012] * 3})
    costs.learn_overheads(True, [(1, 0.003)] * 3)
    assert costs.overhead(False, 1) == costs.overhead(True, 1) == pytest.approx(0.003)
    costs.learn_overheads(False, [(1, 0.0007)] * 3)
    assert costs.overhead(False, 1) == pytest.approx(0.0007, rel=0.1), "what was seen counts"
    assert costs.overhead(True, 1) == pytest.approx(0.003, rel=0.02)


def test_a_wider_draft_step_that_never_ran_is_hoped_to_be_cheap() -> None:
    costs = StepCosts()
    costs.calibrate({1: [0.1]})
    costs.learn_drafts("head", 1, [0.01])
    assert costs.untried_draft_seconds("head", 2) < 0.012 < costs.draft_seconds("head", 2)
    assert costs.untried_draft_seconds("head", 3) == costs.draft_seconds("head", 3)  # two first
    costs.learn_drafts("head", 2, [0.018])
    assert costs.untried_draft_seconds("head", 2) == pytest.approx(0.018, rel=0.02)


def test_a_first_draft_for_many_slots_that_was_slow_is_soon_forgotten() -> None:
    """Believed for good, drafts for so many would never be tried again."""
    costs = measured()
    unit_s = costs.seconds(1)
    for _ in range(8):
        costs.learn_drafts("head", 1, [0.1 * unit_s])
    costs.learn_drafts("head", 4, [9.0 * unit_s])
    for _ in range(60):
        costs.learn(1, unit_s)
    assert costs.draft_seconds("head", 4) < 3.0 * unit_s
    for _ in range(4):
        costs.learn_drafts("head", 4, [0.8 * unit_s])
    assert costs.draft_seconds("head", 4) == pytest.approx(0.8 * unit_s, rel=0.1)
