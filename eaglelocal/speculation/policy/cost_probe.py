"""Decide which steps run in another way than seems best, so that the cost of that way stays known.

A way that is believed too expensive never runs, so nothing contradicts the belief. So from time to time a step runs in
the other way: often at first, then more rarely. It is compared with the steps beside it (level_difference.py). If they
disagree, two more such steps follow, each between others, and all of them together correct the costs. Steps that run in
the other way anyway are compared as well.

Pure: counts steps, and takes seconds from its caller.
"""

from __future__ import annotations

from dataclasses import field

from eaglelocal.core.records import dataclass
from eaglelocal.speculation.policy.level_difference import NUM_PAIRS, LevelDifference, LevelOf, TimedDecode

FIRST_GAP, MAX_GAP = 16, 1024  # steps before a probe: at first, at most
NUM_CONFIRMATIONS = NUM_PAIRS // 2  # probes, the one that surprised included


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction of costs by probes.

    error  logarithm of their cost relative to what was believed, the steps beside them being believed
    level  logarithm of the seconds of a decode of one row, as the probes imply
    """

    error: float
    level: float


@dataclass(slots=True)
class CostProbe:
    """The schedule of probes of one kind, for one number of decoding slots."""

    gap: int = FIRST_GAP
    num_others: int = 0  # steps since the last probe
    num_confirming: int = 0  # probes still to come, because one surprised
    difference: LevelDifference = field(default_factory=LevelDifference)

    @property
    def is_due(self) -> bool:
        return self.num_others >= (1 if self.num_confirming else self.gap)

    def record(self, is_probe: bool, decode: TimedDecode | None, level_of: LevelOf) -> Correction | None:
        """Record a step. Return a correction where probes and the steps beside them disagree.

        decode  of the step; None: it cannot be compared
        """
        if not is_probe:
            self.num_others += 1
        else:
            self._reschedule(decode, level_of)
        if decode is None:
            self.difference.interrupt()
            return None
        error = self.difference.error(level_of) if self.difference.add(is_probe, decode) else 0.0
        return Correction(error, self.difference.level(level_of)) if error else None

    def _reschedule(self, decode: TimedDecode | None, level_of: LevelOf) -> None:
        """Choose when the next probe is due, after one."""
        is_due, self.num_others = self.is_due, 0
        if not is_due:
            return
        if self.num_confirming:
            self.num_confirming -= 1
        elif decode is None or self.difference.is_near(decode, level_of):
            self.gap = min(2 * self.gap, MAX_GAP)
        else:
            self.gap, self.num_confirming = FIRST_GAP, NUM_CONFIRMATIONS - 1

    def begin_again(self) -> None:
        """Forget the steps so far, because the costs were corrected."""
        self.difference.clear()
        self.gap, self.num_confirming = FIRST_GAP, 0
