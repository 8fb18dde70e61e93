"""Decide whether lookups are worth a look, and what they find a StepPolicy, where only lookups can draft.

A find takes a few percent of a step, whether or not it is sent. So finds count only if they may pay, those of all slots
together, as a StepPolicy would choose. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import NamedTuple

from eaglelocal.core.records import dataclass
from eaglelocal.speculation.acceptance.acceptance_model import OPTIMISM, AcceptanceModel
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.draft_switch import DECIDED_EVERY
from eaglelocal.speculation.policy.goodput import find_best_size, split_into_units
from eaglelocal.speculation.policy.token_costs import TokenCosts

EXPLORED_EVERY = 16  # one step in so many takes whatever is found, because texts change


class Find(NamedTuple):
    """A lookup's estimate for a slot: about the confidence of the first token that it would propose."""

    slot: int
    lookup: str
    confidence: float


@dataclass(slots=True)
class PricedSlots:
    """Slots that decode together: the costs of a step by drafted rows, in tokens, and whether sure drafts would pay."""

    num_slots: int
    num_steps: int = 0
    row_costs: list[float] = field(default_factory=list)
    may_pay: bool = True


class LookupFilter:
    """The prices of rows, by the slots that decode together; computed anew every few steps.

    max_draft  most tokens that a slot may send
    leveled    all slots send equally many rows
    find_rate  returns the tokens that a second is worth, by numbers of decoding slots and of cached positions
    """

    def __init__(
        self,
        costs: StepCosts,
        acceptance: AcceptanceModel,
        max_draft: int,
        leveled: bool,
        find_rate: Callable[[int, int], float],
    ) -> None:
        self._costs, self._acceptance, self._max_draft = costs, acceptance, max_draft
        self._leveled, self._find_rate = leveled, find_rate
        self._priced: dict[tuple[int, ...], PricedSlots] = {}
        self._now = PricedSlots(0)  # of this step

    def begin(self) -> None:
        """Forget the steps so far, because a text begins."""
        self._priced.clear()

    def begin_step(self, slots: Sequence[int], num_cells: int, num_reading: int) -> bool:
        """Begin a step of these slots. Return whether any finds may pay.

        num_reading  slots whose prompts are read, which will decode beside these
        """
        key = (*slots, num_reading)
        now = self._now = self._priced.setdefault(key, PricedSlots(len(slots)))
        if now.num_steps % DECIDED_EVERY == 0:
            rate = self._find_rate(len(slots) + num_reading, num_cells)
            costs = TokenCosts(self._costs, lambda: rate, num_base_rows=len(slots), num_cells=num_cells)
            now.row_costs = costs.rows(self._max_draft * len(slots))
            now.may_pay = self._pays([1.0] * len(slots))
        now.num_steps += 1
        return now.may_pay

    def may_pay(self, finds: Iterable[Find]) -> bool:
        """Return whether these finds may pay in this step."""
        chances: dict[int, float] = {}
        for slot, lookup, confidence in finds:
            chance = self._acceptance.probability(slot, lookup, 1, confidence, hope=OPTIMISM)
            chances[slot] = max(chances.get(slot, 0.0), chance)
        is_explored = self._now.num_steps % EXPLORED_EVERY == 0
        return bool(chances) and (is_explored or self._pays([*chances.values()]))

    def _pays(self, chances: Sequence[float]) -> bool:
        """Return whether drafts pay whose tokens are accepted with these probabilities, by slot; others draft none."""
        chains = [[chance**n for n in range(1, self._max_draft + 1)] for chance in chances]
        chains += [[]] * (self._now.num_slots - len(chains))
        return find_best_size(*split_into_units(chains, self._now.row_costs, self._leveled))[0] > 0
