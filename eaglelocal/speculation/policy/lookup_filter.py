"""Decide how confident a lookup must be to be worth a look, where only lookups can draft.

A look that finds something takes a few percent of a step, whether or not it is sent. So it is made only if what it
finds may pay: for all slots together, because they share the rows of a decode. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eaglelocal.speculation.acceptance.acceptance_model import AcceptanceModel
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.draft_switch import DECIDED_EVERY
from eaglelocal.speculation.policy.goodput import find_best_size
from eaglelocal.speculation.policy.token_costs import TokenCosts

EXPLORED_EVERY = 16  # one step in so many takes whatever is found, because texts change
MOST_LEVELS = 8  # of a draft that are priced
BISECTIONS = 6  # of the probability at which a draft pays


class LookupFilter:
    """The least confidences of all slots, until the next decision.

    leveled    all slots send equally many rows
    find_rate  returns the tokens that a second is worth, by numbers of decoding slots and of cached positions
    """

    def __init__(
        self,
        costs: StepCosts,
        acceptance: AcceptanceModel,
        lookups: Sequence[str],
        leveled: bool,
        find_rate: Callable[[int, int], float],
    ) -> None:
        self._costs, self._acceptance, self._lookups = costs, acceptance, lookups
        self._leveled, self._find_rate = leveled, find_rate
        self._num_steps = 0
        self._slots: Sequence[int] = ()
        self._least: dict[int, Mapping[str, float]] = {}

    def select(self, slots: Sequence[int], num_slots: int, num_cells: int) -> dict[int, Mapping[str, float]]:
        """Return the least confidence of each lookup that may pay, for these of num_slots decoding slots; empty if none
        does.
        """
        if self._num_steps % DECIDED_EVERY == 0 or slots != self._slots:
            self._slots, self._least = slots, self._decide(slots, num_slots, num_cells)
        self._num_steps += 1
        if self._num_steps % EXPLORED_EVERY == 0 and self._least:
            return dict.fromkeys(slots, dict.fromkeys(self._lookups, 0.0))
        return self._least

    def _decide(self, slots: Sequence[int], num_slots: int, num_cells: int) -> dict[int, Mapping[str, float]]:
        chance = self._find_chance(num_slots, num_cells)
        if chance == 1.0:
            return {}
        least = self._acceptance.least_confidence
        return {slot: {name: least(slot, name, chance) for name in self._lookups} for slot in slots}

    def _find_chance(self, num_slots: int, num_cells: int) -> float:
        """Return how likely the tokens of a draft must be accepted, so that it is worth its rows; 1.0 if none is."""
        rate, width = self._find_rate(num_slots, num_cells), num_slots if self._leveled else 1
        costs = TokenCosts(self._costs, lambda: rate, num_base_rows=num_slots, num_cells=num_cells)
        levels = costs.rows(MOST_LEVELS * width)[::width]
        low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            pays = find_best_size([middle**n for n in range(1, len(levels))], levels)[0] > 0
            low, high = (low, middle) if pays else (middle, high)
        return high
