"""Compare the costs of two kinds of steps, by steps of one kind that are next to steps of the other.

Each decode implies a level: its seconds, divided by the predicted cost of its size relative to one row. Steps that
follow one another run on the same machine, so if they imply different levels, the beliefs are wrong. A machine that
becomes slower changes both alike; it falsifies a pair only if it changes just between the two, and the median of
several pairs does not follow that.

    drafted 0.07, plain 0.07, drafted 0.07        (seconds / cost) the beliefs agree
    drafted 0.07, plain 0.12, drafted 0.07        plain steps cost more than believed, relative to drafted ones
    drafted 0.07, 0.14, plain 0.14, drafted 0.14  the machine became slower

The decodes themselves are kept, and levels are computed when two are compared, because costs are learned in between.
Pure.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

TOLERANCE = math.log(1.2)
NUM_PAIRS = 6  # three steps of one kind, each between two of the other
SURE = 2.0  # the pairs' difference must exceed their spread this many times to count as real


class TimedDecode(NamedTuple):
    """The decode of a step."""

    num_rows: int
    seconds: float
    num_cells: int


LevelOf = Callable[[TimedDecode], float]  # logarithm of the level that a decode implies


class LevelDifference:
    """The difference between the levels implied by probes and by the steps next to them."""

    def __init__(self) -> None:
        self._last: tuple[bool, TimedDecode] | None = None  # the step before, and whether it was a probe
        self._pairs: deque[tuple[TimedDecode, TimedDecode]] = deque(maxlen=NUM_PAIRS)  # a probe, and another

    def add(self, is_probe: bool, decode: TimedDecode) -> bool:
        """Add a step. Return whether it and the one before are a pair."""
        last, self._last = self._last, (is_probe, decode)
        if last is None or last[0] is is_probe:
            return False
        self._pairs.append((decode, last[1]) if is_probe else (last[1], decode))
        return True

    def interrupt(self) -> None:
        """Record a step whose seconds cannot be compared."""
        self._last = None

    def clear(self) -> None:
        self._last = None
        self._pairs.clear()

    def is_near(self, decode: TimedDecode, level_of: LevelOf) -> bool:
        """Return whether the step before, if there is one to compare with, implies about the same level."""
        return self._last is None or abs(level_of(decode) - level_of(self._last[1])) < TOLERANCE

    def error(self, level_of: LevelOf) -> float:
        """Return the logarithm of how much higher the level of probes is; 0.0: by chance, or too few pairs."""
        if len(self._pairs) < NUM_PAIRS:
            return 0.0
        differences = [level_of(probe) - level_of(other) for probe, other in self._pairs]
        middle = statistics.median(differences)
        spread = statistics.median([abs(each - middle) for each in differences])
        return middle if abs(middle) >= max(TOLERANCE, SURE * spread) else 0.0

    def level(self, level_of: LevelOf) -> float:
        """Return the logarithm of the level that the probes of the pairs imply."""
        return statistics.median([level_of(probe) for probe, _ in self._pairs])
