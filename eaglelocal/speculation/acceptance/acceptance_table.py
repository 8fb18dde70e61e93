"""Calibrate one drafter over all texts: map its confidence and depth to a probability of acceptance.

A line in log-odds (Platt scaling); bins of equal width for the residual of the line, over all depths first and then by
depth; and a histogram of recent probabilities, for tokens that are not drafted yet. Plain numbers, which are stored
between runs; none of them describes a single text.
"""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import field
from typing import Any

from eaglelocal.core.records import dataclass
from eaglelocal.speculation.stored_numbers import check_number, clamp

LOW, HIGH, WIDTH = -4.0, 8.0, 0.5  # range of the bins and width of each, in log-odds
NUM_BINS = int((HIGH - LOW) / WIDTH) + 1
DEPTH_GROUPS = (0, 0, 1, 2, 3, 4)  # group by depth: 1, 2, 3, 4, beyond
NUM_GROUPS = 5
LEVELS, SLOPES = (-20.0, 20.0), (-5.0, 10.0)  # limits of a line that is stored or read

BIN_MEMORY = 2000.0  # observations after which a bin has forgotten two thirds
BIN_WEIGHT, GROUP_WEIGHT = 60.0, 120.0  # observations that the expectation is worth
LEVEL_VARIANCE, SLOPE_VARIANCE, LINE_DRIFT = 0.5, 0.1, 1e-5  # of a line, which begins as the confidence itself
FIRST_TRUST, TRUST_VARIANCE, TRUST_DRIFT = 0.8, 0.1, 2e-5
SPREAD_MEMORY = 256.0  # tokens
TRACE = 1e-6  # weight left of a kind of token, however long it has not occurred
SPREAD_EDGES = (-1.0, 0.3, 1.4, 2.5, 4.0)  # log-odds that separate the kinds of tokens
NUM_KINDS = len(SPREAD_EDGES) + 1
FAIR_HEAD = ((0.15, 0.75), (0.4, 1.25), (0.68, 1.25), (0.87, 1.25), (0.96, 1.0), (0.99, 0.5))  # (probability, tokens)

# stored data counts for little, so that new observations soon outweigh it
STORED_BIN, STORED_SPREAD = 60.0, 40.0  # observations it counts for at most
STORED_LEVEL_VARIANCE, STORED_SLOPE_VARIANCE = 0.05, 0.02  # of a line, at least


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def log_odds(probability: float) -> float:
    probability = min(max(probability, 1e-4), 1.0 - 1e-5)
    return math.log(probability / (1.0 - probability))


@dataclass(slots=True)
class LogOddsLine:
    """The line log-odds of acceptance = level + slope * log-odds of confidence, with the covariance of the two."""

    level: float = 0.0
    slope: float = 1.0
    level_variance: float = LEVEL_VARIANCE
    covariance: float = 0.0
    slope_variance: float = SLOPE_VARIANCE

    def at(self, odds: float) -> float:
        return sigmoid(self.level + self.slope * odds)

    def learn(self, odds: float, expected: float, hit: bool) -> None:
        """Update the line with one token; `expected` is what `at` returns for these odds."""
        level_covariance = self.level_variance + self.covariance * odds
        slope_covariance = self.covariance + self.slope_variance * odds
        information = expected * (1.0 - expected)
        information /= 1.0 + information * (level_covariance + slope_covariance * odds)
        surprise = (hit - expected) * (1.0 - information * (level_covariance + slope_covariance * odds))
        self.level += level_covariance * surprise
        self.slope += slope_covariance * surprise
        self.level_variance += LINE_DRIFT * LEVEL_VARIANCE - information * level_covariance * level_covariance
        self.covariance -= information * level_covariance * slope_covariance
        self.slope_variance += LINE_DRIFT * SLOPE_VARIANCE - information * slope_covariance * slope_covariance


