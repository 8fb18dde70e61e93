"""Decide which steps draft nothing although drafting seems to pay, so that the cost of a plain step stays known.

All gains are computed against a plain step. Where drafting seems to gain, no step would be plain, and a wrong cost of
plain steps would persist: `auto` could stay slower than plain while it reports a gain. So plain steps come often at
first, then more rarely; after one that took another time than predicted, soon again. Pure: counts steps.
"""

from __future__ import annotations

import math

from eaglelocal.core.records import dataclass

FIRST_GAP, MAX_GAP = 16, 1024  # drafted steps before a plain one: at first, at most
TOLERANCE = math.log(1.2)
NUM_CONFIRMING = 5  # plain steps between drafted ones, after one that surprised: as many as correct any cost


@dataclass(slots=True)
class PlainSteps:
    """The schedule of plain steps, for one number of decoding slots."""

    gap: int = FIRST_GAP
    num_drafted: int = 0  # steps since the last plain one
    num_confirming: int = 0  # plain steps still to come, because one surprised

    @property
    def is_due(self) -> bool:
        return self.num_drafted >= (1 if self.num_confirming else self.gap)

    def record(self, *, is_plain: bool, surprise: float) -> None:
        """Record a step; surprise: the logarithm of its decode's seconds relative to those predicted."""
        if not is_plain:
            self.num_drafted += 1
            return
        was_due, self.num_drafted = self.is_due, 0
        if not was_due:
            return
        if self.num_confirming:
            self.num_confirming -= 1
        elif abs(surprise) < TOLERANCE:
            self.gap = min(2 * self.gap, MAX_GAP)
        else:
            self.gap, self.num_confirming = FIRST_GAP, NUM_CONFIRMING
