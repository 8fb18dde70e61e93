"""Estimate how likely a drafted token is accepted, from its drafter, its depth and the drafter's confidence.

A drafter's confidence ranks its tokens but is not a probability of acceptance: heads are overconfident outside
their subject, lookup is underconfident where text is copied, some drafters report none. So each drafter has a
learned table (acceptance_table.py) for each mix of LoRA adapters, and each slot adds one shift in log-odds, for its
text. Everything decays, so that recent text counts most; a shift without observations becomes uncertain, and then
follows the next ones faster.

For tokens that are not drafted yet, the estimate (`Outlook`) averages over all recent tokens and adds the text's shift.
It is optimistic where the shift is uncertain, so that drafting is tried on a text of which little is known. Optimism
may add draft steps, never verified rows.

Pure: no clock, no model. Line and shift are Kalman filters for logistic models whose parameters drift (assumed-density
updates).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.records import dataclass
from eaglelocal.speculation.acceptance.acceptance_table import (
    HIGH,
    LOW,
    NUM_KINDS,
    AcceptanceTable,
    LogOddsLine,
    kind_of,
    sigmoid,
)
from eaglelocal.speculation.policy.pending_drafts import is_sibling_table

FIRST_VARIANCE, MAX_VARIANCE = 0.3, 1.0  # of a shift: at the start of a text, and after long without observations
DRIFT, SILENT_DRIFT = 0.002, 0.006  # variance added per token of text: where the drafter was observed, and where not
MAX_SHIFT = 3.0
OPTIMISM = 0.5  # standard deviations of the shift that an outlook adds, as a rule
USUAL_TOKENS = 12.0  # of all texts, that a text's own tokens outweigh
TEXT_MEMORY = 64.0  # tokens of a text, after which two thirds are forgotten
UNKNOWN_CONFIDENCE = 0.6  # for drafters that report none
LOWEST, HIGHEST = sigmoid(LOW), sigmoid(HIGH)  # range of confidences that the bins distinguish
SIBLING_LEVEL, SIBLING_SLOPE = -1.0, 0.7  # of siblings, fitted to the embedded head
FORMAT = 4  # 4: a confidence is the share among four, a sibling's among itself and the worse of them
MAX_STORED = 16  # drafters
MAX_MIXES = 32  # whose tables are kept


@dataclass(slots=True)
class Shift:
    """The difference between one text and others for one drafter: the log-odds offset of its tokens, their kinds."""

    value: float = 0.0
    variance: float = FIRST_VARIANCE
    weights: list[float] = field(default_factory=lambda: [0.0] * NUM_KINDS)  # of its tokens, by kind
    sums: list[float] = field(default_factory=lambda: [0.0] * NUM_KINDS)  # of their probabilities without the offset
    is_silent: bool = True  # not observed since the last tokens of the text

    def learn(self, expected: float, hit: bool) -> None:
        surprise = hit - expected
        self.variance /= 1.0 + self.variance * expected * (1.0 - expected)
        self.value = min(max(self.value + self.variance * surprise, -MAX_SHIFT), MAX_SHIFT)
        self.is_silent = False

    def add_kind(self, probability: float) -> None:
        self._forget(1)
        kind = kind_of(probability)
        self.weights[kind] += 1.0
        self.sums[kind] += probability

    def _forget(self, num_tokens: int) -> None:
        keep = (1.0 - 1.0 / TEXT_MEMORY) ** num_tokens
        self.weights = [weight * keep for weight in self.weights]
        self.sums = [sum_ * keep for sum_ in self.sums]

    def mix_kinds(self, usual: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return share and probability of the kinds of the text's next tokens; `usual`: in all texts."""
        total = USUAL_TOKENS + sum(self.weights)
        mixed = []
        for (share, chance), weight, sum_ in zip(usual, reversed(self.weights), reversed(self.sums), strict=True):
            both = USUAL_TOKENS * share + weight
            mixed.append((both / total, (USUAL_TOKENS * share * chance + sum_) / both))
        return mixed

    def advance(self, num_tokens: int) -> None:
        drift = SILENT_DRIFT if self.is_silent else DRIFT
        self.variance = min(self.variance + drift * num_tokens, MAX_VARIANCE)
        if self.is_silent:
            self._forget(num_tokens)
        self.is_silent = True

    def hoped(self, hope: float) -> float:
        """Return the value, `hope` standard deviations higher."""
        return self.value + hope * math.sqrt(self.variance)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The acceptance probability of a token not drafted yet: outcomes with their shares, best first, and the mean."""

    outcomes: tuple[tuple[float, float], ...]  # (share, probability of acceptance)
    mean: float

    @classmethod
    def of(cls, outcomes: Sequence[tuple[float, float]]) -> Outlook:
        return cls(tuple(outcomes), sum(share * chance for share, chance in outcomes))

    @property
    def doubtful(self) -> float:
        """Probability of a token that is worse than most: four in five are likelier to be accepted."""
        share = 0.0
        for part, probability in self.outcomes:
            share += part
            if share >= 0.8:
                return probability
        return self.mean


class AcceptanceModel:
    """Tables of all drafters, shared by all slots with the same adapters, and a shift for each slot and drafter.

    usual  the mix whose tables outlive the process; those of others begin as copies of them
    """

    def __init__(self, usual: AdapterMix = NO_ADAPTERS) -> None:
        self._usual = usual
        self._tables: dict[str, AcceptanceTable] = {}  # of the usual mix
        self._other_tables: dict[AdapterMix, dict[str, AcceptanceTable]] = {}  # those used last are the last
        self._mixes: dict[int, AdapterMix] = {}  # of slots with another mix
        self._shifts: dict[int, dict[str, Shift]] = {}  # by slot and drafter

    def begin(self, slot: int, adapters: AdapterMix | None = None) -> None:
        """Reset the slot's shifts for a new text, to what earlier texts with the same adapters taught."""
        self._shifts[slot] = {}
        self._mixes.pop(slot, None)
        if adapters is None or adapters == self._usual:
            return
        self._mixes[slot] = adapters
        self._other_tables[adapters] = self._other_tables.pop(adapters, {})
        for old in list(self._other_tables)[:-MAX_MIXES]:
            if old not in self._mixes.values():
                del self._other_tables[old]

    def advance(self, slot: int, num_tokens: int) -> None:
        """Make the slot's shifts less certain after num_tokens more of its text."""
        for shift in self._shifts.get(slot, {}).values():
            shift.advance(num_tokens)

    def probability(self, slot: int, drafter: str, depth: int, confidence: float, *, hope: float = 0.0) -> float:
        """Return the probability that the token is accepted, given that its parent is; `hope` as in `outlook`."""
        table = self._table(drafter, slot)
        base = table.probability(depth, clamp_log_odds(confidence))
        shift = self._shift(slot, drafter)
        return shift_log_odds(base, table.trust.value * (shift.hoped(hope) if hope else shift.value))

    def outlook(self, slot: int, drafter: str, hope: float = OPTIMISM) -> Outlook:
        """Estimate the acceptance of tokens that are not drafted yet.

        hope  standard deviations by which the text's shift is assumed to be better than it seems
        """
        table = self._table(drafter, slot)
        shift = self._shift(slot, drafter)
        optimism, kinds = table.trust.value * shift.hoped(hope), shift.mix_kinds(table.spread.kinds())
        return Outlook.of([(share, shift_log_odds(chance, optimism)) for share, chance in kinds])

    def knows(self, drafter: str) -> bool:
        """Return whether anything was learned about the drafter with the usual adapters, in this process or an earlier
        one.
        """
        return drafter in self._tables

    def usual_kinds(self, drafter: str) -> list[tuple[float, float]]:
        """Return share and mean probability of each kind of token, in all recent texts."""
        return self._table(drafter).spread.kinds()

    def mean(self, drafter: str) -> float:
        """Return the mean acceptance of a drafter's next token, averaged over all recent texts."""
        return sum(share * chance for share, chance in self.usual_kinds(drafter))

    def learn(
        self, slot: int, drafter: str, depth: int, confidence: float, *, accepted: bool, is_repeat: bool = False
    ) -> float:
        """Learn from a token whose parent was accepted, and return the probability that was predicted for it.

        is_repeat  a newer chain was already judged at this token of the text, so the text's shift learns nothing from
        it
        """
        table, shift = self._table(drafter, slot), self._shift(slot, drafter)
        base = table.learn(depth, clamp_log_odds(confidence), accepted)
        expected = shift_log_odds(base, table.trust.value * shift.value)
        shift.add_kind(base)
        if not is_repeat:
            table.trust.learn(shift.value, expected, accepted)
            shift.learn(shift_log_odds(base, shift.value), accepted)
        return expected

    # ---- what outlives the process
    def state(self) -> dict[str, object]:
        """Return what was learned from all texts, as plain data."""
        return {"format": FORMAT, "drafters": {name: table.state() for name, table in self._tables.items()}}

    def restore(self, state: object) -> bool:
        """Load what was learned earlier. Return False, and change nothing, if the data is not understood."""
        try:
            self._tables = read_tables(state)
        except (TypeError, ValueError, KeyError, AttributeError):
            return False
        return True

    def _table(self, drafter: str, slot: int | None = None) -> AcceptanceTable:
        mix = None if slot is None else self._mixes.get(slot)
        tables = self._tables if mix is None else self._other_tables[mix]
        table = tables.get(drafter)
        if table is None:
            usual = self._tables.get(drafter)
            table = AcceptanceTable(first_line(drafter)) if usual is None else AcceptanceTable.read(usual.state())
            tables[drafter] = table
        return table

    def _shift(self, slot: int, drafter: str) -> Shift:
        shifts = self._shifts.setdefault(slot, {})
        shift = shifts.get(drafter)
        if shift is None:
            shift = shifts[drafter] = Shift()
        return shift


def read_tables(state: Any) -> dict[str, AcceptanceTable]:
    """Parse the result of `AcceptanceModel.state`. Raises TypeError, ValueError, KeyError or AttributeError if it is
    malformed.
    """
    if state["format"] != FORMAT:
        raise ValueError(f"format {state['format']!r}")
    return {str(name): AcceptanceTable.read(table) for name, table in list(state["drafters"].items())[:MAX_STORED]}


def first_line(drafter: str) -> LogOddsLine:
    """Return the log-odds line that a drafter starts with."""
    return LogOddsLine(SIBLING_LEVEL, SIBLING_SLOPE) if is_sibling_table(drafter) else LogOddsLine()


def clamp_log_odds(confidence: float) -> float:
    """Return the log-odds of a confidence, within the range of the bins; NaN stands for UNKNOWN_CONFIDENCE."""
    if confidence != confidence:  # NaN: not reported
        confidence = UNKNOWN_CONFIDENCE
    elif confidence <= LOWEST:
        return LOW
    elif confidence >= HIGHEST:
        return HIGH
    return math.log(confidence / (1.0 - confidence))


def shift_log_odds(probability: float, shift: float) -> float:
    return probability / (probability + (1.0 - probability) * math.exp(-shift))
