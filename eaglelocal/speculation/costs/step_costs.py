"""Predict the cost of steps: target decodes by rows and context, draft steps, and the overhead of a step.

Machines drift by the minute, by a third and more, and everything drifts together. So costs are kept relative to one
level (cost_filter.py), and only the level follows fast. Each size (number of rows) that ran has a cost of its own,
because a cost curve is a step function. Sizes that never ran are interpolated between those that did; beyond the
largest each row costs at least its share of that one, for a decode can always be split into several.

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
from collections.abc import Callable, Iterable, Mapping, Sequence

from eaglelocal.core.stats import ContextCost, MeasuredCosts, SizeCost
from eaglelocal.speculation.costs.cost_curve import (
    BEYOND,
    REACH,
    UNMEASURED_DEVIATION,
    interpolate_costs,
    make_optimistic,
    smooth_costs,
)
from eaglelocal.speculation.costs.cost_filter import (
    DECODE,
    NOISE,
    NOISE_RANGE,
    SLOPE_DEVIATION,
    CostFilter,
    Work,
)
from eaglelocal.speculation.costs.host_time import RowTime
from eaglelocal.speculation.costs.kernel_warmup import KernelWarmup
from eaglelocal.speculation.costs.saved_costs import FEW_ROWS, FORMAT, MAX_ROWS, UNREADABLE, SavedCosts
from eaglelocal.speculation.stored_numbers import clamp

MIN_SECONDS = 1e-9  # no clock resolves less
MANY = 3  # samples whose median an outlier does not move
FEW_DEVIATION = 0.25  # of a cost that was measured once
ESTIMATED_DEVIATION = 1.0  # of a draft step or an overhead that was not measured
STORED_LEVEL_DEVIATION, STORED_DEVIATION = 0.5, 0.08  # of what was stored, at least
READING_SHARE = 1 / 32  # of a draft step: the cost of prefilling one token among many; optimistic, until measured
TABLE_STEPS, TABLE_TOLERANCE = 16, 0.003  # steps, or change of a ratio, after which the table is recomputed

ONE = Work(DECODE, 1)  # the unit of what is stored
HOST = {False: Work("host", 0), True: Work("host", 1)}  # outside decode and draft steps; whether drafts could be made
DRAFTS, READS = "draft ", "read "  # beginnings of kinds, before a drafter's name


class StepCosts:
    """The costs of steps, learned from samples; `seconds`, `draft_seconds` and `overhead` predict.

    makes_kernels  a GPU may compute: the first sample of each kind is discarded
    """

    def __init__(self, *, makes_kernels: bool = False) -> None:
        self._filter = CostFilter()
        self._kernel_warmup = KernelWarmup(makes_kernels=makes_kernels)
        self._kilocells = 0.0  # of the last decode
        self._one_s = 0.0  # a decode of one row with no context
        self._slopes = (0.0, 0.0)  # relative to that
        self._ratios: list[float] = []  # [rows]; empty: to be recomputed
        self._optimistic: list[float] = []  # [rows], optimistic ratios
        self._floored: dict[int, list[float]] = {}  # those, by smallest size
        self._drafts: dict[str, dict[int, float]] = {}  # of draft steps, relative to the level, by drafter and rows
        self._row_times = {may_draft: RowTime() for may_draft in HOST}
        self._is_known = False
        self._table_age = 0  # steps
        self._table_shape = self._filter.shape
        self._most = 0  # largest size ever asked for

    # ---- what is predicted
    @property
    def is_known(self) -> bool:
        """True if two sizes have been measured. Before that every size is predicted to cost the same."""
        self._is_known = self._is_known or len(self._measured_sizes()) > 1
        return self._is_known

    def seconds(self, num_rows: int, num_cells: int | None = None) -> float:
        """Return the seconds of a decode of num_rows, each of which attends to num_cells.

        num_cells None: as many as the last decode. 0.0 before anything was measured.
        """
        if num_rows >= len(self._ratios):
            self._tabulate(num_rows)
        kilocells = self._kilocells if num_cells is None else num_cells / 1000
        per_cell, per_row_cell = self._slopes
        return self._one_s * (self._ratios[num_rows] + (per_cell + per_row_cell * num_rows) * kilocells)

    def optimistic_seconds(self, least: int, most: int, num_cells: int) -> list[float]:
        """Return `seconds` of least, least + 1, .. most rows; for sizes that are not well known, optimistic ones.

        A size that is believed too expensive never runs, so only optimism can correct the belief. No size costs less
        than `least`, the step without drafts: otherwise a drafted row would seem to save time.
        """
        if most >= len(self._ratios):
            self._tabulate(most)
        kilocells, one_s, (per_cell, per_row_cell) = num_cells / 1000, self._one_s, self._slopes
        cells_cost, row_cost = per_cell * kilocells, per_row_cell * kilocells
        floored = self._floored.get(least)
        if floored is None:
            hoped = self._optimistic
            floored = self._floored[least] = [max(ratio, hoped[least]) for ratio in hoped[least:]]
        ratios = floored[: most + 1 - least]
        return [one_s * (ratio + cells_cost + row_cost * num_rows) for num_rows, ratio in enumerate(ratios, least)]

    def ratio(self, num_rows: int, num_cells: int | None = None) -> float:
        """Return the seconds of num_rows rows / seconds of one row; 1.0 while that is unknown."""
        one_s = self.seconds(1, num_cells)
        return self.seconds(num_rows, num_cells) / one_s if one_s and self.is_known else 1.0

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
        return self._filter.num_samples(Work(DECODE, num_rows))

    def deviation(self, num_rows: int) -> float:
        """Return how uncertain the cost of a size is, relative to one row: 0.05 means by about 5 %."""
        sizes = self._filter.known_sizes(DECODE)
        if num_rows in sizes and 1 in sizes:
            return self._filter.deviation(Work(DECODE, num_rows), ONE)
        return UNMEASURED_DEVIATION[num_rows > max(sizes, default=1)]

    @property
    def is_raised(self) -> bool:
        """Return whether something has cost clearly more than usual lately."""
        return self._filter.num_raised > 0

    def draft_seconds(self, drafter: str, num_rows: int) -> float:
        """Return the seconds of a draft step; 0.0 for a drafter that has not run yet, so that it is tried."""
        costs = self._draft_costs(drafter)
        if not costs:
            return 0.0
        cost = costs.get(num_rows)
        return self._level_s * (interpolate_costs(costs, num_rows)[num_rows] if cost is None else cost)

    def untried_draft_seconds(self, drafter: str, num_rows: int) -> float:
        """Return the seconds of a draft step; optimistic for up to REACH times the largest number of rows that ran.

        A number of rows that looks too expensive would never run, and its cost would never be known.
        """
        most = max(self._draft_costs(drafter), default=0)
        if not most < num_rows <= REACH * most:
            return self.draft_seconds(drafter, num_rows)
        return self.draft_seconds(drafter, most) * float((num_rows / most) ** BEYOND)

    def reading_seconds(self, drafter: str) -> float:
        """Return the seconds in which the drafter prefills one token, among many at once. Before any was measured, it
        is a share of a draft step.
        """
        work = Work(READS + drafter, 1)
        known = self._filter
        return (
            math.exp(known.log_seconds(work))
            if work in known.indices
            else READING_SHARE * self.draft_seconds(drafter, 1)
        )

    def overhead(self, may_draft: bool, num_rows: int) -> float:
        """Return the seconds outside decode and draft steps of a step with so many rows, those of prompts not counted.

        A new kind costs what the other one does; 0.0 before any is known.
        """
        for kind in (may_draft, not may_draft):
            if HOST[kind] in self._filter.indices:
                return math.exp(self._filter.log_seconds(HOST[kind])) + num_rows * self._row_times[kind].row_s
        return 0.0

    @property
    def drafted_row_s(self) -> float:
        """Seconds by which `overhead` grows with each row that is drafted."""
        return self._row_times[True].row_s

    def plain_rate(self, num_slots: int, num_cells: int) -> float:
        """Return the tokens per second of plain decoding; 0.0 before anything was measured."""
        plain_s = self.seconds(num_slots, num_cells) + self.overhead(False, num_slots)
        return num_slots / plain_s if plain_s > 0.0 else 0.0

    def measured(self) -> MeasuredCosts:
        """Return the costs of the sizes that really ran, for display."""
        known = self._filter
        return MeasuredCosts(
            decodes=tuple(
                SizeCost(rows, math.exp(known.log_seconds(Work(DECODE, rows))), self.num_samples(rows))
                for rows in self._measured_sizes()
            ),
            draft_steps=tuple(
                (
                    name,
                    SizeCost(rows, self.draft_seconds(name, rows), known.num_samples(Work(DRAFTS + name, rows))),
                )
                for name in self._drafters()
                for rows in known.known_sizes(DRAFTS + name)
            ),
            context=self._context(),
            noise=known.noise(DECODE),
            plain_overhead_s=self.overhead(False, 1),
            drafted_overhead_s=self.overhead(True, FEW_ROWS),
        )

    def _context(self) -> ContextCost | None:
        if self._filter.slope_deviation > SLOPE_DEVIATION / 2:
            return None
        per_cell, per_row_cell = self._filter.slopes
        return ContextCost(self._level_s * per_cell / 1000, self._level_s * per_row_cell / 1000)

    @property
    def _level_s(self) -> float:
        """Seconds to which the costs that the filter keeps are relative."""
        return math.exp(self._filter.level)

    def _measured_sizes(self) -> list[int]:
        known = self._filter
        return [rows for rows in known.known_sizes(DECODE) if self.num_samples(rows)]

    def _drafters(self) -> list[str]:
        return sorted({work.kind.removeprefix(DRAFTS) for work in self._filter.indices if work.kind.startswith(DRAFTS)})

    def _draft_costs(self, drafter: str) -> dict[int, float]:
        """Return the costs of draft steps by number of rows, ascending, relative to the level."""
        costs = self._drafts.get(drafter)
        if costs is None:
            known, kind = self._filter, DRAFTS + drafter
            costs = self._drafts[drafter] = {
                rows: math.exp(known.log_seconds(Work(kind, rows)) - known.level) for rows in known.known_sizes(kind)
            }
        return costs

    # ---- what is measured
    def calibrate(self, seconds: Mapping[int, Sequence[float]]) -> None:
        """Learn decodes that were measured one after another over an empty context; single rows must be among them."""
        single = statistics.median(seconds[1])
        noise = measure_noise(seconds.values())
        known = self._filter
        known.set_noise(DECODE, noise)
        known.set_level(math.log(single), noise)
        for rows, took in seconds.items():
            spread = max(noise, math.log(max(took) / min(took)) / 2) * math.sqrt(2 / len(took))
            least = FEW_DEVIATION / len(took) if len(took) < MANY else 0.0
            if rows == 1:
                spread = least = 0.0  # it is the unit of the others, which are as uncertain relative to it
            work = Work(DECODE, rows)
            num_samples = known.num_samples(work) + len(took)
            known.set_ratio(work, statistics.median_low(took) / single, max(spread, least), num_samples=num_samples)
            self._kernel_warmup.note(work)
        self._ratios = []

    def learn(self, num_rows: int, seconds: float, *, num_cells: int = 0) -> None:
        """Learn a decode of a real step; each of its rows attended to num_cells cells, as in `seconds`."""
        self.learn_many(num_rows, [seconds], num_cells=num_cells, is_plain=num_rows == 1)

    def learn_many(
        self, num_rows: int, seconds: Sequence[float], *, num_cells: int = 0, is_plain: bool = False
    ) -> None:
        """Learn decodes of one size over similar contexts; MANY or more count once, by their median.

        is_plain  they had no drafts
        """
        work, known = Work(DECODE, num_rows), self._filter
        for each, count in self._summarize(work, seconds):
            if not 0 < num_rows <= MAX_ROWS:
                return
            estimate = self._estimate(num_rows)
            if not known.known_sizes(DECODE):
                known.set_level(math.log(each), NOISE)
            if work not in known.indices and known.has_room(DECODE):
                deviation = self.deviation(num_rows) if known.known_sizes(DECODE) else NOISE
                known.set_ratio(work, estimate, deviation)
            is_new = work in known.indices and not known.num_samples(work)
            self._kilocells = num_cells / 1000
            known.learn(work, each, self._kilocells, ratio=estimate, count=count, is_plain=is_plain)
            self._drafts.clear()
            if is_new or self._is_outdated():
                self._ratios = []
            else:
                self._one_s, self._slopes = self._find_unit()

    def _estimate(self, num_rows: int) -> float:
        """Return the cost of a size relative to the level, as predicted."""
        return self.seconds(num_rows, 0) / self._level_s if self.is_known else 1.0

    def learn_drafts(self, drafter: str, num_rows: int, seconds: Sequence[float]) -> None:
        """Learn draft steps after as many rows; MANY or more count once, by their median."""
        self._learn_other(Work(DRAFTS + drafter, num_rows), seconds, lambda: self.draft_seconds(drafter, num_rows))

    def learn_reading(self, drafter: str, num_tokens: int, seconds: float) -> None:
        """Learn how long the drafter took to prefill tokens of a text."""
        self._learn_other(Work(READS + drafter, 1), [seconds / num_tokens], lambda: 0.0)

    def learn_overheads(self, may_draft: bool, samples: Sequence[tuple[int, float]]) -> None:
        """Learn the rows and the seconds outside decode and draft steps of steps; MANY or more count once, by their
        median.
        """
        row_time, rests = self._row_times[may_draft], []
        for num_rows, seconds in samples:
            row_time.learn(num_rows, seconds)
            rests.append(max(seconds - num_rows * row_time.row_s, MIN_SECONDS))
        self._learn_other(HOST[may_draft], rests, lambda: self.overhead(may_draft, 0))

    def _learn_other(self, work: Work, seconds: Sequence[float], estimate: Callable[[], float]) -> None:
        """Learn samples of a work that is no decode; `estimate` returns the seconds of a new one, or 0.0."""
        known = self._filter
        for each, count in self._summarize(work, seconds):
            if work not in known.indices:
                known.set_ratio(work, (estimate() or each) / self._level_s, ESTIMATED_DEVIATION)
            known.learn(work, each, ratio=1.0, count=count)
        self._drafts.clear()
        if known.has_moved(self._table_shape, TABLE_TOLERANCE):  # all that is raised may have returned
            self._ratios = []

    def _summarize(self, work: Work, seconds: Sequence[float]) -> list[tuple[float, int]]:
        """Return the samples that count, each with its number: MANY or more count once, by their median."""
        if self._kernel_warmup.note(work):
            seconds = seconds[1:]
        sound = [max(each, MIN_SECONDS) for each in seconds if 0.0 <= each < math.inf]
        return [(statistics.median(sound), len(sound))] if len(sound) >= MANY else [(each, 1) for each in sound]

    def _is_outdated(self) -> bool:
        """Return whether to recompute the table: the level moves at every step, the ratios hardly."""
        self._table_age += 1
        return self._table_age >= TABLE_STEPS or self._filter.has_moved(self._table_shape, TABLE_TOLERANCE)

    # ---- what outlives the process
    def state(self) -> dict[str, object]:
        """Return everything learned, as plain data."""
        known = self._filter
        sizes = known.known_sizes(DECODE)
        one_s, (per_cell, per_row_cell) = self._find_unit()
        relative = self._level_s / one_s
        return {
            "format": FORMAT,
            "level": math.log(one_s),
            "slopes": [per_cell, per_row_cell, known.slope_deviation],
            "sizes": [
                [rows, self._relative_cost(Work(DECODE, rows)), self.deviation(rows), self.num_samples(rows)]
                for rows in sizes
            ],
            "noise": known.noise(DECODE),
            "drafters": {
                name: [[rows, cost * relative] for rows, cost in self._draft_costs(name).items()]
                for name in self._drafters()
            },
            "reading": {
                work.kind.removeprefix(READS): self._relative_cost(work)
                for work in known.indices
                if work.kind.startswith(READS)
            },
            "overheads": [self._relative_cost(work) if work in known.indices else None for work in HOST.values()],
            "row_overheads": [each.row_s / one_s for each in self._row_times.values()],
        }

    def restore(self, state: object) -> bool:
        """Load what was learned earlier. Return False, and change nothing, if the data is not understood."""
        try:
            saved = SavedCosts.read(state)
        except UNREADABLE:
            return False
        known = self._filter = CostFilter()
        known.set_level(saved.level, STORED_LEVEL_DEVIATION)
        per_cell, per_row_cell, deviation = saved.slopes
        known.set_slopes(per_cell, per_row_cell, min(deviation, SLOPE_DEVIATION))
        if saved.noise:
            known.set_noise(DECODE, clamp(saved.noise, NOISE_RANGE))
        for rows, ratio, deviation, samples in saved.sizes:
            known.set_ratio(Work(DECODE, rows), ratio, max(deviation, STORED_DEVIATION), num_samples=samples)
        others = {Work(DRAFTS + name, rows): cost for name, steps in saved.drafters.items() for rows, cost in steps}
        others |= {Work(READS + name, 1): cost for name, cost in saved.reading.items()}
        others |= {work: cost for work, cost in zip(HOST.values(), saved.overheads, strict=True) if cost is not None}
        unit_s = math.exp(saved.level)
        self._row_times = dict(zip(HOST, (RowTime(unit_s * cost) for cost in saved.row_overheads), strict=True))
        for work, cost in others.items():
            known.set_ratio(work, max(cost, MIN_SECONDS), UNMEASURED_DEVIATION[0], num_samples=1)
        self._ratios, self._drafts, self._is_known = [], {}, False
        return True

    # ---- the table
    def _find_unit(self) -> tuple[float, tuple[float, float]]:
        """Return the seconds of one row without context, and the slopes relative to it."""
        known = self._filter
        one_s = math.exp(known.log_seconds(ONE)) if ONE in known.indices else self._level_s
        per_cell, per_row_cell = known.slopes
        relative = self._level_s / one_s
        return one_s, (per_cell * relative, per_row_cell * relative)

    def _relative_cost(self, work: Work) -> float:
        """Return the cost of a work relative to one row."""
        return math.exp(self._filter.log_seconds(work)) / self._find_unit()[0]

    def _tabulate(self, num_rows: int) -> None:
        """Compute the ratios of all sizes up to num_rows, and up to the largest size asked for earlier."""
        known = self._filter
        self._most = max(num_rows, self._most)
        self._ratios = self._optimistic = [1.0] * (self._most + 1)
        self._one_s, self._slopes = self._find_unit()
        if self.is_known:
            sizes = known.known_sizes(DECODE)
            measured = {rows: self._relative_cost(Work(DECODE, rows)) for rows in sizes} | {1: 1.0}
            deviations = {rows: self.deviation(rows) for rows in measured}
            measured = dict(sorted(measured.items()))
            believed = smooth_costs(measured, deviations)
            self._ratios = interpolate_costs(believed, self._most)
            self._optimistic = make_optimistic(believed, deviations, self._most, noise=known.noise(DECODE))
        elif not self._measured_sizes():
            self._one_s = 0.0
        self._floored = {}
        self._table_age, self._table_shape = 0, known.shape


def measure_noise(samples: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of the logarithm of one decode, from repeated ones; outliers do not count."""
    spreads = [abs(math.log(value / statistics.median(took))) for took in samples for value in took if len(took) > 2]
    apart = [spread for spread in spreads if spread > 0.0]  # the median itself is no sample of the noise
    return max(NOISE, 1.2 * statistics.median(apart)) if apart else NOISE
