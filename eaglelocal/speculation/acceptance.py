"""How likely a drafted token is accepted, learned from what came: by drafter, depth and confidence.

A drafter's confidence ranks its tokens, but is not a probability of acceptance: heads are overconfident off their
subject, lookup is underconfident in a copy, some say nothing at all. So a table is learned of each drafter
(acceptance_table.py), and a slot adds one shift in log-odds, for the text at hand. Everything decays, so that what a
machine reads today counts; a shift that was not observed for some tokens becomes uncertain, and then follows the next
observations faster.

Of tokens that are not drafted yet the outlook is that of all tokens lately, shifted by the text, which is given the
benefit of the doubt: a text of which little is known is worth a look, and one that went on unwatched again. Only
draft steps are spent on a hope; what is sent must have earned it.

Pure: no clock, no model. Line and shift are Kalman filters for logistic models whose parameters wander
(assumed-density updates).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from eaglelocal.speculation.acceptance_table import HIGH, LOW, Line, Table, sigmoid
from eaglelocal.speculation.guesses import is_second

FIRST_VARIANCE, MAX_VARIANCE = 0.3, 1.0  # of a shift: between texts, and after a long time without observations
DRIFT, SILENT_DRIFT = 0.002, 0.006  # variance that a token of text adds, where the drafter was judged and where not
MAX_SHIFT = 3.0
CURIOSITY = 0.5  # standard deviations that an outlook adds
UNKNOWN_CONFIDENCE = 0.6  # for drafters that tell none
LOWEST, HIGHEST = sigmoid(LOW), sigmoid(HIGH)  # confidences between which bins tell them apart
SECOND_LEVEL, SECOND_SLOPE = -1.0, 0.7  # as the embedded head's: beside the third alone most look surer than they are
FORMAT = 3  # 3: second choices are as sure as they are beside the third
MAX_STORED = 16  # drafters


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

    @property
    def hoped(self) -> float:
        return self.value + CURIOSITY * math.sqrt(self.variance)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the next token may turn out to be: a few cases with their shares, the surest first, and the mean."""

    outcomes: tuple[tuple[float, float], ...]  # share, probability of acceptance
    mean: float

    @property
    def doubtful(self) -> float:
        """Of a token that is worse than most: four in five are likelier to be accepted."""
        share = 0.0
        for part, probability in self.outcomes:
            share += part
            if share >= 0.8:
                return probability
        return self.mean


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
        table = self._table(drafter)
        base = table.probability(depth, odds_of(confidence))
        return shifted(base, table.trust.value * self._shift(slot, drafter).value)

    def outlook(self, slot: int, drafter: str, num_chains: int = 1) -> Outlook:
        """As `probability`, of tokens that are not drafted yet: a mean over so many chains."""
        table = self._table(drafter)
        hope = table.trust.value * self._shift(slot, drafter).hoped
        outcomes = [(share, shifted(chance, hope)) for share, chance in table.spread.kinds()]
        mean = sum(share * chance for share, chance in outcomes)
        if num_chains > 1:
            narrowed = 1.0 / math.sqrt(num_chains)
            outcomes = [(share, mean + narrowed * (chance - mean)) for share, chance in outcomes]
        return Outlook(tuple(outcomes), mean)

    def knows(self, drafter: str) -> bool:
        """Was anything learned of it, here or by an earlier engine?"""
        return drafter in self._tables

    def mean(self, drafter: str) -> float:
        """Of tokens that are not drafted yet, in a text like all texts lately."""
        return sum(share * chance for share, chance in self._table(drafter).spread.kinds())

    def learn(
        self, slot: int, drafter: str, depth: int, confidence: float, *, accepted: bool, is_again: bool = False
    ) -> float:
        """A token whose parent was accepted was compared with the text. Returns what was expected of it.

        is_again  another guess at the same token of the text was learned from: of the text this says nothing new
        """
        table, shift = self._table(drafter), self._shift(slot, drafter)
        base = table.learn(depth, odds_of(confidence), accepted)
        expected = shifted(base, table.trust.value * shift.value)
        if not is_again:
            table.trust.learn(shift.value, expected, accepted)
            shift.learn(shifted(base, shift.value), accepted)
        return expected

    # ---- what outlives the process
    def state(self) -> dict[str, object]:
        """What all texts have taught, as plain data."""
        return {"format": FORMAT, "drafters": {name: table.state() for name, table in self._tables.items()}}

    def restore(self, state: object) -> bool:
        """Begin with what was learned earlier. False: the data is not understood, and nothing has changed."""
        try:
            self._tables = read(state)
        except (TypeError, ValueError, KeyError, AttributeError):
            return False
        return True

    def _table(self, drafter: str) -> Table:
        table = self._tables.get(drafter)
        if table is None:
            table = self._tables[drafter] = Table(line_of(drafter))
        return table

    def _shift(self, slot: int, drafter: str) -> Shift:
        shifts = self._shifts.setdefault(slot, {})
        shift = shifts.get(drafter)
        if shift is None:
            shift = shifts[drafter] = Shift()
        return shift


def read(state: Any) -> dict[str, Table]:
    """Raises TypeError, ValueError, KeyError or AttributeError on what `Acceptance.state` cannot have given."""
    if state["format"] != FORMAT:
        raise ValueError(f"format {state['format']!r}")
    return {str(name): Table.read(table) for name, table in list(state["drafters"].items())[:MAX_STORED]}


def line_of(drafter: str) -> Line:
    """Where its table begins."""
    return Line(SECOND_LEVEL, SECOND_SLOPE) if is_second(drafter) else Line()


def odds_of(confidence: float) -> float:
    """Log-odds, within what the bins cover."""
    if confidence != confidence:  # NaN: not told
        confidence = UNKNOWN_CONFIDENCE
    elif confidence <= LOWEST:
        return LOW
    elif confidence >= HIGHEST:
        return HIGH
    return math.log(confidence / (1.0 - confidence))


def shifted(probability: float, shift: float) -> float:
    return probability / (probability + (1.0 - probability) * math.exp(-shift))
