"""A simulated machine whose decodes have a stepped cost curve, a drifting level, noise, and rare outliers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from .slow_time import NO_SLOW_TIME, SlowTime

BF16 = (1.0, 1.1, 1.15, 1.22, 1.27, 1.29, 1.4, 1.5, 1.6, 1.8, 1.9, 2.05, 2.1, 2.2, 2.3, 2.37, 2.5)
Q8_0 = (1.0, 1.86, 2.16, 2.74, 4.7, 4.74, 4.2, 3.45, 3.9, 4.0, 4.1, 4.15, 4.8, 5.2, 5.5, 5.76, 6.0)
Q4_0 = (1.0, 2.22, 2.19, 1.74, 2.75, 4.5, 4.0, 3.51, 4.4, 5.0, 5.2, 5.47, 5.3, 5.2, 5.0, 4.92, 5.2)
# 300 M parameters, q8_0: the second row takes another kernel, what follows costs little
CLIFF = (1.0, 2.3, 2.33, 2.37, 2.45, 2.5, 2.55, 2.6, 2.75, 2.85, 2.95, 3.05, 3.2, 3.3, 3.4, 3.5, 3.7)
GPU = (1.0, 1.01, 1.01, 1.02, 1.02, 1.03, 1.03, 1.04, 1.7, 1.7, 1.71, 1.71, 1.72, 1.72, 1.73, 1.73, 2.4)
# three quarters of a step read experts from RAM, 8 of 128 a row, as recorded by tests/measures/expert_routing.py
EXPERTS = (1.0, 1.65, 2.22, 2.71, 3.15, 3.58, 3.93, 4.25, 4.8, 5.18, 5.54, 5.88, 6.2, 6.5, 6.78, 7.06, 7.32)
Level = Callable[[int], float]  # of a step's number


def steady(step: int) -> float:
    return 0.07


def drifting(step: int) -> float:
    """Return seconds that drift by 30 % up and down, with a period of about a minute."""
    return 0.07 * (1 + 0.3 * math.sin(step / 140))


@dataclass
class SimulatedMachine:
    seed: int = 0
    ratios: Sequence[float] = Q8_0  # [rows - 1]
    level: Level = steady
    noise: float = 0.05
    hiccups: float = 0.05  # share of decodes that take two to five times as long
    per_cell: float = 0.0  # per 1000 cells, in decodes of one row
    per_row_cell: float = 0.0
    kernels_s: float = 0.0  # what the first run of a kind takes to make them
    slow_time: SlowTime = NO_SLOW_TIME
    step: int = 0
    clock_s: float = 0.0  # measured seconds so far
    has_run: set[Hashable] = field(default_factory=set)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def true_seconds(self, num_rows: int, num_cells: int = 0) -> float:
        context = (self.per_cell + self.per_row_cell * num_rows) * num_cells / 1000
        return self.level(self.step) * (self.ratios[num_rows - 1] + context)

    def decode(self, num_rows: int, num_cells: int = 0) -> float:
        """Return the seconds of a decode as measured, and go on to the next step."""
        seconds = self.true_seconds(num_rows, num_cells) * math.exp(self.chance.gauss(0.0, self.noise))
        self.step += 1
        seconds = seconds * self.slow_time.decode_factor(self.clock_s, num_rows, self.chance)
        seconds += self.first_run_s(num_rows)
        return seconds * self.chance.uniform(2, 5) if self.chance.random() < self.hiccups else seconds

    def first_run_s(self, kind: Hashable) -> float:
        """Return the extra seconds of the first run of a kind; 0 from the second one on."""
        is_first = kind not in self.has_run
        self.has_run.add(kind)
        return self.kernels_s if is_first else 0.0