@dataclass(slots=True)
class Trust:
    """A factor (0 to 1) on the shift of a text, learned per drafter: for some drafters texts hardly differ."""

    value: float = FIRST_TRUST
    variance: float = TRUST_VARIANCE

    def learn(self, shift: float, expected: float, hit: bool) -> None:
        """Update the factor; `expected` is the probability with the shift times this factor."""
        information = expected * (1.0 - expected) * shift * shift
        self.variance /= 1.0 + information * self.variance
        self.value = min(max(self.value + self.variance * shift * (hit - expected), 0.0), 1.0)
        self.variance += TRUST_DRIFT


class BinResiduals:
    """Acceptances beyond the expected ones, by bin: decaying means, near zero while little was observed."""

    __slots__ = ("sums", "trials", "weight")

    def __init__(self, weight: float) -> None:
        """Set how many observations the prior expectation is worth."""
        self.weight = weight
        self.sums, self.trials = [0.0] * NUM_BINS, [0.0] * NUM_BINS

    def at(self, low: int, share: float) -> float:
        """Return the mean at `share` of the way from bin `low` to the next, by linear interpolation."""
        first = self.sums[low] / (self.trials[low] + self.weight)
        return first + share * (self.sums[low + 1] / (self.trials[low + 1] + self.weight) - first)

    def add(self, low: int, share: float, surprise: float) -> None:
        for at, weight in ((low, 1.0 - share), (low + 1, share)):
            keep = 1.0 - weight / BIN_MEMORY
            self.sums[at] = self.sums[at] * keep + surprise * weight
            self.trials[at] = self.trials[at] * keep + weight

    def restore(self, bins: Any) -> None:
        """Load bins, each [sum, trials], with at most STORED_BIN trials."""
        for at, (sum_, trials) in enumerate(bins[:NUM_BINS]):
            trials = check_number(trials, 0.0, BIN_MEMORY * 2)
            factor = min(1.0, STORED_BIN / max(trials, 1e-9))
            self.sums[at], self.trials[at] = factor * check_number(sum_, -trials, trials), factor * trials


def kind_of(probability: float) -> int:
    """Return the kind of a token (bin) with this probability of acceptance, the least probable is 0."""
    return bisect(SPREAD_EDGES, log_odds(probability))


class ProbabilityHistogram:
    """A decaying histogram of the acceptance probabilities of a drafter's tokens.

    A normal distribution would not fit: a head that knows its subject is sure of nine tokens in ten, and lost at the
    tenth.
    """

    __slots__ = ("_newest", "_sums", "_weights")

    def __init__(self) -> None:
        self._weights = [weight for _, weight in FAIR_HEAD]
        self._sums = [probability * weight for probability, weight in FAIR_HEAD]
        self._newest = 1.0  # weight of the next token; it grows, instead of all earlier weights shrinking

    def add(self, probability: float) -> None:
        kind = kind_of(probability)
        self._newest *= 1.0 + 1.0 / SPREAD_MEMORY
        self._weights[kind] += self._newest
        self._sums[kind] += self._newest * probability
        if self._newest > 1e9:
            self._rescale()

    def kinds(self) -> list[tuple[float, float]]:
        """Return share and mean probability of each kind of token (bin), the most probable first."""
        total = sum(self._weights)
        found = [(weight / total, sum_ / weight) for weight, sum_ in zip(self._weights, self._sums, strict=True)]
        return found[::-1]

    def state(self) -> list[list[float]]:
        """Return `kinds` as lists."""
        return [list(kind) for kind in self.kinds()]

    def restore(self, kinds: Any) -> None:
        shares = [check_number(share, 0.0, 1.0) for share, _ in kinds]
        means = [check_number(mean, 0.0, 1.0) for _, mean in kinds]
        if len(shares) != len(FAIR_HEAD):
            raise ValueError(f"{len(shares)} kinds of tokens")
        self._weights = [max(share * STORED_SPREAD, 0.01) for share in reversed(shares)]
        self._sums = [mean * weight for mean, weight in zip(reversed(means), self._weights, strict=True)]
        self._newest = 1.0

    def _rescale(self) -> None:
        """Divide the weights by the newest. A kind that never occurs keeps a trace, and with it its mean."""
        factors = [max(1.0 / self._newest, TRACE / weight) for weight in self._weights]
        self._weights = [weight * factor for weight, factor in zip(self._weights, factors, strict=True)]
        self._sums = [sum_ * factor for sum_, factor in zip(self._sums, factors, strict=True)]
        self._newest = 1.0


