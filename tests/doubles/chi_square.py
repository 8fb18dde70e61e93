"""Pearson's chi-square test without scipy: the probability of counts at least as odd as the given ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

Outcome = TypeVar("Outcome", bound=Hashable)
MIN_EXPECTED = 5.0  # rarer outcomes are counted together


def p_value(observed: Counter[Outcome], expected: Mapping[Outcome, float]) -> float:
    """Return the probability, under `expected` (outcome -> probability), of a statistic this large or larger.

    An outcome that `expected` gives no chance makes it 0.
    """
    total = observed.total()
    if any(count and expected.get(outcome, 0.0) <= 0.0 for outcome, count in observed.items()):
        return 0.0
    cells: list[tuple[float, float]] = []  # (observed, expected)
    rest = [0.0, 0.0]
    for outcome, chance in expected.items():
        if chance * total >= MIN_EXPECTED:
            cells.append((observed[outcome], chance * total))
        else:
            rest[0] += observed[outcome]
            rest[1] += chance * total
    if rest[1] > 0:
        cells.append((rest[0], max(rest[1], 1e-9)))
    statistic = sum((seen - due) ** 2 / due for seen, due in cells)
    return upper_gamma((len(cells) - 1) / 2, statistic / 2)


def upper_gamma(a: float, x: float) -> float:
    """Return the regularized upper incomplete gamma function Q(a, x): series below a + 1, Lentz's fraction above."""
    if x <= 0 or a <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while abs(term) > 1e-15 * abs(total):
            n += 1
            term *= x / n
            total += term
        return max(1 - total * scale, 0.0)
    b = x + 1 - a
    c, d = 1e300, 1 / b
    fraction = d
    for i in range(1, 1000):
        b += 2
        d = 1 / (-i * (i - a) * d + b)
        c = b + -i * (i - a) / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * fraction
