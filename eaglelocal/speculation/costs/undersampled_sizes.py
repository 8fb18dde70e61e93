"""Estimate the costs of sizes that ran only a few times: by the better half of their runs (the lower median).

An outlier takes two to ten times as long, and a size that looks too expensive is not run again, so one outlier in the
first runs would rule it out. A filter that learns a new size fast would follow outliers too, hence the median. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from eaglelocal.speculation.stored_numbers import clamp

DEVIATION = {1: 0.25, 2: 0.12, 3: 0.08, 4: 0.06}  # at least, as a logarithm, by number of runs
MAX_DOUBT = 1.0  # at most, of a first run that surprises
RATIOS = (0.8, 1e6)  # limits of a run: less was timed while the machine changed, more while it slept


class UndersampledSizes:
    """The runs of sizes with few samples, as costs relative to one row."""

    def __init__(self) -> None:
        self._ratios: dict[int, list[float]] = {}

    def __contains__(self, num_rows: int) -> bool:
        return num_rows in self._ratios

    def begin(self, num_rows: int, ratios: Sequence[float] = ()) -> None:
        self._ratios[num_rows] = list(ratios)

    def end(self, num_rows: int) -> None:
        """Forget the size, because its cost is now known otherwise or cannot be separated from its context's."""
        self._ratios.pop(num_rows, None)

    def add(self, num_rows: int, ratio: float, *, estimate: float) -> tuple[float, float]:
        """Add a run. Return the estimated cost of the size and its uncertainty (of the logarithm).

        estimate  the earlier estimate: the more the first run exceeds it, the less the run is believed
        """
        ratios = self._ratios[num_rows]
        ratios.append(clamp(ratio, RATIOS))
        deviation = DEVIATION[len(ratios)]
        if len(ratios) == 1:
            deviation = max(deviation, min(math.log(ratios[0] / estimate) / 2, MAX_DOUBT))
        if len(ratios) == len(DEVIATION):
            self.end(num_rows)
        return statistics.median_low(ratios), deviation

    def scale(self, factor: float) -> None:
        """Rescale all runs because the cost of one row, their unit, was corrected."""
        self._ratios = {rows: [ratio * factor for ratio in ratios] for rows, ratios in self._ratios.items()}
