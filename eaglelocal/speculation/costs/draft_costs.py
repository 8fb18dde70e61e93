"""Keep the costs of a step besides the target's decode: draft steps, and overhead (sampling, encoding, emitting).

Relative to a decode of one row, as all costs are: the machine's level moves them together. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from eaglelocal.speculation.costs.cost_curve import BEYOND, REACH, interpolate_costs
from eaglelocal.speculation.costs.saved_costs import SavedCosts

NUM_RECENT = 15  # samples in a median
FEW_SAMPLES = 4  # of a number of rows, up to which others limit what is believed of it
READING_SHARE = 1 / 32  # of a draft step: the cost of prefilling one token among many; optimistic, until measured
DEAR, USUAL = 1.5, 1.2  # times the usual median: above it, something slows the steps down; below it, nothing does
FOLLOWS, RISES = 1 / 16, 1 / 1024  # share by which a sample moves the usual median; RISES while steps are expensive
FALLEN, NUM_FALLEN = 0.7, 3  # share of the median below which a sample is far below it, and how many in a row


class DraftCosts:
    """The medians of recent draft steps by drafter and rows, and the overheads of steps with and without awake
    drafters.
    """

    def __init__(self, saved: SavedCosts | None = None) -> None:
        drafters = saved.drafters if saved else {}
        overheads = saved.overheads if saved else (None, None)
        self._drafters = {
            name: {rows: RecentMedian([median]) for rows, median in steps} for name, steps in drafters.items()
        }
        self._overheads = {
            drafted: RecentMedian([] if median is None else [median])
            for drafted, median in zip((False, True), overheads, strict=True)
        }
        self._encoding = RecentMedian()
        self._reading = {
            name: RecentMedian([median]) for name, median in (saved.reading if saved else {}).items()
        }  # of a token, by drafter
        self._dear: set[str] = set()  # drafters

    def is_dear(self, drafter: str) -> bool:
        """Return whether draft steps like the drafter's last one cost far more than they usually do."""
        return drafter in self._dear

    def draft_step(self, drafter: str, num_rows: int) -> float:
        """Return the cost of a draft step; 0.0 for a drafter that has not run yet, so that it is tried."""
        steps = self._drafters.get(drafter)
        if not steps:
            return 0.0
        if num_rows in steps:
            return believed_median(steps, num_rows)
        return interpolate_costs({rows: believed_median(steps, rows) for rows in sorted(steps)}, num_rows)[num_rows]

    def untried_draft_step(self, drafter: str, num_rows: int) -> float:
        """Return the cost of a draft step; optimistic for up to REACH times the largest number of rows that ran.

        A number of rows that looks too expensive would never run, and its cost would never be known.
        """
        most = max(self._drafters.get(drafter, {}), default=0)
        if not most < num_rows <= REACH * most:
            return self.draft_step(drafter, num_rows)
        return self.draft_step(drafter, most) * float((num_rows / most) ** BEYOND)

    def reading(self, drafter: str) -> float:
        """Return the cost of prefilling one token of a text in the drafter. Before any was measured, it is a share of a
        draft step.
        """
        recent = self._reading.get(drafter)
        return recent.median if recent else READING_SHARE * self.draft_step(drafter, 1)

    def overhead(self, drafted: bool) -> float:
        """Return the cost of a step outside decode and draft steps.

        A kind of step that has not run is estimated from the other kind; a plain step without the time in which
        drafters encode the target's rows.
        """
        recent = self._overheads[drafted]
        if recent:
            return recent.median
        encoding = 0.0 if drafted else self._encoding.median
        return max(self._overheads[not drafted].median - encoding, 0.0)

    def measured(self) -> list[tuple[str, int, float, int]]:
        """Return drafter, rows, cost and number of samples of every kind of draft step that ran."""
        return [
            (drafter, rows, steps[rows].median, steps[rows].num_samples)
            for drafter, steps in sorted(self._drafters.items())
            for rows in sorted(steps)
        ]

    def add_draft_step(self, drafter: str, num_rows: int, cost: float) -> None:
        steps = self._drafters.setdefault(drafter, {})
        if num_rows not in steps:
            steps[num_rows] = RecentMedian()
        steps[num_rows].add(cost)
        (self._dear.add if steps[num_rows].is_dear else self._dear.discard)(drafter)

    def add_reading(self, drafter: str, cost: float) -> None:
        self._reading.setdefault(drafter, RecentMedian()).add(cost)

    def add_overhead(self, drafted: bool, cost: float, encoding: float) -> None:
        """Add a step's overhead.

        encoding  the part in which drafters' models encode the target's rows
        """
        self._overheads[drafted].add(cost)
        if drafted:
            self._encoding.add(encoding)

    def scale(self, factor: float) -> None:
        """Rescale everything because the cost of one row, the unit, was corrected."""
        drafters = [recent for steps in self._drafters.values() for recent in steps.values()]
        for recent in (*drafters, *self._overheads.values(), *self._reading.values(), self._encoding):
            recent.scale(factor)

    def state(self) -> dict[str, object]:
        """Return the part that SavedCosts keeps, as plain data."""
        drafters = {
            name: [[rows, step.median] for rows, step in sorted(steps.items())]
            for name, steps in self._drafters.items()
        }
        return {
            "drafters": drafters,
            "reading": {name: recent.median for name, recent in self._reading.items()},
            "overheads": [recent.median if recent else None for recent in self._overheads.values()],
        }


