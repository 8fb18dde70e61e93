"""Decide which steps run plain, so that the cost of a plain step stays known.

The gain of drafting is computed against a plain step. Where drafting seems to gain, no step would be plain, and a wrong
cost of plain steps would persist: `auto` could stay slower than plain while it reports a gain. So from time to time a
step drafts nothing: often at first, then more rarely. If its time surprises, two more plain steps follow, because it
may have been an outlier; the median of the three is believed.

Pure: counts steps, and takes seconds from its caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FIRST_GAP, MAX_GAP = 16, 1024  # drafted steps before a plain one: at first, at most
TOLERANCE = math.log(1.2)
NUM_CONFIRMATIONS = 3


@dataclass(slots=True)
class BaselineProbe:
    """The schedule of plain steps for one number of decoding slots."""

    gap: int = FIRST_GAP
    num_drafted: int = 0  # steps since the last plain one
    errors: list[float] = field(default_factory=list)  # logarithms of seconds / expected, of plain steps in a row

    @property
    def is_due(self) -> bool:
        return bool(self.errors) or self.num_drafted >= self.gap

    def record_drafted(self) -> None:
        self.num_drafted += 1
        self.errors.clear()

    def record_unusable(self) -> None:
        """Record a plain step whose seconds cannot be used."""
        self.num_drafted = 0
        self.errors.clear()

    def record_plain(self, seconds: float, expected_s: float) -> float:
        """Record a plain step. Return log(seconds / expected seconds) of plain steps; 0.0: nothing to correct."""
        is_due, self.num_drafted = self.is_due, 0
        if not is_due or min(seconds, expected_s) <= 0.0:
            return 0.0
        error = math.log(seconds / expected_s)
        if not self.errors and abs(error) < TOLERANCE:
            self.gap = min(2 * self.gap, MAX_GAP)
            return 0.0
        self.errors.append(error)
        if len(self.errors) < NUM_CONFIRMATIONS:
            return 0.0
        middle = sorted(self.errors)[NUM_CONFIRMATIONS // 2]
        self.errors.clear()
        self.gap = FIRST_GAP
        return middle if abs(middle) >= TOLERANCE else 0.0
