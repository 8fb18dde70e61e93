"""Sizes that ran a few times: what they cost is said by the better half of those, until there are enough of them.

A hiccup takes two to ten times as long, and a size that looks too dear is not run again, so one in the first runs would
put it out of use. A filter that is open to learn a size is as open to a hiccup, hence the median. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from eaglelocal.speculation.stored import bounded

DEVIATION = {1: 0.25, 2: 0.12, 3: 0.08, 4: 0.06}  # at least, as a logarithm, by the number of runs
MAX_DOUBT = 1.0  # likewise, of a first run that surprises
RATIOS = (0.8, 1e6)  # of several rows to one: what says less was timed while the machine changed, and it may sleep


class FewRuns:
    """Costs relative to one row, by size, of the sizes that are being tried out."""

    def __init__(self) -> None:
        self._ratios: dict[int, list[float]] = {}

    def __contains__(self, num_rows: int) -> bool:
        return num_rows in self._ratios

    def begin(self, num_rows: int, ratios: Sequence[float] = ()) -> None:
        self._ratios[num_rows] = list(ratios)

    def end(self, num_rows: int) -> None:
        """The size is known by other means, or cannot be known like this."""
        self._ratios.pop(num_rows, None)

    def add(self, num_rows: int, ratio: float, *, guess: float) -> tuple[float, float]:
        """Another run. Returns what the size costs, and how uncertain that is.

        guess  what it was held to cost: the more the first run surprises, the less it is believed
        """
        ratios = self._ratios[num_rows]
        ratios.append(bounded(ratio, RATIOS))
        deviation = DEVIATION[len(ratios)]
        if len(ratios) == 1:
            deviation = max(deviation, min(math.log(ratios[0] / guess) / 2, MAX_DOUBT))
        if len(ratios) == len(DEVIATION):
            self.end(num_rows)
        return statistics.median_low(ratios), deviation

    def scale(self, factor: float) -> None:
        """One row costs otherwise than was believed."""
        self._ratios = {rows: [ratio * factor for ratio in ratios] for rows, ratios in self._ratios.items()}
