"""Predict the cost of steps: target decodes by rows and context, draft steps, and the overhead of a step.

Machines drift by the minute, by a third and more, and everything drifts together. So costs are kept relative to one
level, the cost of a one-row decode, and only the level follows fast. Each size (number of rows) that ran has a ratio of
its own, because a cost curve is a step function. Sizes that never ran are interpolated between those that did; beyond
the largest each row costs at least its share of that one, for a decode can always be split into several.

A size that is believed too expensive is never run, so a wrong belief would persist: calibration has time for few sizes
of a large model, and any size may be measured at a bad moment. So the policy gets an optimistic cost: the less certain
the estimate, the further below it. Up to twice the largest known size, further rows cost hardly anything. If a size
would pay off at that cost it runs, and is then known.

Context: attention adds a cost for each cached position, once per decode (reading the cache) and once per row
(arithmetic). Both are learned as slopes, whatever the size, so a long context needs no calibration of its own.

Changing the number of rows costs nothing here: llama.cpp rebuilds its graph in less than the noise of a step
(tests/measures/shapes.py). No clock: callers report the seconds that they measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from eaglelocal.core.stats import ContextCost, MeasuredCosts, SizeCost
from eaglelocal.speculation.costs.cost_curve import interpolate_costs, make_optimistic, smooth_costs
from eaglelocal.speculation.costs.cost_filter import CLIP, SLOPE_DEVIATION
from eaglelocal.speculation.costs.draft_costs import DraftCosts
from eaglelocal.speculation.costs.kernel_warmup import KernelWarmup
from eaglelocal.speculation.costs.saved_costs import FORMAT, MAX_ROWS, UNREADABLE, SavedCosts
from eaglelocal.speculation.costs.size_costs import MANY, SizeCosts
from eaglelocal.speculation.stored_numbers import clamp

MIN_SECONDS = 1e-9  # no clock resolves less
CORRECTIONS = -10.0, 10.0
TABLE_STEPS, TABLE_TOLERANCE = 16, 0.003  # steps, or change of a ratio, after which the table is recomputed


class StepCosts:
    """The costs of steps, learned from samples; `seconds`, `draft_seconds` and `overhead` predict.

    makes_kernels  a GPU may compute: the first sample of each kind is discarded
    """

    def __init__(self, *, makes_kernels: bool = False) -> None:
        self._sizes, self._draft_costs = SizeCosts(), DraftCosts()
        self._kernel_warmup = KernelWarmup(makes_kernels=makes_kernels)
        self._kilocells = 0.0  # of the last decode
        self._one_s = 0.0  # a decode of one row with no context
        self._slopes = (0.0, 0.0)
        self._ratios: list[float] = []  # [rows]; empty: to be recomputed
        self._optimistic: list[float] = []  # [rows], optimistic ratios
        self._floored: dict[tuple[int, bool], list[float]] = {}  # those, by smallest size, and whether as usual
        self._table_age = 0  # steps
        self._table_shape = self._sizes.filter.shape
        self._most = 0  # largest size ever asked for

    # ---- what is predicted
    @property
    def is_known(self) -> bool:
        """True if two sizes have been measured. Before that every size is predicted to cost the same."""
        return len(self._sizes.num_samples) > 1

    def seconds(self, num_rows: int, num_cells: int | None = None) -> float:
        """Return the seconds of a decode of num_rows, each of which attends to num_cells.

        num_cells None: as many as the last decode. 0.0 before anything was measured.
        """
        if num_rows >= len(self._ratios):
            self._tabulate(num_rows)
        kilocells = self._kilocells if num_cells is None else num_cells / 1000
        per_cell, per_row_cell = self._slopes
        return self._one_s * (self._ratios[num_rows] + (per_cell + per_row_cell * num_rows) * kilocells)

    @property
    def is_raised(self) -> bool:
        """Return whether some size costs clearly more than it usually does."""
        return self._sizes.usual.is_raised

    def least_raised(self, least: int) -> int | None:
        """Return the smallest size that costs clearly more than it usually does, of more than `least` rows."""
        return self._sizes.usual.least_raised(least)

    def is_dear(self, num_rows: int) -> bool:
        """Return whether this size costs clearly more than it usually does."""
        return self._sizes.usual.rise(num_rows) > 0.0

    def is_as_usual(self, num_rows: int, seconds: float, num_cells: int) -> bool:
        """Return whether a decode of a size that had become expensive took its usual time again.

        One decode shows it: by chance a decode may take longer, but not shorter by more than the noise.
        """
        known, believed_s = self._sizes.filter, self.seconds(num_rows, num_cells)
        ratio, rise = math.exp(known.log_ratio(num_rows)), self._sizes.usual.rise(num_rows)
        usual_s = max(believed_s - self._one_s * ratio * (1.0 - math.exp(-rise)), believed_s * math.exp(-rise))
        return math.log(believed_s / seconds) > max(math.log(believed_s / usual_s) / 2, CLIP * known.noise)

    def optimistic_seconds(self, least: int, most: int, num_cells: int, *, as_usual: bool = False) -> list[float]:
        """Return `seconds` of least, least + 1, .. most rows; for sizes that are not well known, optimistic ones.

        A size that is believed too expensive never runs, so only optimism can correct the belief. No size costs less
        than `least`, the step without drafts: otherwise a drafted row would seem to save time.

        as_usual  sizes that cost more than they usually do are believed to cost what is usual
        """
        if most >= len(self._ratios):
            self._tabulate(most)
        kilocells, one_s, (per_cell, per_row_cell) = num_cells / 1000, self._one_s, self._slopes
        cells_cost, row_cost = per_cell * kilocells, per_row_cell * kilocells
        key = least, as_usual and self.is_raised
        floored = self._floored.get(key)
        if floored is None:
            floored = self._floored[key] = self._floor(*key)
        ratios = floored[: most + 1 - least]
        return [one_s * (ratio + cells_cost + row_cost * num_rows) for num_rows, ratio in enumerate(ratios, least)]

    def _floor(self, least: int, as_usual: bool) -> list[float]:
        """Return optimistic ratios of `least` and more rows, none less than that of `least`."""
        hoped = self._optimistic
        if as_usual:
            known, usual = self._sizes.filter, self._sizes.usual.ratios
            points = {rows: min(cost, usual[rows]) for rows, cost in known.ratios.items() if rows in usual}
            deviations = {rows: known.deviation(rows) for rows in points}
            hoped = make_optimistic(points, deviations, self._most, noise=known.noise)
        return [max(ratio, hoped[least]) for ratio in hoped[least:]]

    def ratio(self, num_rows: int, num_cells: int | None = None) -> float:
        """Return the seconds of num_rows rows / seconds of one row; 1.0 while that is unknown."""
        one_s = self.seconds(1, num_cells)
        return self.seconds(num_rows, num_cells) / one_s if one_s and self.is_known else 1.0

    def is_comparable(self, seconds: float) -> bool:
        """Return whether these seconds of a decode are long enough to compute a level from."""
        return self.is_known and MIN_SECONDS <= seconds < math.inf

    def implied_level(self, num_rows: int, seconds: float, num_cells: int) -> float:
        """Return the logarithm of the seconds of one row without context, as implied by this decode."""
        return math.log(seconds * self._sizes.unit_s / self.seconds(num_rows, num_cells))

    def plain_seconds(
        self, step_s: float, *, num_rows: int, num_plain_rows: int, num_cells: int | None = None
    ) -> float:
        """Return how long a decode of num_rows rows that took step_s would have taken with num_plain_rows rows."""
        if num_rows == num_plain_rows or not self.is_known:
            return step_s
        seconds = self.seconds(num_rows, num_cells)
        return step_s * self.seconds(num_plain_rows, num_cells) / seconds if seconds else step_s

    def num_samples(self, num_rows: int) -> int:
        """Return the number of decodes of exactly this size that were seen."""
        return self._sizes.num_samples.get(num_rows, 0)

    def deviation(self, num_rows: int) -> float:
        """Return how uncertain the ratio of a size is: 0.05 means by about 5 %."""
        return self._sizes.deviation(num_rows)

    def draft_seconds(self, drafter: str, num_rows: int) -> float:
        """Return the seconds of a draft step; 0.0 for a drafter that has not run yet, so that it is tried."""
        return self._sizes.unit_s * self._draft_costs.draft_step(drafter, num_rows)

    def untried_draft_seconds(self, drafter: str, num_rows: int) -> float:
        """Return the seconds of a draft step; optimistic for numbers of rows that never ran."""
        return self._sizes.unit_s * self._draft_costs.untried_draft_step(drafter, num_rows)

    def reading_seconds(self, drafter: str) -> float:
        """Return the seconds in which the drafter prefills one token, among many at once."""
        return self._sizes.unit_s * self._draft_costs.reading(drafter)

    def is_draft_dear(self, drafter: str) -> bool:
        """Return whether draft steps like the drafter's last one cost far more than they usually do."""
        return self._draft_costs.is_dear(drafter)

    def overhead(self, drafted: bool) -> float:
        """Return the seconds of a step outside decode and draft steps."""
        return self._sizes.unit_s * self._draft_costs.overhead(drafted)

    def measured(self) -> MeasuredCosts:
        """Return the costs of the sizes that really ran, for display."""
        unit_s, ratios, num_samples = self._sizes.unit_s, self._sizes.filter.ratios, self._sizes.num_samples
        return MeasuredCosts(
            decodes=tuple(
                SizeCost(rows, unit_s * ratios[rows], num_samples[rows])
                for rows in sorted(rows for rows in num_samples if rows in ratios)
            ),
            draft_steps=tuple(
                (drafter, SizeCost(rows, unit_s * cost, count))
                for drafter, rows, cost, count in self._draft_costs.measured()
            ),
            context=self._context(),
            noise=self._sizes.filter.noise,
            plain_overhead_s=self.overhead(False),
            drafted_overhead_s=self.overhead(True),
        )

    def _context(self) -> ContextCost | None:
        known, unit_s = self._sizes.filter, self._sizes.unit_s
        if known.slope_deviation > SLOPE_DEVIATION / 2:
            return None
        per_cell, per_row_cell = known.slopes
        return ContextCost(unit_s * per_cell / 1000, unit_s * per_row_cell / 1000)

    # ---- what is measured
    def calibrate(self, seconds: Mapping[int, Sequence[float]]) -> None:
        """Learn decodes that were measured one after another over an empty context; single rows must be among them."""
        self._sizes.calibrate(seconds)
        for rows in seconds:
            self._kernel_warmup.note(("decode", rows))
        self._ratios = []

    def learn(self, num_rows: int, seconds: float, *, num_cells: int = 0) -> None:
        """Learn a decode of a real step; each of its rows attended to num_cells cells, as in `seconds`."""
        self.learn_many(num_rows, [seconds], num_cells=num_cells)

    def learn_many(self, num_rows: int, seconds: Sequence[float], *, num_cells: int = 0) -> None:
        """Learn decodes of one size over similar contexts; MANY or more count once, by their median."""
        if self._kernel_warmup.note(("decode", num_rows)):
            seconds = seconds[1:]
        if len(seconds) >= MANY:
            self._learn(num_rows, statistics.median(seconds), num_cells, len(seconds))
            return
        for each in seconds:
            self._learn(num_rows, each, num_cells, 1)

    def _learn(self, num_rows: int, seconds: float, num_cells: int, count: int) -> None:
        if not (0 < num_rows <= MAX_ROWS and MIN_SECONDS <= seconds < math.inf):
            return
        estimate = 1.0 if self._sizes.is_kept(num_rows) else self.ratio(num_rows, 0)
        self._kilocells = num_cells / 1000
        is_changed = self._sizes.learn(num_rows, seconds, self._kilocells, estimate=estimate, count=count)
        if is_changed or self._is_outdated():
            self._ratios = []
        else:
            self._one_s, self._slopes = self._sizes.unit_s, self._sizes.filter.slopes

    def _is_outdated(self) -> bool:
        """Return whether to recompute the table: the level moves at every step, the ratios hardly."""
        self._table_age += 1
        return self._table_age >= TABLE_STEPS or self._sizes.filter.has_moved(self._table_shape, TABLE_TOLERANCE)

    def correct(self, num_rows: int, error: float, *, level: float) -> None:
        """Multiply the cost of a size by e ** error, relative to all others.

        level  logarithm of the seconds of one row, without context, as decodes of this size imply
        """
        error = clamp(error, CORRECTIONS)
        if num_rows > 1:
            self._sizes.set_ratio(num_rows, self.ratio(num_rows, 0) * math.exp(error))
        else:
            moved = clamp(level - self._sizes.filter.level, CORRECTIONS)
            self._sizes.rebase(error, moved)
            self._draft_costs.scale(math.exp(-moved))
        self._ratios = []

    def restore_usual(self) -> None:
        """Reset all sizes that cost more than usual to their usual cost."""
        self._sizes.restore_usual()
        self._ratios = []

    def learn_draft(self, drafter: str, num_rows: int, seconds: float) -> None:
        if not self._kernel_warmup.note((drafter, num_rows)):
            self._draft_costs.add_draft_step(drafter, num_rows, seconds / self._sizes.unit_s)

    def learn_reading(self, drafter: str, num_tokens: int, seconds: float) -> None:
        """Learn how long the drafter took to prefill tokens of a text."""
        self._draft_costs.add_reading(drafter, seconds / num_tokens / self._sizes.unit_s)

    def learn_overhead(self, drafted: bool, seconds: float, *, encode_s: float = 0.0) -> None:
        """Learn the seconds of a step outside decode and draft steps.

        encode_s  the part in which drafters' models encode the target's rows
        """
        if not self._kernel_warmup.note(("overhead", drafted)):
            unit_s = self._sizes.unit_s
            self._draft_costs.add_overhead(drafted, seconds / unit_s, encode_s / unit_s)

    # ---- what outlives the process
    def state(self) -> dict[str, object]:
        """Return everything learned, as plain data."""
        return {"format": FORMAT, **self._sizes.state(), **self._draft_costs.state()}

    def restore(self, state: object) -> bool:
        """Load what was learned earlier. Return False, and change nothing, if the data is not understood."""
        try:
            saved = SavedCosts.read(state)
        except UNREADABLE:
            return False
        self._sizes, self._draft_costs = SizeCosts(saved), DraftCosts(saved)
        self._ratios = []
        return True

    # ---- the table
    def _tabulate(self, num_rows: int) -> None:
        """Compute the ratios of all sizes up to num_rows, and up to the largest size asked for earlier."""
        known = self._sizes.filter
        self._most = max(num_rows, self._most)
        self._ratios = self._optimistic = [1.0] * (self._most + 1)
        if self.is_known:
            measured = known.ratios
            deviations = {rows: known.deviation(rows) for rows in measured}
            believed = smooth_costs(measured, deviations)
            self._ratios = interpolate_costs(believed, self._most)
            self._optimistic = make_optimistic(believed, deviations, self._most, noise=known.noise)
        self._floored = {}
        self._slopes = known.slopes
        self._one_s = self._sizes.unit_s if self._sizes.num_samples else 0.0
        self._table_age, self._table_shape = 0, known.shape
