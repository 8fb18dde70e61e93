"""Decide which steps run in another way than seems best, so that what it would cost stays known.

What is believed too expensive never runs, and nothing contradicts the belief. So from time to time a step runs in the
other way: often at first, then more rarely. It is compared with the steps beside it (level_difference.py). If they
disagree, two more such steps follow, each between others, and all of them together correct the costs. Steps that run in
the other way anyway are compared as well.

Pure: counts steps, and takes levels from its caller.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from eaglelocal.speculation.policy.level_difference import NUM_PAIRS, LevelDifference

FIRST_GAP, MAX_GAP = 16, 1024  # steps before a probe: at first, at most
NUM_CONFIRMATIONS = NUM_PAIRS // 2  # probes, the one that surprised included


@dataclass(frozen=True, slots=True)
class Correction:
    """What the probes cost.

    error  logarithm of their cost relative to what was believed, the steps beside them being believed
    level  logarithm of the seconds of a decode of one row, as the probes imply
    """

    error: float
    level: float


@dataclass(slots=True)
class CostProbe:
    """The schedule of probes of one kind, for one number of decoding slots."""

    max_gap: int = MAX_GAP
    gap: int = FIRST_GAP
    num_others: int = 0  # steps since the last probe
    num_confirming: int = 0  # probes still to come, because one surprised
    difference: LevelDifference = field(default_factory=LevelDifference)
    levels: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_CONFIRMATIONS))  # of probes

    @property
    def is_due(self) -> bool:
        return self.num_others >= (1 if self.num_confirming else self.gap)

    def record(self, is_probe: bool, level: float | None) -> Correction | None:
        """Record a step. Return a correction where probes and the steps beside them disagree.

        level  logarithm of the level that the step implies; None: not known
        """
        if not is_probe:
            self.num_others += 1
        else:
            self._reschedule(level)
        if level is None:
            self.difference.interrupt()
            return None
        if is_probe:
            self.levels.append(level)
        self.difference.add(is_probe, level)
        error = self.difference.error
        if not error:
            return None
        self.difference.clear()
        self.gap, self.num_confirming = FIRST_GAP, 0
        return Correction(error, statistics.median(self.levels))

    def _reschedule(self, level: float | None) -> None:
        """Choose when the next probe is due, after one."""
        is_due, self.num_others = self.is_due, 0
        if not is_due:
            return
        if self.num_confirming:
            self.num_confirming -= 1
        elif level is None or self.difference.is_near(level):
            self.gap = min(2 * self.gap, self.max_gap)
        else:
            self.gap, self.num_confirming = FIRST_GAP, NUM_CONFIRMATIONS - 1
