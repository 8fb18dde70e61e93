"""The verdict of a head's trial: which reading of it is right, and whether it knows its target at all.

A head is tried beside its target with a fixed draft length, on the same prompts for each way to read it. Taps and
residual decide what the first drafted token is worth, the recurrence (is the state fed back before or after the last
norm?) what the later ones are. Pure: figures in, decisions out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from eaglelocal.core.records import dataclass

MIN_FIRST = 0.10  # trained heads reach 0.5 to 0.8; one trained on 5 000 samples for minutes 0.34
MIN_STANDARD_ERRORS = 2.0  # standard errors by which a reading must be better than the stated one


@dataclass(frozen=True, slots=True)
class TrialAcceptance:
    """Acceptance over all drafts of a trial."""

    drafts: int
    accepted_per_position: tuple[int, ...]  # [draft length], how often position i + 1 was accepted
    num_tokens: int
    commonest_share: float  # of the most frequent token: what always guessing it would get

    @property
    def first(self) -> float:
        """The share of drafts whose first token was accepted."""
        return self._share(0)

    @property
    def length(self) -> float:
        """The acceptance length: tokens that a verification yields, the bonus token counted."""
        return 1 + sum(self.accepted_per_position) / self.drafts if self.drafts else 1.0

    @property
    def first_error(self) -> float:
        return math.sqrt(self.first * (1 - self.first) / max(self.drafts, 1))

    @property
    def length_error(self) -> float:
        """The standard error of `length`: E[a] is the sum of shares s_i, E[a^2] that of (2i - 1) s_i."""
        shares = [self._share(i) for i in range(len(self.accepted_per_position))]
        variance = sum((2 * i + 1) * share for i, share in enumerate(shares)) - sum(shares) ** 2
        return math.sqrt(max(variance, 0.0) / max(self.drafts, 1))

    @property
    def least(self) -> float:
        """The share `first` that a head must reach; below it, the head does not know this target."""
        return max(MIN_FIRST, self.commonest_share + MIN_STANDARD_ERRORS * self.first_error)

    @property
    def knows_target(self) -> bool:
        return self.first >= self.least

    def _share(self, position: int) -> float:
        there = self.accepted_per_position[position : position + 1]
        return there[0] / self.drafts if there and self.drafts else 0.0


def sum_acceptance(counts: Iterable[tuple[int, Sequence[int]]], tokens: Iterable[int]) -> TrialAcceptance:
    """Sum up answers: (drafts, accepted tokens per position) of each, and all tokens that were emitted."""
    drafts, accepted = 0, Counter[int]()
    for num_drafts, per_position in counts:
        drafts += num_drafts
        accepted.update(dict(enumerate(per_position)))
    said = Counter(tokens)
    most = max(said.values(), default=0)
    depth = max(accepted, default=-1) + 1
    return TrialAcceptance(drafts, tuple(accepted[i] for i in range(depth)), said.total(), most / max(said.total(), 1))


def has_better_first_token(other: TrialAcceptance, stated: TrialAcceptance) -> bool:
    """Return whether this reading's first drafted token is accepted significantly more often."""
    return other.first - stated.first > MIN_STANDARD_ERRORS * math.hypot(other.first_error, stated.first_error)


def has_longer_acceptance(other: TrialAcceptance, stated: TrialAcceptance) -> bool:
    """Return whether this reading's acceptance length is significantly higher."""
    return other.length - stated.length > MIN_STANDARD_ERRORS * math.hypot(other.length_error, stated.length_error)