def believed_median(steps: Mapping[int, RecentMedian], num_rows: int) -> float:
    """Return the median for a number of rows; with few samples, at most proportional to the median of fewer rows.

    The first draft for many slots at once often prefills what was deferred in all of them. If that sample were
    believed, it would remain the only one.
    """
    known = steps[num_rows]
    if known.num_samples >= FEW_SAMPLES:
        return known.median
    fewer = [rows for rows, each in steps.items() if rows < num_rows and each.num_samples >= FEW_SAMPLES]
    return min(known.median, steps[max(fewer)].median * num_rows / max(fewer)) if fewer else known.median


class RecentMedian:
    """The median of the last NUM_RECENT samples, or of the last NUM_FALLEN if all of those are far below it.

    A drafter that looks too expensive runs only in short probes, which must suffice to show that it has become cheap.
    Where it was cheap before, one sample suffices: another program can make a draft step slower, but nothing makes it
    faster.
    """

    __slots__ = ("_median", "_num_fallen", "_usual", "_values", "num_samples")

    def __init__(self, values: Sequence[float] = ()) -> None:
        self._values: deque[float] = deque(maxlen=NUM_RECENT)
        self._median: float | None = 0.0  # None: to be computed when it is asked for
        self._usual = 0.0  # median as it was for long
        self.num_samples = self._num_fallen = 0
        for value in values:
            self.add(value)

    def __bool__(self) -> bool:
        return self.num_samples > 0

    @property
    def is_dear(self) -> bool:
        """Return whether the median is far higher than usual."""
        return self.median > DEAR * self._usual

    def add(self, value: float) -> None:
        before = self.median
        if self.is_dear and value < USUAL * self._usual:
            self._values.clear()
        self._values.append(value)
        self.num_samples += 1
        self._median = None
        self._num_fallen = self._num_fallen + 1 if value < FALLEN * before else 0
        if self._num_fallen >= NUM_FALLEN:
            self._values = deque(list(self._values)[-NUM_FALLEN:], maxlen=NUM_RECENT)
            self._num_fallen = 0
        share = RISES if self.is_dear else FOLLOWS
        if self.num_samples <= NUM_RECENT:
            share = 1 / self.num_samples
        self._usual += share * (self.median - self._usual)

    def scale(self, factor: float) -> None:
        self._values = deque((value * factor for value in self._values), maxlen=NUM_RECENT)
        self._median = self._median and self._median * factor
        self._usual *= factor

    @property
    def median(self) -> float:
        if self._median is None:
            self._median = sorted(self._values)[len(self._values) // 2]
        return self._median
