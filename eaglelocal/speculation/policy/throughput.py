"""Estimate how many tokens a second is worth: the recent throughput, but at least that of plain decoding.

Learned relative to plain decoding and by number of decoding slots. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from eaglelocal.core.records import dataclass
from eaglelocal.speculation.costs.step_costs import StepCosts

RATE_MEMORY = 32.0  # steps that the speed is averaged over
FIRST_TOKENS = 8.0  # with which an estimate starts, so that one lucky step moves it little
GAIN_SHARE = 0.85  # of the gain that counts


@dataclass(slots=True)
class ThroughputEstimate:
    """The speed of recent steps relative to plain ones, so that neither drift nor a longer context makes it stale."""

    tokens: float = FIRST_TOKENS
    plain_tokens: float = FIRST_TOKENS  # of plain decoding in the same seconds

    def add(self, tokens: float, plain_tokens: float) -> None:
        keep = 1.0 - 1.0 / RATE_MEMORY
        self.tokens = self.tokens * keep + tokens
        self.plain_tokens = self.plain_tokens * keep + plain_tokens

    def add_plain(self, tokens: float, times: int) -> None:
        """Learn from `times` steps of plain decoding with `tokens` each, as repeated calls of `add` would."""
        keep = (1.0 - 1.0 / RATE_MEMORY) ** times
        added = tokens * RATE_MEMORY * (1.0 - keep)
        self.tokens = self.tokens * keep + added
        self.plain_tokens = self.plain_tokens * keep + added

    @property
    def speed(self) -> float:
        return self.tokens / self.plain_tokens

    @property
    def worth(self) -> float:
        """Worth of a second relative to plain decoding: one, and GAIN_SHARE of the gain.

        With all of the gain a few easy tokens would make drafting look too expensive just where it begins to pay.
        """
        return 1.0 + GAIN_SHARE * max(self.speed - 1.0, 0.0)


class Throughput:
    """The throughput estimates, by number of decoding slots.

    expect_speed  returns the speed relative to plain decoding that is expected of so many slots
    """

    def __init__(self, costs: StepCosts, expect_speed: Callable[[int], float]) -> None:
        self._costs, self._expect_speed = costs, expect_speed
        self._estimates: dict[int, ThroughputEstimate] = {}
        self._num_plain: dict[int, int] = {}  # plain steps that are not in the estimates yet: they are the commonest

    def add(self, num_slots: int, tokens: float, plain_tokens: float) -> None:
        """Learn from a step: the tokens that it made, and those that plain decoding would have made in
        the same time.
        """
        estimate = self._find(num_slots)
        if estimate is None:
            estimate = self._estimates[num_slots] = ThroughputEstimate(FIRST_TOKENS * self._expect_speed(num_slots))
        estimate.add(tokens, plain_tokens)

    def add_plain(self, num_slots: int) -> None:
        """Learn from a step of plain decoding."""
        self._num_plain[num_slots] = self._num_plain.get(num_slots, 0) + 1

    def _find(self, num_slots: int) -> ThroughputEstimate | None:
        num_plain = self._num_plain.pop(num_slots, 0)
        if num_plain:
            self._estimates.setdefault(num_slots, ThroughputEstimate()).add_plain(num_slots, num_plain)
        return self._estimates.get(num_slots)

    def rate(self, num_slots: int, num_cells: int) -> float:
        """Return the tokens that a second is worth: the recent throughput, but at least that of plain decoding."""
        plain_rate = self._costs.plain_rate(num_slots, num_cells)
        if plain_rate <= 0.0:
            return 0.0
        estimate = self._find(num_slots)
        if estimate is None:
            estimate = self._estimates[num_slots] = ThroughputEstimate(FIRST_TOKENS * self._expect_speed(num_slots))
        return plain_rate * estimate.worth
