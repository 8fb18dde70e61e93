"""The best possible speeds in a simulation, for policies that know the true costs and acceptance probabilities.

Fixed lengths, and threshold policies: draft on while the answer is likely enough to get there, then verify the best
prefix over all sizes, with a second priced at the tokens that it yields in the long run. Averages over random chains,
no learning. Each kind of text has its own best policy, because a policy that knows the probabilities knows the text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .simulated_machine import SimulatedMachine
from .simulation import MAX_DRAFT, PRIMARY, DraftCosts, Profile, Text

Floats = npt.NDArray[np.float64]
THRESHOLDS = (0.02, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75)
LENGTHS = (1, 2, 3, 4, 6, 8, 16)
NUM_CHAINS = 1000


@dataclass(frozen=True)
class Hindsight:
    """The tokens per second of policies on texts; all slots run texts of the same kind and draft equally far."""

    machine: SimulatedMachine
    costs: DraftCosts
    num_slots: int = 1

    def plain(self) -> float:
        return self.num_slots / (self.machine.true_seconds(self.num_slots) + self.costs.plain_overhead_s)

    def best_fixed(self, text: Text) -> float:
        """Return the tokens per second of the best single length for the whole text."""
        return self.best_length(text)[1]

    def best_length(self, text: Text) -> tuple[int, float]:
        """Return the best single length and its tokens per second."""
        rates = self.fixed_rates(text)
        length = max(range(MAX_DRAFT + 1), key=lambda n: rates[n])
        return length, rates[length]

    def fixed_rates(self, text: Text) -> list[float]:
        """Return the tokens per second of every single length."""
        profiles = [s.profiles[PRIMARY] for s in text.stretches]
        reaches = {profile: self._reaches(profile) for profile in set(profiles)}
        rates = []
        for length in range(MAX_DRAFT + 1):
            by_profile = {profile: self._fixed(reaches[profile], length) for profile in reaches}
            rates.append(self._over(text, [by_profile[profile] for profile in profiles]))
        return rates

    def best(self, text: Text) -> float:
        """Return the tokens per second with the best threshold policy or fixed length for each stretch."""
        return self._over(text, [self._best(s.profiles[PRIMARY]) for s in text.stretches])

    def _over(self, text: Text, rates: Sequence[float]) -> float:
        seconds = sum(s.num_tokens / rate for s, rate in zip(text.stretches, rates, strict=True))
        return sum(s.num_tokens for s in text.stretches) / seconds

    def _best(self, profile: Profile) -> float:
        reaches = self._reaches(profile)
        fixed = max(self._fixed(reaches, length) for length in range(MAX_DRAFT + 1))
        return max(fixed, *(self._threshold(reaches, least, most, fixed) for least in THRESHOLDS for most in LENGTHS))

    def _reaches(self, profile: Profile) -> Floats:
        """[chains, slots, depth] how likely the answer gets as far as each token."""
        chance = random.Random(1)
        chances = [
            [[profile.draw(depth, chance)[0] for depth in range(1, MAX_DRAFT + 1)] for _ in range(self.num_slots)]
            for _ in range(NUM_CHAINS // self.num_slots)
        ]
        return np.cumprod(np.array(chances), axis=2)

    def _fixed(self, reaches: Floats, length: int) -> float:
        if length == 0:
            return self.plain()
        tokens = self.num_slots + reaches[:, :, :length].sum(axis=2).sum(axis=1).mean()
        decode_s = self.machine.true_seconds(self.num_slots * (1 + length))
        draft_s = length * self.costs.draft_s(PRIMARY, self.num_slots)
        return float(tokens / (decode_s + draft_s + self.costs.drafted_overhead_s))

    def _threshold(self, reaches: Floats, least: float, most: int, worth: float) -> float:
        """`worth`: of a second, to begin with (Dinkelbach's iteration finds its own)."""
        before = np.concatenate([np.ones_like(reaches[:, :, :1]), reaches[:, :, :-1]], axis=2)
        drafted = before >= least
        drafted[:, :, most:] = False
        gains = np.where(drafted, reaches, 0.0).sum(axis=1)  # by level; with one slot that is by token
        gains = np.concatenate([np.zeros((len(gains), 1)), np.cumsum(gains, axis=1)], axis=1)
        decode_s = np.array([self.machine.true_seconds(self.num_slots * (1 + n)) for n in range(gains.shape[1])])
        possible = np.arange(gains.shape[1]) <= drafted.any(axis=1).sum(axis=1)[:, None]
        rows_a_level = drafted.sum(axis=1)
        draft_s = (self.costs.step_s * (rows_a_level > 0) + self.costs.row_s * rows_a_level).sum(axis=1)
        for _ in range(3):
            sizes = np.where(possible, gains - worth * decode_s, -np.inf).argmax(axis=1)
            tokens = self.num_slots + gains[np.arange(len(gains)), sizes].mean()
            worth = float(tokens / (decode_s[sizes].mean() + draft_s.mean() + self.costs.drafted_overhead_s))
        return worth
