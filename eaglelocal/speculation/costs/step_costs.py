"""Predict what steps cost: target decodes by rows and context, draft steps, and the rest of a step.

Machines drift by the minute, by a third and more, and everything drifts together; so costs are kept relative to one
level, that of a decode of one row, and only the level follows fast. Each size (number of rows) that ran has a ratio of
its own, because a cost curve is a step function. Sizes that never ran are interpolated between those that did; beyond
the largest each row costs at least its share of that one, for a decode can always be split into several.

A size that is believed too expensive is never run, so a wrong belief would stay: a start has time for one and two rows
of a large model, and any size may be measured in a bad moment. So the policy gets an optimistic cost (`hoped`): less
than the estimate, by as much as that is uncertain, and for up to twice the rows of the largest known size hardly more
than that one. Where that would pay the size runs, and is known. One that ran a few times is rated by the better half of
its runs, for a hiccup takes two to ten times as long.

Context: attention adds a price for each cached position, once per decode (reading the cache) and once per row
(arithmetic). Both are learned as slopes, whatever the size, so a long context needs no calibration of its own.

Changing the number of rows has no price, though llama.cpp then rebuilds its graph: that takes less than the noise of a
step (tests/measures/shapes.py).

No clock: whoever measures reports what it took.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from eaglelocal.core.costs import ContextCost, MeasuredCosts, SizeCost
from eaglelocal.speculation.costs.cost_curve import GUESSED_DEVIATION, hoped, interpolate_costs, smoothed
from eaglelocal.speculation.costs.cost_filter import NOISE, SLOPE_DEVIATION, CostFilter
from eaglelocal.speculation.costs.kernel_warmup import KernelWarmup
from eaglelocal.speculation.costs.saved_costs import FORMAT, MAX_ROWS, SavedCosts
from eaglelocal.speculation.costs.undersampled_sizes import DEVIATION as FEW_DEVIATION
from eaglelocal.speculation.costs.undersampled_sizes import UndersampledSizes
from eaglelocal.speculation.stored_numbers import bounded

NUM_RECENT = 15  # draft steps and overheads in a median
STORED_DEVIATION = 0.08  # at least, of a ratio that was stored
CONTEXT_SHARE = 0.25  # of a decode, the most that is taken off for its context where the size ran a few times
MIN_SECONDS = 1e-9  # no clock resolves less
STORED_LEVEL_DEVIATION = 0.5
CORRECTIONS = -10.0, 10.0
MANY = 3  # decodes whose median a hiccup does not move
TABLE_STEPS, TABLE_TOLERANCE = 16, 0.003  # steps, or change of a ratio, after which the table is recomputed


class StepCosts:
    """The costs of steps, learned from samples; `seconds`, `draft_seconds` and `overhead` predict.

    makes_kernels  a GPU may compute: the first sample of each kind is discarded
    """

    def __init__(self, *, makes_kernels: bool = False) -> None:
        self._filter = CostFilter()
        self._first_runs = KernelWarmup(makes_kernels=makes_kernels)
        self._num_samples: dict[int, int] = {}  # by rows
        self._few = UndersampledSizes()
        self._drafters: dict[str, dict[int, RecentMedian]] = {}  # by name and rows
        self._overheads = {False: RecentMedian(), True: RecentMedian()}
        self._shown = RecentMedian()
        self._kilocells = 0.0  # of the last decode
        self._one_s = 0.0  # a decode of one row with no context
        self._slopes = (0.0, 0.0)
        self._ratios: list[float] = []  # [rows]; empty: to be recomputed
        self._hoped: list[float] = []  # [rows], optimistic ones
        self._floored: dict[int, list[float]] = {}  # those, from a smallest size on, by that size
        self._table_age = 0  # steps
        self._table_shape = self._filter.shape
        self._most = 0  # largest size ever asked for

    # ---- what is predicted
    @property
    def is_known(self) -> bool:
        """True if two sizes have been measured. Before that every size is predicted to cost the same."""
        return len(self._num_samples) > 1

    def seconds(self, num_rows: int, num_cells: int | None = None) -> float:
        """Return the seconds of a decode of num_rows, each of which attends to num_cells.

        num_cells None: as many as the last decode. 0.0 before anything was measured.
        """
        if num_rows >= len(self._ratios):
            self._tabulate(num_rows)
        kilocells = self._kilocells if num_cells is None else num_cells / 1000
        per_cell, per_row_cell = self._slopes
        return self._one_s * (self._ratios[num_rows] + (per_cell + per_row_cell * num_rows) * kilocells)

    def hoped_up_to(self, least: int, most: int, num_cells: int) -> list[float]:
        """Return `seconds` of least, least + 1, .. most rows; for sizes that are not well known, optimistic ones.

        A size that is believed too expensive is never run, so only optimism finds out that it is not. None gets less
        than `least`, the step without drafts: otherwise a drafted row would seem to save seconds.
        """
        if most >= len(self._ratios):
            self._tabulate(most)
        kilocells, one_s, (per_cell, per_row_cell) = num_cells / 1000, self._one_s, self._slopes
        of_cells, of_rows = per_cell * kilocells, per_row_cell * kilocells
        floored = self._floored.get(least)
        if floored is None:
            floored = self._floored[least] = self._floor(least)
        ratios = floored[: most + 1 - least]
        return [one_s * (ratio + of_cells + of_rows * num_rows) for num_rows, ratio in enumerate(ratios, least)]

    def _floor(self, least: int) -> list[float]:
        ratios = zip(self._ratios[least:], self._hoped[least:], strict=True)
        return [max(hope, min(ratio, self._hoped[least])) for ratio, hope in ratios]

    def ratio(self, num_rows: int, num_cells: int | None = None) -> float:
        """Return the seconds of num_rows rows / seconds of one row; 1.0 while that is unknown."""
        one_s = self.seconds(1, num_cells)
        return self.seconds(num_rows, num_cells) / one_s if one_s and self.is_known else 1.0

    def plain_seconds(
        self, step_s: float, *, num_rows: int, num_plain_rows: int, num_cells: int | None = None
    ) -> float:
        """Return the seconds with num_plain_rows of a decode that took step_s with num_rows."""
        if num_rows == num_plain_rows or not self.is_known:
            return step_s
        seconds = self.seconds(num_rows, num_cells)
        return step_s * self.seconds(num_plain_rows, num_cells) / seconds if seconds else step_s

    def num_samples(self, num_rows: int) -> int:
        """Return the number of decodes of exactly this size that were seen."""
        return self._num_samples.get(num_rows, 0)

    def deviation(self, num_rows: int) -> float:
        """Return how uncertain the ratio of a size is: 0.05 means by about 5 %."""
        if num_rows in self._filter.places or num_rows == 1:
            return self._filter.deviation(num_rows)
        return GUESSED_DEVIATION[num_rows > max(self._filter.places, default=1)]

    def draft_seconds(self, drafter: str, num_rows: int) -> float:
        """Return the seconds of a draft step; 0.0 for a drafter that has not run yet, so that it is tried."""
        steps = self._drafters.get(drafter)
        if not steps:
            return 0.0
        if num_rows in steps:
            return self._unit_s * steps[num_rows].median
        return (
            self._unit_s * interpolate_costs({rows: steps[rows].median for rows in sorted(steps)}, num_rows)[num_rows]
        )

    def overhead(self, drafted: bool) -> float:
        """Return the seconds of a step outside decode and draft steps.

        A kind of step not seen yet is estimated by the other; a plain one without the time of models reading target
        rows.
        """
        recent = self._overheads[drafted]
        if recent:
            return self._unit_s * recent.median
        shown = 0.0 if drafted else self._shown.median
        return self._unit_s * max(self._overheads[not drafted].median - shown, 0.0)

    def measured(self) -> MeasuredCosts:
        """Return the costs of what really ran, to be shown."""
        ratios = self._filter.ratios
        sizes = sorted(rows for rows in self._num_samples if rows in ratios)
        return MeasuredCosts(
            decodes=tuple(SizeCost(rows, self._unit_s * ratios[rows], self._num_samples[rows]) for rows in sizes),
            draft_steps=tuple(
                (drafter, SizeCost(rows, self._unit_s * steps[rows].median, steps[rows].num_samples))
                for drafter, steps in sorted(self._drafters.items())
                for rows in sorted(steps)
            ),
            context=self._context(),
            noise=self._filter.noise,
            plain_overhead_s=self.overhead(False),
            drafted_overhead_s=self.overhead(True),
        )

    # ---- what is measured
    def calibrate(self, seconds: Mapping[int, Sequence[float]]) -> None:
        """Learn decodes that were measured side by side over an empty context; single rows must be among them."""
        single = statistics.median(seconds[1])
        noise = self._filter.noise = noise_of(seconds.values())
        self._filter.set_level(math.log(single), noise)
        for rows, took in seconds.items():
            spread = max(noise, math.log(max(took) / min(took)) / 2) * math.sqrt(2 / len(took))
            ratios = [seconds / single for seconds in took]
            self._few.end(rows)
            if rows > 1 and len(took) < MANY:
                self._few.begin(rows, ratios)
                spread = max(spread, FEW_DEVIATION[len(took)])
            self._filter.set_ratio(rows, statistics.median_low(ratios), spread)
            self._num_samples[rows] = self.num_samples(rows) + len(took)
            self._first_runs.note(("decode", rows))
        self._ratios = []

    def learn(self, num_rows: int, seconds: float, *, num_cells: int = 0) -> None:
        """Learn a decode of a real step; num_cells is what each of its rows attended to, as in `seconds`."""
        self.learn_many(num_rows, [seconds], num_cells=num_cells)

    def learn_many(self, num_rows: int, seconds: Sequence[float], *, num_cells: int = 0) -> None:
        """Learn decodes of one size and about the same context; MANY or more count once, as their median."""
        if self._first_runs.note(("decode", num_rows)):
            seconds = seconds[1:]
        if len(seconds) >= MANY:
            self._learn(num_rows, statistics.median(seconds), num_cells, len(seconds))
            return
        for each in seconds:
            self._learn(num_rows, each, num_cells, 1)

    def _learn(self, num_rows: int, seconds: float, num_cells: int, count: int) -> None:
        if not (0 < num_rows <= MAX_ROWS and MIN_SECONDS <= seconds < math.inf):
            return
        is_kept = num_rows == 1 or num_rows in self._filter.places
        guess = 1.0 if is_kept else self._guess(num_rows)
        self._kilocells = num_cells / 1000
        self._filter.learn(num_rows, seconds, self._kilocells, ratio=guess, count=count)
        is_new = num_rows not in self._num_samples
        self._num_samples[num_rows] = self._num_samples.get(num_rows, 0) + count
        if is_new and num_rows > 1 and count < MANY:
            self._few.begin(num_rows)
        is_few = num_rows in self._few
        if is_few:
            self._learn_few(num_rows, seconds, guess)
        if is_few or is_new or not is_kept or self._is_outdated():
            self._ratios = []
        else:
            self._one_s, self._slopes = self._unit_s, self._filter.slopes

    def _learn_few(self, num_rows: int, seconds: float, guess: float) -> None:
        """Learn a run of a size that ran a few times.

        With a long context, whose price is a guess at first, the size's own cost cannot be separated: it is left to the
        filter, which weighs both.
        """
        per_cell, per_row_cell = self._filter.slopes
        relative, of_context = seconds / self._unit_s, (per_cell + per_row_cell * num_rows) * self._kilocells
        if of_context > CONTEXT_SHARE * relative:
            self._few.end(num_rows)
            return
        ratio, deviation = self._few.add(num_rows, relative - of_context, guess=guess)
        self._filter.set_ratio(num_rows, ratio, max(deviation, self._filter.noise))

    def correct(self, num_rows: int, error: float) -> None:
        """Multiply the cost of a size by e ** error; all others keep theirs."""
        error = bounded(error, CORRECTIONS)
        if num_rows > 1:
            self._few.end(num_rows)
            self._filter.set_ratio(num_rows, self.ratio(num_rows, 0) * math.exp(error), self._filter.noise)
            self._ratios = []
            return
        self._filter.rebase(error)
        drafters = [recent for steps in self._drafters.values() for recent in steps.values()]
        for recent in (*drafters, *self._overheads.values(), self._shown):
            recent.scale(math.exp(-error))
        self._few.scale(math.exp(-error))
        self._ratios = []

    def _is_outdated(self) -> bool:
        """Return whether to recompute the table: the level moves at every step, the ratios hardly."""
        self._table_age += 1
        return self._table_age >= TABLE_STEPS or self._filter.has_moved(self._table_shape, TABLE_TOLERANCE)

    def learn_draft(self, drafter: str, num_rows: int, seconds: float) -> None:
        if self._first_runs.note((drafter, num_rows)):
            return
        steps = self._drafters.setdefault(drafter, {})
        if num_rows not in steps:
            steps[num_rows] = RecentMedian()
        steps[num_rows].add(seconds / self._unit_s)

    def learn_overhead(self, drafted: bool, seconds: float, *, shown_s: float = 0.0) -> None:
        """Learn the seconds of a step outside decode and draft steps.

        shown_s  of that: drafters' models reading the target's rows
        """
        if self._first_runs.note(("overhead", drafted)):
            return
        self._overheads[drafted].add(seconds / self._unit_s)
        if drafted:
            self._shown.add(shown_s / self._unit_s)

    # ---- what outlives the process
    def state(self) -> dict[str, object]:
        """Return everything learned, as plain data."""
        known = self._filter
        sizes = [[n, r, known.deviation(n), self.num_samples(n)] for n, r in known.ratios.items()]
        drafters = {
            name: [[rows, step.median] for rows, step in sorted(steps.items())]
            for name, steps in self._drafters.items()
        }
        overheads = [recent.median if recent else None for recent in self._overheads.values()]
        return {
            "format": FORMAT,
            "level": known.level,
            "slopes": [*known.slopes, known.slope_deviation],
            "sizes": sizes,
            "drafters": drafters,
            "overheads": overheads,
        }

    def restore(self, state: object) -> bool:
        """Load what was learned earlier. Return False, and change nothing, if the data is not understood."""
        try:
            saved = SavedCosts.read(state)
        except (TypeError, ValueError, KeyError, AttributeError):
            return False
        self._take(saved)
        return True

    # ---- inside
    @property
    def _unit_s(self) -> float:
        """Seconds of one row with no context, the unit of all that is kept; 1.0 before any decode."""
        return math.exp(self._filter.level)

    def _context(self) -> ContextCost | None:
        if self._filter.slope_deviation > SLOPE_DEVIATION / 2:
            return None
        per_cell, per_row_cell = self._filter.slopes
        return ContextCost(self._unit_s * per_cell / 1000, self._unit_s * per_row_cell / 1000)

    def _guess(self, num_rows: int) -> float:
        """Add a size that runs for the first time to the filter, with the estimate so far, which is returned."""
        guess, deviation = self.ratio(num_rows, 0), self.deviation(num_rows)
        self._filter.set_ratio(num_rows, guess, deviation)
        return guess

    def _tabulate(self, num_rows: int) -> None:
        """Compute the ratios of every size up to num_rows, and as far as they were asked for before."""
        self._most = max(num_rows, self._most)
        self._ratios = self._hoped = [1.0] * (self._most + 1)
        if self.is_known:
            measured = self._filter.ratios
            deviations = {rows: self._filter.deviation(rows) for rows in measured}
            believed = smoothed(measured, deviations)
            self._ratios = interpolate_costs(believed, self._most)
            self._hoped = hoped(believed, deviations, self._most, noise=self._filter.noise)
        self._floored = {}
        self._slopes = self._filter.slopes
        self._one_s = self._unit_s if self._num_samples else 0.0
        self._table_age, self._table_shape = 0, self._filter.shape

    def _take(self, saved: SavedCosts) -> None:
        known = self._filter = CostFilter()
        known.set_level(saved.level, STORED_LEVEL_DEVIATION)
        known.set_slopes(*saved.slopes)
        for rows, ratio, deviation, samples in saved.sizes:
            known.set_ratio(rows, ratio, max(deviation, STORED_DEVIATION, FEW_DEVIATION.get(samples, 0.0)))
        self._num_samples = {rows: samples for rows, _, _, samples in saved.sizes if samples}
        self._few = UndersampledSizes()
        for rows, ratio, _, samples in saved.sizes:
            if rows > 1 and 0 < samples < MANY:
                self._few.begin(rows, [ratio])
        self._drafters = {
            name: {rows: RecentMedian([median]) for rows, median in steps} for name, steps in saved.drafters.items()
        }
        self._overheads = {
            drafted: RecentMedian([] if median is None else [median])
            for drafted, median in zip((False, True), saved.overheads, strict=True)
        }
        self._ratios = []


class RecentMedian:
    """The median of the last NUM_RECENT samples."""

    __slots__ = ("_median", "_values", "num_samples")

    def __init__(self, values: Sequence[float] = ()) -> None:
        self._values: deque[float] = deque(maxlen=NUM_RECENT)
        self._median: float | None = 0.0  # None: to be computed when it is asked for
        self.num_samples = 0
        for value in values:
            self.add(value)

    def __bool__(self) -> bool:
        return self.num_samples > 0

    def add(self, value: float) -> None:
        self._values.append(value)
        self.num_samples += 1
        self._median = None

    def scale(self, factor: float) -> None:
        self._values = deque((value * factor for value in self._values), maxlen=NUM_RECENT)
        self._median = self._median and self._median * factor

    @property
    def median(self) -> float:
        if self._median is None:
            self._median = sorted(self._values)[len(self._values) // 2]
        return self._median


def noise_of(samples: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of the logarithm of one decode, from repeated ones; hiccups do not count."""
    spreads = [abs(math.log(value / statistics.median(took))) for took in samples for value in took if len(took) > 2]
    apart = [spread for spread in spreads if spread > 0.0]  # the median itself is no sample of the noise
    return max(NOISE, 1.2 * statistics.median(apart)) if apart else NOISE
