"""Measured seconds of a target decode by number of rows: recent medians, which forget.

Knows no clock: the engine reports what a step took.
"""

from __future__ import annotations

import statistics
from collections import deque

WINDOW = 40  # machines drift by the minute


class StepCosts:
    """Seconds of a decode of n rows."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}

    def record(self, num_rows: int, seconds: float) -> None:
        self._recent.setdefault(num_rows, deque(maxlen=WINDOW)).append(seconds)

    def seconds(self, num_rows: int) -> float | None:
        """Median of the recent decodes of this many rows; else of the nearest fewer; None if unknown."""
        for rows in range(num_rows, 0, -1):
            if rows in self._recent:
                return statistics.median(self._recent[rows])
        return None
