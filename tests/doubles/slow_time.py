"""A time in which a simulated machine is slower than usual, as beside another program, and for which kinds of work."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class SlowTime:
    """A time in which work takes longer.

    begin_s, seconds      when it begins, and how long it lasts, on the clock of the simulation
    decode, draft, other  by what factors the parts of a step take longer
    least_rows            rows from which decodes do
    spread                standard deviation of the logarithm of a decode's factor
    times                 how often it happens, each as long as the pause behind it
    """

    begin_s: float = math.inf
    seconds: float = 0.0
    decode: float = 1.0
    draft: float = 1.0
    other: float = 1.0
    least_rows: int = 1
    spread: float = 0.0
    times: int = 1

    @property
    def end_s(self) -> float:
        return self.begin_s + (2 * self.times - 1) * self.seconds

    def is_at(self, now_s: float) -> bool:
        return self.begin_s <= now_s < self.end_s and (now_s - self.begin_s) % (2 * self.seconds) < self.seconds

    def decode_factor(self, now_s: float, num_rows: int, chance: random.Random) -> float:
        if not self.is_at(now_s) or num_rows < self.least_rows:
            return 1.0
        return max(self.decode * math.exp(self.spread * chance.gauss(0.0, 1.0)), 1.0) if self.spread else self.decode

    def draft_factor(self, now_s: float) -> float:
        return self.draft if self.is_at(now_s) else 1.0

    def other_factor(self, now_s: float) -> float:
        return self.other if self.is_at(now_s) else 1.0


NO_SLOW_TIME = SlowTime()
