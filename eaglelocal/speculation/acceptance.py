"""How likely a drafted token is accepted, learned from what came: by drafter, depth and confidence.

A drafter's confidence ranks its tokens, but is not a probability of acceptance: heads are overconfident off their
subject, lookup is underconfident in a copy, some say nothing at all. So a line is learned in log-odds (Platt
scaling), and bins of equal width learn what the line leaves: over all depths first, then by depth. A slot adds one
shift in log-odds, for the text at hand. Everything decays, so that what a machine reads today counts; a shift that
was not observed for some tokens becomes uncertain, and then follows the next observations faster.

Pure: no clock, no model. Line and shift are Kalman filters for
logistic models whose parameters wander (assumed-density updates).
"""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass, field

LOW, HIGH, WIDTH = -4.0, 8.0, 0.75  # log-odds that bins cover
NUM_BINS = int((HIGH - LOW) / WIDTH) + 1
DEPTH_GROUPS = (0, 0, 1, 2, 2, 3)  # depth -> group: 1, 2, 3 and 4, beyond
NUM_GROUPS = 4

BIN_MEMORY = 2000.0  # observations after which a bin has forgotten two thirds
BIN_WEIGHT, GROUP_WEIGHT = 60.0, 120.0  # observations that what they start from is worth
LEVEL_VARIANCE, SLOPE_VARIANCE, LINE_DRIFT = 0.5, 0.1, 1e-5  # of a line; it starts from the confidence itself
FIRST_VARIANCE, MAX_VARIANCE = 0.3, 1.0  # of a shift: between texts, and after a long time without observations
DRIFT, SILENT_DRIFT = 0.002, 0.01  # variance that a token of text adds, where the drafter was judged and where not
MAX_SHIFT = 3.0
SPREAD_MEMORY = 256.0  # tokens
SPREAD_EDGES = (-1.0, 0.3, 1.4, 2.5, 4.0)  # log-odds that part the kinds of tokens
SPREAD_PRIOR = ((0.15, 1.5), (0.4, 2.5), (0.68, 2.5), (0.87, 2.5), (0.96, 2.0), (0.99, 1.0))  # probability, tokens: of a fair head
CURIOSITY = 1.0  # standard deviations by which what a text is like is given the benefit of the doubt
UNKNOWN_CONFIDENCE = 0.6  # for drafters that tell none


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@dataclass(slots=True)
class Excess:
    """Acceptances beyond those that were expected: a decaying mean, small as long as little was seen."""

    sum: float = 0.0
    trials: float = 0.0

    def add(self, surprise: float, weight: float) -> None:
        keep = 1.0 - weight / BIN_MEMORY
        self.sum = self.sum * keep + surprise * weight
        self.trials = self.trials * keep + weight


@dataclass(slots=True)
class Line:
    """log-odds of acceptance = level + slope * log-odds of the confidence, with the covariance of the two."""

    level: float = 0.0
    slope: float = 1.0
    level_variance: float = LEVEL_VARIANCE
    covariance: float = 0.0
    slope_variance: float = SLOPE_VARIANCE

    def at(self, odds: float) -> float:
        return sigmoid(self.level + self.slope * odds)

    def learn(self, odds: float, hit: bool) -> None:
        expected = self.at(odds)
        of_level = self.level_variance + self.covariance * odds
        of_slope = self.covariance + self.slope_variance * odds
        told = expected * (1.0 - expected)
        told /= 1.0 + told * (of_level + of_slope * odds)
        surprise = (hit - expected) * (1.0 - told * (of_level + of_slope * odds))
        self.level += of_level * surprise
        self.slope += of_slope * surprise
        self.level_variance += LINE_DRIFT * LEVEL_VARIANCE - told * of_level * of_level
        self.covariance -= told * of_level * of_slope
        self.slope_variance += LINE_DRIFT * SLOPE_VARIANCE - told * of_slope * of_slope


@dataclass(slots=True)
class Table:
    """What is known of one drafter: a line, rates by bin, and by depth group and bin; how its tokens spread."""

    line: Line = field(default_factory=Line)
    bins: list[Excess] = field(default_factory=lambda: [Excess() for _ in range(NUM_BINS)])
    groups: list[list[Excess]] = field(
        default_factory=lambda: [[Excess() for _ in range(NUM_BINS)] for _ in range(NUM_GROUPS)]
    )
    spread: Spread = field(default_factory=lambda: Spread())

    def probability(self, depth: int, odds: float) -> float:
        low, share = place_of(odds)
        over_all = self.line.at(odds) + between(self.bins, low, share, BIN_WEIGHT)
        return min(max(over_all + between(self.groups[group_of(depth)], low, share, GROUP_WEIGHT), 0.001), 0.999)

    def add(self, depth: int, odds: float, hit: bool) -> None:
        low, share = place_of(odds)
        surprise = hit - self.line.at(odds)
        self.line.learn(odds, hit)
        weight = BIN_WEIGHT
        for excesses in (self.bins, self.groups[group_of(depth)]):
            left = surprise - between(excesses, low, share, weight)
            excesses[low].add(surprise, 1.0 - share)
            excesses[low + 1].add(surprise, share)
            surprise, weight = left, GROUP_WEIGHT


