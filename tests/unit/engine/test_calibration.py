"""The start-up calibration, on a machine whose clock advances only by decodes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.engine.step_times import (
    FIRST_SIZES,
    MAX_PREPARE_S,
    REPETITIONS,
    Calibration,
    Seconds,
    list_useful_sizes,
)

SIZES = list_useful_sizes(17, num_slots=1)


@dataclass
class Machine:
    """Time passes only in decodes."""

    one_s: float
    ratio: Callable[[int], float] = lambda rows: 1 + rows / 10
    first_s: float = 0.0  # the first decode reads the weights
    kernels_s: float = 0.0  # the first of each size makes its kernels
    now: float = 100.0
    asked: list[int] = field(default_factory=list)

    def decode(self, num_rows: int) -> float:
        took = self.one_s * self.ratio(num_rows) + (0.0 if self.asked else self.first_s)
        took += 0.0 if num_rows in self.asked else self.kernels_s
        self.asked.append(num_rows)
        self.now += took
        return took

    def prepared(self, stored: Callable[[int], float] | None = None) -> tuple[Seconds, float]:
        """As `calibrate`, where a size is run once before it is timed; and what all of it took."""
        began_at = self.now
        calibration = Calibration(self.decode, lambda: self.now, sizes=SIZES, prepare=self.decode)
        return calibration.run(stored), self.now - began_at

    def calibrate(
        self, sizes: Sequence[int] = SIZES, stored: Callable[[int], float] | None = None
    ) -> tuple[Seconds, float]:
        """Seconds by rows, and what it took after the decode that is thrown away."""
        began_at = self.now
        seconds = Calibration(self.decode, lambda: self.now, sizes=sizes).run(stored)
        return seconds, self.now - began_at - self.first_s - self.one_s * self.ratio(1)


def test_a_fast_machine_measures_every_size_and_is_done() -> None:
    machine = Machine(0.001)
    seconds, took = machine.calibrate()
    assert set(seconds) == set(SIZES)
    assert all(len(samples) >= REPETITIONS for samples in seconds.values())
    assert took < 0.5


def test_the_most_list_useful_sizes_come_first_and_in_turn() -> None:
    machine = Machine(0.05)
    machine.calibrate()
    assert machine.asked[:13] == [1, *[1, 2, 4, 8] * 3]


def test_the_first_decode_is_thrown_away() -> None:
    seconds, _ = Machine(0.01, first_s=30.0).calibrate()
    assert max(seconds[1]) < 1.0
    assert len(seconds) == len(SIZES)


@given(st.floats(1e-4, 0.3))
def test_the_time_box_holds(one_s: float) -> None:
    seconds, took = Machine(one_s).calibrate()
    assert took <= 2.0 + 1e-9
    assert {1, 2} <= set(seconds)


def test_a_very_slow_machine_still_learns_two_sizes() -> None:
    seconds, took = Machine(3.0).calibrate()
    assert set(seconds) == {1, 2}
    assert took < 8.0


def test_a_stored_curve_that_holds_saves_time() -> None:
    machine = Machine(0.05)
    seconds, took = machine.calibrate(stored=lambda rows: machine.ratio(rows) / machine.ratio(1))
    assert set(seconds) == {1, 4}
    assert took <= 0.5


@pytest.mark.parametrize("factor", [0.6, 1.5])
def test_a_stored_curve_that_is_off_is_measured_again(factor: float) -> None:
    machine = Machine(0.01)
    seconds, _ = machine.calibrate(stored=lambda rows: factor * machine.ratio(rows) / machine.ratio(1))
    assert set(seconds) == set(SIZES)


def test_groups_are_brought_to_the_moment_of_the_first() -> None:
    """The machine slows down by half after the first twelve decodes; ratios are kept."""
    machine = Machine(0.01)
    machine.ratio = lambda rows: (1 + rows / 10) * (1.5 if len(machine.asked) > 12 else 1.0)
    seconds, _ = machine.calibrate()
    for rows in SIZES:
        ratio = statistics.median(seconds[rows]) / statistics.median(seconds[1])
        assert ratio == pytest.approx((1 + rows / 10) / 1.1)


@given(st.integers(1, 272), st.integers(1, 16))
def test_only_sizes_that_can_be_of_use(max_rows: int, num_slots: int) -> None:
    sizes = list_useful_sizes(max_rows, num_slots=num_slots)
    assert sizes[:2] == [1, 2][:max_rows]
    assert len(set(sizes)) == len(sizes)
    assert max(sizes) == max_rows


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_where_little_can_run_little_is_measured(max_rows: int) -> None:
    sizes = list_useful_sizes(max_rows, num_slots=1)
    for stored in (None, lambda rows: 9.0 * rows):
        machine = Machine(0.01)
        seconds, _ = machine.calibrate(sizes, stored)
        assert set(seconds) == set(sizes)
        assert max(machine.asked) == max_rows


# ---- on a GPU
@given(st.floats(1e-3, 0.05), st.floats(0.0, 5.0))
def test_kernels_that_are_made_are_not_measured(one_s: float, kernels_s: float) -> None:
    machine = Machine(one_s, kernels_s=kernels_s)
    seconds, _ = machine.prepared()
    assert {*FIRST_SIZES} <= set(seconds)
    for rows, samples in seconds.items():
        assert samples == pytest.approx([one_s * machine.ratio(rows)] * len(samples))


@given(st.floats(1e-3, 1.0), st.floats(0.0, 5.0))
def test_making_kernels_ends_soon_after_the_first_sizes(one_s: float, kernels_s: float) -> None:
    machine = Machine(one_s, kernels_s=kernels_s)
    _, took = machine.prepared()
    one = kernels_s + one_s * machine.ratio(max(SIZES))
    assert took <= len(FIRST_SIZES) * one + MAX_PREPARE_S + one + 2.0


def test_sizes_whose_kernels_were_not_made_are_not_timed() -> None:
    machine = Machine(0.001, kernels_s=0.5)
    seconds, _ = machine.prepared()
    assert list(seconds)[:4] == [*FIRST_SIZES]
    assert set(seconds) == set(machine.asked) < set(SIZES)


def test_a_stored_curve_is_compared_with_what_was_prepared() -> None:
    machine = Machine(0.01, kernels_s=0.05)
    seconds, _ = machine.prepared(stored=lambda rows: machine.ratio(rows) / machine.ratio(1))
    assert set(seconds) == {1, 4}
    assert set(machine.asked) == set(SIZES)  # kernels are made anew in each process
