"""Decide which steps run plain, so that the cost of a plain step stays known.

The gain of drafting is computed against a plain step. Where drafting seems to gain, no step would be plain, and a wrong
cost of plain steps would persist: `auto` could stay slower than plain while it reports a gain. So from time to time a
step drafts nothing: often at first, then more rarely. It is compared with the drafted steps beside it
(level_difference.py). If they disagree, two more plain steps follow, each between drafted ones, and all of them together
correct the costs. Steps that are plain anyway are compared as well.

Pure: counts steps, and takes levels from its caller.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from eaglelocal.speculation.policy.level_difference import NUM_PAIRS, LevelDifference

FIRST_GAP, MAX_GAP = 16, 1024  # drafted steps before a plain one: at first, at most
NUM_CONFIRMATIONS = NUM_PAIRS // 2  # plain steps, the one that surprised included


@dataclass(frozen=True, slots=True)
class Correction:
    """What plain steps cost.

    error  logarithm of their cost relative to what was believed, drafted steps being believed
    level  logarithm of the seconds of a decode of one row, by plain steps
    """

    error: float
    level: float


@dataclass(slots=True)
class BaselineProbe:
    """The schedule of plain steps for one number of decoding slots."""

    gap: int = FIRST_GAP
    num_drafted: int = 0  # steps since the last plain one
    num_confirming: int = 0  # plain steps still to come, because one surprised
    difference: LevelDifference = field(default_factory=LevelDifference)
    levels: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_CONFIRMATIONS))  # of plain steps

    @property
    def is_due(self) -> bool:
        return self.num_drafted >= (1 if self.num_confirming else self.gap)

    def record_drafted(self, level: float | None) -> Correction | None:
        """Record a drafted step; `level`: logarithm of the level that it implies, None: not known."""
        self.num_drafted += 1
        return self._record(False, level)

    def record_plain(self, level: float | None) -> Correction | None:
        """Record a plain step. Return a correction where plain steps and those beside them disagree."""
        if level is not None:
            self.levels.append(level)
        is_due, self.num_drafted = self.is_due, 0
        is_agreed = level is not None and self.difference.is_near(level)
        if is_due and self.num_confirming:
            self.num_confirming -= 1
        elif is_due:
            self.gap = min(2 * self.gap, MAX_GAP) if is_agreed else FIRST_GAP
            self.num_confirming = 0 if is_agreed or level is None else NUM_CONFIRMATIONS - 1
        return self._record(True, level)

    def _record(self, is_plain: bool, level: float | None) -> Correction | None:
        if level is None:
            self.difference.interrupt()
            return None
        self.difference.add(is_plain, level)
        error = self.difference.error
        if not error:
            return None
        self.difference.clear()
        self.gap, self.num_confirming = FIRST_GAP, 0
        return Correction(error, statistics.median(self.levels))
