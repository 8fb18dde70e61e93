"""What a target decode of n rows costs, relative to one row.

Machines drift by the minute, so seconds measured at different times say little; ratios of decodes that
were measured side by side do. What a step would have taken with fewer rows follows from its own time.
Knows no clock: whoever measures reports what it took.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence


class RowCosts:
    """Cost of n rows as a multiple of one row: measured sizes, straight lines between and beyond them."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []  # (rows, ratio), ascending

    @property
    def is_known(self) -> bool:
        return len(self._points) > 1

    def calibrate(self, seconds: Mapping[int, Sequence[float]]) -> None:
        """Take measured decodes by number of rows; single rows must be among them."""
        single = statistics.median(seconds[1])
        self._points = sorted((rows, statistics.median(took) / single) for rows, took in seconds.items())

    def ratio(self, num_rows: int) -> float:
        """Seconds of num_rows rows / seconds of one row."""
        if not self.is_known:
            return 1.0
        at = min(max(bisect_right(self._points, (num_rows, 0.0)), 1), len(self._points) - 1)
        (low, low_ratio), (high, high_ratio) = self._points[at - 1], self._points[at]
        return low_ratio + (high_ratio - low_ratio) * (num_rows - low) / (high - low)

    def plain_seconds(self, step_s: float, *, num_rows: int, num_plain_rows: int) -> float:
        """What a decode that took step_s with num_rows would have taken with num_plain_rows."""
        return step_s * self.ratio(num_plain_rows) / self.ratio(num_rows)
