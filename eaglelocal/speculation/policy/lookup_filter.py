"""Decide whether lookups are worth a look, and which finds a StepPolicy, where only lookups can draft.

A find takes a few percent of a step, whether or not it is sent. So it counts only if it may pay: judged for all slots
together, because they share the rows of a decode. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eaglelocal.core.records import dataclass
from eaglelocal.speculation.acceptance.acceptance_model import OPTIMISM, AcceptanceModel
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.draft_switch import BISECTIONS, DECIDED_EVERY
from eaglelocal.speculation.policy.goodput import find_best_size, split_into_units
from eaglelocal.speculation.policy.token_costs import TokenCosts

EXPLORED_EVERY = 16  # one step in so many takes whatever is found, because texts change


@dataclass(slots=True)
class Company:
    """Slots that decode together, and how likely the tokens of a draft must be accepted to pay; 1.0: none pays."""

    num_steps: int = 0
    chance: float = 1.0


class LookupFilter:
    """What finds must promise, by the slots that decode together; decided anew every few steps.

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
        self._companies: dict[tuple[int, ...], Company] = {}
        self._chance = 1.0  # of this step

    def begin(self) -> None:
        """Forget what was decided, because a text begins."""
        self._companies.clear()

    def begin_step(self, slots: Sequence[int], num_cells: int, num_reading: int) -> bool:
        """Begin a step of these slots. Return whether any find may pay.

        num_reading  slots whose prompts are read, which will decode beside these
        """
        company = self._companies.setdefault((*slots, num_reading), Company())
        if company.num_steps % DECIDED_EVERY == 0:
            company.chance = self._find_chance(len(slots), num_cells, num_reading)
        company.num_steps += 1
        is_explored = company.num_steps % EXPLORED_EVERY == 0 and company.chance < 1.0
        self._chance = 0.0 if is_explored else company.chance
        return self._chance < 1.0

    def may_pay(self, slot: int, lookup: str, confidence: float) -> bool:
        """Return whether a find of this confidence may pay in this step."""
        return self._acceptance.probability(slot, lookup, 1, confidence, hope=OPTIMISM) >= self._chance

    def _find_chance(self, num_slots: int, num_cells: int, num_reading: int) -> float:
        rate = self._find_rate(num_slots + num_reading, num_cells)
        costs = TokenCosts(self._costs, lambda: rate, num_base_rows=num_slots, num_cells=num_cells)
        rows = costs.rows(self._max_draft * num_slots)
        numbers = {num_slots} if self._leveled else {1, num_slots}  # of slots that find something

        def pays(chance: float) -> bool:
            chain = [chance**n for n in range(1, self._max_draft + 1)]
            units = (split_into_units([chain] * number, rows, self._leveled) for number in numbers)
            return any(find_best_size(gains[: len(costs) - 1], costs)[0] > 0 for gains, costs in units)

        low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if pays(middle) else (middle, high)
        return high
