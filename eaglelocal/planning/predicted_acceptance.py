"""Predict the acceptance length of a draft that has not run on this machine yet. Pure.

A report is a pair (drafted tokens k, mean tokens of a step, bonus token included). If each drafted token is accepted
with the same probability a, a step emits E(k) = 1 + a + ... + a^k tokens on average (Leviathan et al. 2023). Each
report is converted to its a, and values between reports are interpolated. A draft without reports gets a conservative
default. What an engine measures replaces all of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from eaglelocal.core.records import dataclass

HEAD_DEFAULT = 0.55  # below the median of the reported heads (0.62): assume that an unknown head is in the weaker half
MTP_DEFAULT = 0.6  # below the lowest report for Qwen3.5 and 3.6 (0.65 to 0.85 at two to four tokens)
MODEL_DEFAULT = 0.55  # for a small model of the same family
PRECISION = 1e-6


@dataclass(frozen=True, slots=True)
class PredictedAcceptance:
    """The probability that a drafted token is accepted, by the number of drafted tokens.

    points       (drafted tokens, probability that each is accepted), ascending
    is_reported  False if the probability is a default
    """

    points: tuple[tuple[int, float], ...]
    is_reported: bool

    @classmethod
    def from_reports(cls, reports: Sequence[tuple[int, float]], *, default: float) -> PredictedAcceptance:
        """Return the acceptance of (drafted tokens, acceptance length) reports; `default` if there are none."""
        if not reports:
            return cls(((1, default),), is_reported=False)
        return cls(tuple((k, probability(k, tokens)) for k, tokens in sorted(reports)), is_reported=True)

    def probability(self, num_drafted: int) -> float:
        """Return the acceptance probability of a token in a chain of this length.

        Linear between the reported lengths, constant outside them.
        """
        lengths = [k for k, _ in self.points]
        right = bisect_left(lengths, num_drafted)
        if right == 0:
            return self.points[0][1]
        if right == len(lengths):
            return self.points[-1][1]
        (low, before), (high, behind) = self.points[right - 1], self.points[right]
        return before + (behind - before) * (num_drafted - low) / (high - low)

    def tokens(self, num_drafted: int) -> float:
        """Return the mean number of tokens that a step with this many drafted ones emits, bonus token included."""
        return tokens_of_step(num_drafted, self.probability(num_drafted))


def tokens_of_step(num_drafted: int, probability: float) -> float:
    """Return E(k) = 1 + a + ... + a^k, the mean tokens of a step, for k drafted tokens of acceptance probability a.

    >>> tokens_of_step(2, 0.5)
    1.75
    """
    return sum(probability**depth for depth in range(num_drafted + 1))


def probability(num_drafted: int, tokens: float) -> float:
    """Return the acceptance probability a with E(num_drafted) = `tokens`, by bisection (E increases with a)."""
    low, high = 0.0, 1.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_of_step(num_drafted, middle) < tokens else (low, middle)
    return (low + high) / 2
