"""Compare the costs of two kinds of steps, by steps of one kind that are next to steps of the other.

Each decode implies a level: its seconds, divided by what its size is believed to cost relative to one row. Steps that
follow one another run on the same machine, so if they imply different levels, the beliefs are wrong. A machine that
becomes slower changes both alike; it falsifies a pair only if it changes just between the two, and the median of several
pairs does not follow that.

    drafted 0.07, plain 0.07, drafted 0.07        (seconds / cost) the beliefs agree
    drafted 0.07, plain 0.12, drafted 0.07        plain steps are dearer than believed, relative to drafted ones
    drafted 0.07, 0.14, plain 0.14, drafted 0.14  the machine became slower

Pure.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

TOLERANCE = math.log(1.2)
NUM_PAIRS = 6  # three steps of one kind, each between two of the other
SURE = 2.0  # by how many times the spread of the pairs a difference exceeds it; more than this is no chance


class LevelDifference:
    """The difference between the levels that steps of two kinds imply."""

    def __init__(self) -> None:
        self._last: tuple[bool, float] | None = None  # kind and level of the step before
        self._pairs: deque[float] = deque(maxlen=NUM_PAIRS)

    def add(self, is_first: bool, level: float) -> None:
        """Add a step; `level`: logarithm of the level that it implies."""
        if self._last is not None and self._last[0] is not is_first:
            self._pairs.append(level - self._last[1] if is_first else self._last[1] - level)
        self._last = is_first, level

    def interrupt(self) -> None:
        """Record a step whose seconds cannot be compared."""
        self._last = None

    def clear(self) -> None:
        self._last = None
        self._pairs.clear()

    def is_near(self, level: float) -> bool:
        """Return whether the step before, if there is one to compare with, implies about this level."""
        return self._last is None or abs(level - self._last[1]) < TOLERANCE

    @property
    def error(self) -> float:
        """Logarithm of how much higher the level of the first kind is; 0.0: not more than by chance, or few pairs."""
        if len(self._pairs) < NUM_PAIRS:
            return 0.0
        middle = statistics.median(self._pairs)
        spread = statistics.median([abs(pair - middle) for pair in self._pairs])
        return middle if abs(middle) >= max(TOLERANCE, SURE * spread) else 0.0
