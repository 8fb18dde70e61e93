"""How many tokens a step of a draft brings, as far as it is known before the draft ever ran here. Pure.

A report is a pair (drafted tokens k, mean tokens of a step with the bonus token). With each drafted token accepted
with the same probability a, a step brings E(k) = 1 + a + ... + a^k (Leviathan et al. 2023); reports are turned into a
and read in between. Without a report a stated, careful value stands in. What an engine measures replaces all of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

HEAD_DEFAULT = 0.55  # under the median of the reported heads (0.62): an unknown head is no better than the weaker half
MTP_DEFAULT = 0.6  # of what is reported of Qwen3.5 and 3.6 (0.65 to 0.85 at two to four tokens), less than the least
MODEL_DEFAULT = 0.55  # of a small model of the same family
PRECISION = 1e-6


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`points`: (drafted tokens, probability that each is accepted), ascending. `is_reported`: not a default."""

    points: tuple[tuple[int, float], ...]
    is_reported: bool

    @classmethod
    def of(cls, reports: Sequence[tuple[int, float]], *, default: float) -> Acceptance:
        """From reported acceptance lengths; `default` where there is none."""
        if not reports:
            return cls(((1, default),), is_reported=False)
        return cls(tuple((k, probability(k, tokens)) for k, tokens in sorted(reports)), is_reported=True)

    def probability(self, num_drafted: int) -> float:
        """Of each token of a chain of so many: on lines between the reports, level beyond them."""
        lengths = [k for k, _ in self.points]
        right = bisect_left(lengths, num_drafted)
        if right == 0:
            return self.points[0][1]
        if right == len(lengths):
            return self.points[-1][1]
        (low, before), (high, behind) = self.points[right - 1], self.points[right]
        return before + (behind - before) * (num_drafted - low) / (high - low)

    def tokens(self, num_drafted: int) -> float:
        """Mean tokens of a step that drafts so many, bonus token included."""
        return tokens_of_step(num_drafted, self.probability(num_drafted))


def tokens_of_step(num_drafted: int, probability: float) -> float:
    """E(k) = 1 + a + ... + a^k.

    >>> tokens_of_step(2, 0.5)
    1.75
    """
    return sum(probability**depth for depth in range(num_drafted + 1))


def probability(num_drafted: int, tokens: float) -> float:
    """The a whose E(k) is `tokens`; E grows with a, so halving finds it."""
    low, high = 0.0, 1.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_of_step(num_drafted, middle) < tokens else (low, middle)
    return (low + high) / 2
