"""How likely a drafted token is accepted, learned from what was accepted: by drafter, depth and confidence.

A drafter's confidence ranks its tokens, but is not a probability of acceptance: heads are overconfident off their
subject, lookup is underconfident in a copy. So confidences are put into bins of equal width in log-odds, and each bin
learns its rate. Bins of one drafter and depth start from the bin over all depths, those from the confidence itself; a
slot adds one shift in log-odds, for the text at hand. Everything decays, so that what a machine reads today counts.

Censoring: only children of accepted nodes (and of the root) were judged. What lay behind a rejection, or beyond a
cut, says nothing and is not learned from.

Pure: no clock, no model. Hierarchical shrinkage as in Beta-binomial smoothing; the shift is one step of online
logistic regression an observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LOW, HIGH, WIDTH = -4.0, 8.0, 0.75  # log-odds that bins cover
NUM_BINS = int((HIGH - LOW) / WIDTH) + 1
DEPTH_GROUPS = (0, 0, 1, 2, 2, 3)  # depth -> group: 1, 2, 3 and 4, beyond
NUM_GROUPS = 4

BIN_MEMORY = 400.0  # observations after which a bin has forgotten two thirds
PRIOR_WEIGHT = 4.0  # observations that a bin's prior is worth
SHIFT_RATE, SHIFT_DECAY, MAX_SHIFT = 0.12, 0.995, 2.5
UNKNOWN_CONFIDENCE = 0.6  # for drafters that tell none


@dataclass(slots=True)
class Rate:
    """A decaying count."""

    hits: float = 0.0
    trials: float = 0.0

    def add(self, hit: bool) -> None:
        keep = 1.0 - 1.0 / BIN_MEMORY
        self.hits = self.hits * keep + hit
        self.trials = self.trials * keep + 1.0

    def estimate(self, prior: float) -> float:
        return (self.hits + PRIOR_WEIGHT * prior) / (self.trials + PRIOR_WEIGHT)


@dataclass(slots=True)
class Table:
    """Rates of one drafter: by bin, and by depth group and bin."""

    bins: list[Rate] = field(default_factory=lambda: [Rate() for _ in range(NUM_BINS)])
    groups: list[list[Rate]] = field(
        default_factory=lambda: [[Rate() for _ in range(NUM_BINS)] for _ in range(NUM_GROUPS)]
    )

    def probability(self, depth: int, odds: float) -> float:
        """Straight lines between the middles of the two nearest bins."""
        at = min(max((odds - LOW) / WIDTH, 0.0), NUM_BINS - 1.0)
        low = min(int(at), NUM_BINS - 2)
        share = at - low
        group = self.groups[group_of(depth)]
        return (1.0 - share) * self._rate(group, low) + share * self._rate(group, low + 1)

    def _rate(self, group: list[Rate], index: int) -> float:
        prior = sigmoid(LOW + index * WIDTH)
        return group[index].estimate(self.bins[index].estimate(prior))

    def add(self, depth: int, odds: float, hit: bool) -> None:
        index = min(max(round((odds - LOW) / WIDTH), 0), NUM_BINS - 1)
        self.bins[index].add(hit)
        self.groups[group_of(depth)][index].add(hit)


class Acceptance:
    """Learns for all slots together, and a shift for each."""

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}
        self._shifts: dict[tuple[int, str], float] = {}

    def begin(self, slot: int) -> None:
        """Another text in the slot: it starts from what all texts have taught."""
        for key in [key for key in self._shifts if key[0] == slot]:
            del self._shifts[key]

    def probability(self, slot: int, drafter: str, depth: int, confidence: float) -> float:
        """That the token is accepted, given that its parent is."""
        odds = odds_of(confidence)
        base = self._table(drafter).probability(depth, odds)
        shift = self._shifts.get((slot, drafter), 0.0)
        return shifted(base, shift) if shift else base

    def learn(self, slot: int, drafter: str, depth: int, confidence: float, *, accepted: bool) -> None:
        """A token whose parent was accepted was judged."""
        odds = odds_of(confidence)
        table = self._table(drafter)
        shift = self._shifts.get((slot, drafter), 0.0)
        expected = shifted(table.probability(depth, odds), shift)
        moved = shift * SHIFT_DECAY + SHIFT_RATE * (accepted - expected)
        self._shifts[slot, drafter] = min(max(moved, -MAX_SHIFT), MAX_SHIFT)
        table.add(depth, odds, accepted)

    def _table(self, drafter: str) -> Table:
        table = self._tables.get(drafter)
        if table is None:
            table = self._tables[drafter] = Table()
        return table


def group_of(depth: int) -> int:
    return DEPTH_GROUPS[depth] if depth < len(DEPTH_GROUPS) else NUM_GROUPS - 1


def odds_of(confidence: float) -> float:
    """Log-odds, within what the bins cover."""
    if not confidence == confidence:  # NaN: not told
        confidence = UNKNOWN_CONFIDENCE
    confidence = min(max(confidence, 1e-4), 1.0 - 1e-5)
    return min(max(math.log(confidence / (1.0 - confidence)), LOW), HIGH)


def shifted(probability: float, shift: float) -> float:
    probability = min(max(probability, 1e-4), 1.0 - 1e-4)
    return sigmoid(math.log(probability / (1.0 - probability)) + shift)


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))