class Spread:
    """How tokens of a drafter differ: a decaying histogram of their probabilities of acceptance.

    No normal distribution: a head that knows its subject is sure of nine tokens in ten, and lost at the tenth.
    """

    __slots__ = ("_sums", "_weight", "_weights")

    def __init__(self) -> None:
        self._weights = [weight for _, weight in SPREAD_PRIOR]
        self._sums = [probability * weight for probability, weight in SPREAD_PRIOR]
        self._weight = 1.0  # of the next token; grows, where all before would have to shrink

    def add(self, probability: float) -> None:
        at = bisect(SPREAD_EDGES, log_odds(probability))
        self._weight *= 1.0 + 1.0 / SPREAD_MEMORY
        self._weights[at] += self._weight
        self._sums[at] += self._weight * probability
        if self._weight > 1e9:
            self._scale(1e-9)

    def kinds(self) -> list[tuple[float, float]]:
        """Shares and mean probabilities, the surest last."""
        total = sum(self._weights)
        return [(weight / total, sum / weight) for weight, sum in zip(self._weights, self._sums, strict=True)]

    def _scale(self, factor: float) -> None:
        self._weight *= factor
        self._weights = [weight * factor for weight in self._weights]
        self._sums = [sum * factor for sum in self._sums]


@dataclass(slots=True)
class Shift:
    """Of one text, in log-odds."""

    value: float = 0.0
    variance: float = FIRST_VARIANCE
    is_silent: bool = True  # not judged since the text last went on

    def learn(self, expected: float, hit: bool) -> None:
        surprise = hit - expected
        self.variance /= 1.0 + self.variance * expected * (1.0 - expected)
        self.value = min(max(self.value + self.variance * surprise, -MAX_SHIFT), MAX_SHIFT)
        self.is_silent = False

    def go_on(self, num_tokens: int) -> None:
        drift = SILENT_DRIFT if self.is_silent else DRIFT
        self.variance = min(self.variance + drift * num_tokens, MAX_VARIANCE)
        self.is_silent = True


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the next token may turn out to be: a few cases with their shares, the surest first, and the mean."""

    outcomes: tuple[tuple[float, float], ...]  # share, probability of acceptance
    mean: float


class Acceptance:
    """Learns for all slots together, and a shift for each."""

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}
        self._shifts: dict[int, dict[str, Shift]] = {}  # by slot and drafter

    def begin(self, slot: int) -> None:
        """Another text in the slot: it starts from what all texts have taught."""
        self._shifts[slot] = {}

    def go_on(self, slot: int, num_tokens: int) -> None:
        """The text went on: what was known of its shift is a little less certain."""
        for shift in self._shifts.get(slot, {}).values():
            shift.go_on(num_tokens)

    def probability(self, slot: int, drafter: str, depth: int, confidence: float) -> float:
        """That the token is accepted, given that its parent is."""
        base = self._table(drafter).probability(depth, odds_of(confidence))
        return shifted(base, self._shift(slot, drafter).value)

    def outlook(self, slot: int, drafter: str, num_chains: int = 1) -> Outlook:
        """As `probability`, of tokens that are not drafted yet: a mean over so many chains."""
        table, shift = self._table(drafter), self._shift(slot, drafter)
        hope = shift.value + CURIOSITY * math.sqrt(shift.variance)
        outcomes = [(share, shifted(probability, hope)) for share, probability in table.spread.kinds()]
        mean = sum(share * probability for share, probability in outcomes)
        if num_chains > 1:
            narrow = 1.0 / math.sqrt(num_chains)
            outcomes = [(share, mean + narrow * (probability - mean)) for share, probability in outcomes]
        return Outlook(tuple(reversed(outcomes)), mean)

    def learn(self, slot: int, drafter: str, depth: int, confidence: float, *, accepted: bool) -> None:
        """A token whose parent was accepted was compared with the text."""
        odds = odds_of(confidence)
        table, shift = self._table(drafter), self._shift(slot, drafter)
        base = table.probability(depth, odds)
        table.spread.add(base)
        shift.learn(shifted(base, shift.value), accepted)
        table.add(depth, odds, accepted)

    def _table(self, drafter: str) -> Table:
        table = self._tables.get(drafter)
        if table is None:
            table = self._tables[drafter] = Table()
        return table

    def _shift(self, slot: int, drafter: str) -> Shift:
        shifts = self._shifts.setdefault(slot, {})
        shift = shifts.get(drafter)
        if shift is None:
            shift = shifts[drafter] = Shift()
        return shift


def between(excesses: list[Excess], low: int, share: float, weight: float) -> float:
    """Of the two nearest bins, by their distance; `weight`: observations that the expectation is worth."""
    below, above = excesses[low], excesses[low + 1]
    first, second = below.sum / (below.trials + weight), above.sum / (above.trials + weight)
    return first + share * (second - first)


def place_of(odds: float) -> tuple[int, float]:
    """The bin below, and the share of the one above it."""
    at = (odds - LOW) / WIDTH
    low = min(int(at), NUM_BINS - 2)
    return low, at - low


def group_of(depth: int) -> int:
    return DEPTH_GROUPS[depth] if depth < len(DEPTH_GROUPS) else NUM_GROUPS - 1


def odds_of(confidence: float) -> float:
    """Log-odds, within what the bins cover."""
    if confidence != confidence:  # NaN: not told
        confidence = UNKNOWN_CONFIDENCE
    return min(max(log_odds(confidence), LOW), HIGH)


def log_odds(probability: float) -> float:
    probability = min(max(probability, 1e-4), 1.0 - 1e-5)
    return math.log(probability / (1.0 - probability))


def shifted(probability: float, shift: float) -> float:
    probability = min(max(probability, 1e-4), 1.0 - 1e-4)
    return probability / (probability + (1.0 - probability) * math.exp(-shift))