@dataclass(slots=True)
class AcceptanceTable:
    """Everything learned about one drafter."""

    line: LogOddsLine = field(default_factory=LogOddsLine)
    bins: BinResiduals = field(default_factory=lambda: BinResiduals(BIN_WEIGHT))
    groups: list[BinResiduals] = field(default_factory=lambda: [BinResiduals(GROUP_WEIGHT) for _ in range(NUM_GROUPS)])
    spread: ProbabilityHistogram = field(default_factory=ProbabilityHistogram)
    trust: Trust = field(default_factory=Trust)

    def probability(self, depth: int, odds: float) -> float:
        low, share = find_bin(odds)
        over_all = self.line.at(odds) + self.bins.at(low, share)
        return min(max(over_all + self.groups[depth_group(depth)].at(low, share), 0.001), 0.999)

    def learn(self, depth: int, odds: float, hit: bool) -> float:
        """Learn from one token. Return the probability that was expected of it, as `probability` does."""
        low, share = find_bin(odds)
        group = self.groups[depth_group(depth)]
        by_line, by_bin = self.line.at(odds), self.bins.at(low, share)
        expected = min(max(by_line + by_bin + group.at(low, share), 0.001), 0.999)
        self.line.learn(odds, by_line, hit)
        self.bins.add(low, share, hit - by_line)
        group.add(low, share, hit - by_line - by_bin)
        self.spread.add(expected)
        return expected

    def state(self) -> dict[str, object]:
        line = self.line
        return {
            "line": [
                *(clamp(line.level, LEVELS), clamp(line.slope, SLOPES)),
                *(line.level_variance, line.covariance, line.slope_variance),
            ],
            "bins": [list(each) for each in zip(self.bins.sums, self.bins.trials, strict=True)],
            "groups": [[list(each) for each in zip(g.sums, g.trials, strict=True)] for g in self.groups],
            "spread": self.spread.state(),
            "trust": self.trust.value,
        }

    @classmethod
    def read(cls, state: Any) -> AcceptanceTable:
        """Parse the result of `state`. Raises TypeError, ValueError or KeyError if it is malformed."""
        level, slope, level_variance, covariance, slope_variance = (
            check_number(v, -100.0, 100.0) for v in state["line"]
        )
        # raising variances does not make level and slope more correlated than they were
        line = LogOddsLine(
            check_number(level, *LEVELS),
            check_number(slope, *SLOPES),
            max(check_number(level_variance, 0.0, 10.0), STORED_LEVEL_VARIANCE),
            check_number(covariance, -1.0, 1.0) if covariance**2 <= level_variance * slope_variance else 0.0,
            max(check_number(slope_variance, 0.0, 10.0), STORED_SLOPE_VARIANCE),
        )
        table = cls(line, trust=Trust(check_number(state["trust"], 0.0, 1.0)))
        table.bins.restore(state["bins"])
        for group, bins in zip(table.groups, state["groups"], strict=True):
            group.restore(bins)
        table.spread.restore(state["spread"])
        return table


def find_bin(odds: float) -> tuple[int, float]:
    """Return the bin below these log-odds, and the weight of the bin above it."""
    at = (odds - LOW) / WIDTH
    low = min(int(at), NUM_BINS - 2)
    return low, at - low


def depth_group(depth: int) -> int:
    return DEPTH_GROUPS[depth] if depth < len(DEPTH_GROUPS) else NUM_GROUPS - 1
