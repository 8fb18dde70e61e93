"""Ratios of paired runs: geometric means with bounds. Machines drift, so only pairs are compared.

Statistics are computed on logarithms of ratios. The bootstrap resamples units: one number for each prompt (its
repeats averaged), within categories, whose means have equal weight. The bootstrap of a small sample is too narrow
(n prompts spread by (n-1)/n of their variance, and it ignores the uncertainty of that spread), so its
deviations are widened by sqrt(n / (n-1)) and by t / z: on normal deviations this is Student's interval, on
skewed ones it keeps the skew (after Hesterberg 2015, doi:10.1080/00031305.2015.1089789).
A unit that is alone in its category is assumed to vary as those of the other categories do around their means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from eaglelocal.core.records import dataclass

RESAMPLES = 2000
TWO_SIDED, ONE_SIDED = 0.975, 0.95  # quantiles of the interval's ends, and of the one-sided bound


@dataclass(frozen=True, slots=True)
class Bound:
    """A geometric mean of ratios, its 95 % interval (`low`, `high`), and its one-sided 95 % lower bound (`least`).

    A single unit has no spread: then only the mean is known, and the interval is 0 to infinity.
    """

    mean: float
    low: float = 0.0
    high: float = math.inf
    least: float = 0.0

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.high)

    @property
    def shows_difference(self) -> bool:
        """True if 1 lies outside the interval."""
        return not self.low <= 1.0 <= self.high

    @property
    def is_wide(self) -> bool:
        """True if the interval is wider than the distance of the mean from 1."""
        return self.high - self.low > abs(self.mean - 1.0)


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def bound_mean(groups: Sequence[Sequence[float]], *, seed: int = 0) -> Bound:
    """Return the geometric mean of the groups' geometric means, with bounds.

    If every group has one unit, they are treated as one sample. Example: [[2.0, 2.0], [1.0, 1.0]] -> 1.41, and
    no width, since no prompt differs from its category.
    """
    logs = [np.log(np.asarray(group, dtype=np.float64)) for group in groups if len(group)]
    centre = float(np.mean([group.mean() for group in logs]))
    if all(len(group) < 2 for group in logs):
        logs = [np.concatenate(logs)]
    if len(logs[0]) < 2 and len(logs) == 1:
        return Bound(math.exp(centre))
    deviations, freedom = resample(logs, seed), degrees_of_freedom(logs)

    def end(quantile: float, tail: float) -> float:
        widened = np.quantile(deviations, tail) * t_quantile(quantile, freedom) / NormalDist().inv_cdf(quantile)
        return math.exp(centre + float(widened))

    low, high = end(TWO_SIDED, 1 - TWO_SIDED), end(TWO_SIDED, TWO_SIDED)
    return Bound(math.exp(centre), low, high, end(ONE_SIDED, 1 - ONE_SIDED))


def resample(groups: Sequence[NDArray[np.float64]], seed: int) -> NDArray[np.float64]:
    """Return the deviations of the mean of means over bootstrap samples, drawn within each group.  # [RESAMPLES]"""
    rng = np.random.default_rng(seed)
    total = np.zeros(RESAMPLES)
    for group in groups:
        if len(group) == 1:
            total += rng.choice(pool_deviations(groups), size=RESAMPLES)
            continue
        drawn = rng.choice(group, size=(RESAMPLES, len(group))).mean(axis=1)
        total += (drawn - group.mean()) * math.sqrt(len(group) / (len(group) - 1))
    return total / len(groups)


def pool_deviations(groups: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the units' deviations from their groups' means, widened by sqrt(n / (n-1)); groups of one are left out."""
    several = [group for group in groups if len(group) > 1]
    return np.concatenate([(group - group.mean()) * math.sqrt(len(group) / (len(group) - 1)) for group in several])


def degrees_of_freedom(groups: Sequence[NDArray[np.float64]]) -> float:
    """Return the degrees of freedom of a mean of means, after Welch and Satterthwaite.

    Groups without spread add nothing; groups of one unit use the pooled spread of the others.
    """
    several = [group for group in groups if len(group) > 1]
    pooled = sum(len(group) - 1 for group in several)
    shares = [float(group.var(ddof=1)) / len(group) for group in several]
    doubt = sum(share**2 / (len(group) - 1) for share, group in zip(shares, several, strict=True))
    if len(several) < len(groups):  # all groups of one unit share one spread
        alone = (len(groups) - len(several)) * float(np.mean(pool_deviations(groups) ** 2))
        shares, doubt = [*shares, alone], doubt + alone**2 / pooled
    return sum(shares) ** 2 / doubt if doubt > 0 else float(pooled)


def t_quantile(p: float, freedom: float) -> float:
    """Return the quantile of Student's t for p > 0.5.

    Closed form for one and two degrees of freedom, else Cornish and Fisher's expansion around the normal quantile
    (Abramowitz and Stegun 26.7.5): within 1 % from three degrees on. Fractional degrees are rounded down, which
    gives the wider interval.
    """
    n = max(math.floor(freedom + 1e-6), 1)  # for one group it is a whole number, up to rounding
    if n == 1:
        return math.tan(math.pi * (p - 0.5))
    if n == 2:
        return (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(n) ** power for power, term in enumerate(terms, start=1))
