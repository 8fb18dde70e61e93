"""Ratios of paired runs: geometric means with a bootstrap bound. Machines drift, so only pairs are compared."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Bound:
    """A geometric mean of ratios and the 95 % interval around it."""

    mean: float
    low: float
    high: float


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def bounded_mean(ratios: Sequence[float], *, seed: int = 0) -> Bound:
    """Percentile bootstrap over pairs (Efron 1979); one pair gives an interval without width."""
    rng = random.Random(seed)
    means = sorted(geometric_mean(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return Bound(geometric_mean(ratios), means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1])
