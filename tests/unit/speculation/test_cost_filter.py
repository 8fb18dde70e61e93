"""The filter behind step costs: what it keeps apart, and that it stays sound."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from doubles.simulated_machine import BF16, SimulatedMachine, drifting

from eaglelocal.speculation.costs.cost_filter import MAX_SIZES, CostFilter


def test_one_row_is_the_unit() -> None:
    known = CostFilter()
    known.set_ratio(1, 7.0, 0.1)
    assert known.ratios == {1: 1.0}
    assert known.deviation(1) == 0.0


def test_the_covariance_stays_one() -> None:
    machine = SimulatedMachine(ratios=BF16, level=drifting, per_row_cell=0.1)
    known = CostFilter()
    for rows in (2, 3, 5, 8):
        known.set_ratio(rows, BF16[rows - 1], 0.1)
    for step in range(20_000):
        rows, cells = (5 if step % 4000 < 2000 else machine.chance.choice([1, 2, 3, 5])), step % 3000
        known.learn(rows, machine.decode(rows, cells), cells / 1000, ratio=1.0)
    covariance = known._covariance
    assert np.array_equal(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0.0
    assert known.ratios[3] == pytest.approx(BF16[2], rel=0.1)
    assert known.deviation(8) > known.deviation(5)  # long not seen


@pytest.mark.parametrize(("spread", "low", "high"), [(0.6, 0.2, 0.9), (0.02, 0.01, 0.03)])
def test_medians_teach_how_uneven_decodes_are(spread: float, low: float, high: float) -> None:
    """Where one size runs all the time there are no others."""
    known, chance = CostFilter(), random.Random(2)
    for _ in range(200):
        median = statistics.median(math.exp(chance.gauss(0.0, spread)) for _ in range(8))
        known.learn(1, median, 0.0, ratio=1.0, count=8)
    assert low <= known.noise <= high


def test_no_more_sizes_than_it_can_keep() -> None:
    known = CostFilter()
    for rows in range(2, MAX_SIZES + 50):
        known.set_ratio(rows, 1.0, 0.1)
    assert known.is_full
    assert len(known.indices) == MAX_SIZES
    known.learn(MAX_SIZES + 40, 2.0, 0.0, ratio=1.0)
    assert known.level > 0.0
