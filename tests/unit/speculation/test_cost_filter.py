"""The filter behind step costs: what it keeps apart, and that it stays sound."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from doubles.simulated_machine import BF16, SimulatedMachine, drifting

from eaglelocal.speculation.costs.cost_filter import DECODE, MAX_SIZES, CostFilter, Work


def decode(num_rows: int) -> Work:
    return Work(DECODE, num_rows)


def test_the_covariance_stays_one() -> None:
    machine = SimulatedMachine(ratios=BF16, level=drifting, per_row_cell=0.1)
    known = CostFilter()
    for rows in (1, 2, 3, 5, 8):
        known.set_ratio(decode(rows), BF16[rows - 1], 0.1, num_samples=3)
    for step in range(20_000):
        rows, cells = (5 if step % 4000 < 2000 else machine.chance.choice([1, 2, 3, 5])), step % 3000
        known.learn(decode(rows), machine.decode(rows, cells), cells / 1000, ratio=1.0)
    covariance = known._covariance
    assert np.array_equal(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0.0
    ratio = math.exp(known.log_seconds(decode(3)) - known.log_seconds(decode(1)))
    assert ratio == pytest.approx(BF16[2], rel=0.1)
    assert known.deviation(decode(8), decode(1)) > known.deviation(decode(5), decode(1))  # long not seen


@pytest.mark.parametrize(("spread", "low", "high"), [(0.6, 0.2, 0.9), (0.02, 0.01, 0.03)])
def test_medians_teach_how_uneven_decodes_are(spread: float, low: float, high: float) -> None:
    """Where one size runs all the time there are no others."""
    known, chance = CostFilter(), random.Random(2)
    known.set_ratio(decode(1), 1.0, 0.0, num_samples=3)
    for _ in range(200):
        median = statistics.median(math.exp(chance.gauss(0.0, spread)) for _ in range(8))
        known.learn(decode(1), median, 0.0, ratio=1.0, count=8)
    assert low <= known.noise(DECODE) <= high


def test_draft_steps_and_overheads_do_not_move_the_level() -> None:
    known = CostFilter()
    known.set_level(math.log(0.1), 0.05)
    known.set_ratio(decode(1), 1.0, 0.0, num_samples=3)
    known.set_ratio(Work("draft head", 1), 0.1, 0.3)
    for _ in range(20):
        known.learn(Work("draft head", 1), 0.03, ratio=1.0)
    assert known.level == pytest.approx(math.log(0.1))
    assert known.log_seconds(Work("draft head", 1)) == pytest.approx(math.log(0.03), abs=0.05)
    assert np.linalg.eigvalsh(known._covariance).min() > -1e-12


def test_sizes_beyond_what_is_kept_still_teach_the_level() -> None:
    known = CostFilter()
    for rows in range(1, MAX_SIZES + 1):
        known.set_ratio(decode(rows), 1.0, 0.1)
    assert not known.has_room(DECODE)
    known.learn(decode(MAX_SIZES + 40), 2.0, 0.0, ratio=1.0)
    assert known.level == pytest.approx(math.log(2.0), abs=0.1)
