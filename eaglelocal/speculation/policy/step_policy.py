"""Decide one step's drafting: which drafter runs, whether a chain grows another level, how much of it is verified.

A StepPolicy is made for each step by the controller and discarded with it. Fixed and PID lengths are decided per slot;
`auto` decides for all its slots together, because they share the rows of one decode. Pure: reads what was learned,
changes nothing but its own chains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels
from eaglelocal.core.draft import Draft
from eaglelocal.speculation.policy.draft_selection import DraftSelection
from eaglelocal.speculation.policy.goodput import ChainValue, find_best_size, split_into_units
from eaglelocal.speculation.policy.step_drafts import StepDrafts
from eaglelocal.speculation.policy.tree_growth import SlotTip, TreeGrowth
from eaglelocal.speculation.tree import MIN_REACH, DraftChain

SURE = 0.99  # confidence above which a model drafts on in the same call
MOST_AHEAD = 3  # uncertain levels that a model drafts in one call; with more, wasted draft steps add up


class StepPolicy:
    """The drafting decisions of one step, made while drafters run; discarded with the step.

    The draft loop asks after which leaves to draft on (`select_tips`) and how far (`select_levels`), adds the proposals
    to `drafts`, and asks what to verify (`select_drafts`).
    """

    def __init__(self, drafts: StepDrafts, find_values: Callable[[], Mapping[int, ChainValue]]) -> None:
        """Set what `auto` decides by.

        find_values  returns what drafting is worth to the slots for which the primary drafter is awake
        """
        self.drafts, self._selection, self._find_values = drafts, DraftSelection(drafts), find_values
        has_trees = min(drafts.max_siblings, drafts.drafters.num_branches) > 0
        self._growth = TreeGrowth(drafts, self._selection, lambda: self._values) if has_trees else None
        self._is_branching = False  # whether the last leaves are those of trees, not of chains
        self._policies, self._drafters, self._max_draft = drafts.policies, drafts.drafters, drafts.max_draft
        self._chains, self._auto = drafts.chains, drafts.auto

    @cached_property
    def _values(self) -> Mapping[int, ChainValue]:
        return self._find_values()

    # ---- what is sent
    def select_drafts(self) -> dict[int, Draft]:
        """Return the draft to verify for each slot."""
        return self._selection.select()

    # ---- what is drafted on
    def select_tips(self, drafter: str) -> Sequence[SlotTip]:
        """Return the leaves after which this drafter should propose more, in one call."""
        growth = self._growth if drafter == self._drafters.primary else None
        self._is_branching = growth is not None and growth.may_pay() and self._are_undecided(drafter)
        if growth is not None and self._is_branching:
            drafted = [slot for slot in self._values if slot in self._chains[drafter]]
            return growth.select([slot for slot in drafted if self._takes_part(slot, drafter)])
        return [SlotTip(slot) for slot in self.select_slots(drafter)]

    def _are_undecided(self, drafter: str) -> bool:
        """Return whether cost alone decides about all chains, and every `auto` slot that takes part has one."""
        slots = [s for s, most in self._max_draft.items() if most and self._takes_part(s, drafter)]
        has_begun = all([slot in self._chains[drafter] for slot in slots if slot in self._auto])
        return has_begun and not any([self._must_grow(slot, drafter) for slot in slots])

    def select_slots(self, drafter: str) -> list[int]:
        """Return the slots for which this drafter should propose another level."""
        chains = self._chains[drafter]
        able = [s for s in self._max_draft if self._can_grow(s, chains.get(s)) and self._takes_part(s, drafter)]
        forced = [s for s in able if self._must_grow(s, drafter)]
        if len(forced) == len(able) or drafter != self._drafters.primary:
            return forced
        growing = self._select_growing([s for s in able if s not in forced and s in self._values], len(forced))
        return [s for s in able if s in forced or s in growing]

    def _select_growing(self, slots: Sequence[int], num_forced: int) -> Sequence[int]:
        """Return the slots for which another draft step brings most in all; all or none where they send equally many
        rows.

        num_forced  slots for which the drafter is called in any case
        """
        if not slots:
            return slots
        chains = self._list_gains()
        expected = {slot: self._expect(slot, chains) for slot in slots}
        ranked = sorted(slots, key=expected.__getitem__, reverse=True)
        gains, numbers = [expected[slot] for slot in ranked], tuple(range(len(ranked) + 1))
        if self.drafts.is_leveled:
            gains, numbers = [sum(gains)], (0, len(ranked))
        lost = self._lose(chains)
        costs = [self._draft_step(num_forced + number) + (lost if number else 0.0) for number in numbers]
        return ranked[: numbers[find_best_size(gains, costs)[0]]]

    def _list_gains(self) -> dict[int, list[float]]:
        """Return the gains of the primary drafter's chains for each `auto` slot; trials send nothing."""
        chains = self._chains[self._drafters.primary or ""]
        return {
            slot: list(chains[slot].gains) if slot in chains and slot in self._values else [] for slot in self._auto
        }

    def _expect(self, slot: int, chains: Mapping[int, Sequence[float]]) -> float:
        """Return what another level brings the slot after these chains, all but its draft step paid.

        Rows are priced as if all chains were equally long, unless all send equally many anyway.
        """
        gains, value, most = chains[slot], self._values[slot], self.drafts.room(slot, self._drafters.primary or "")
        reach, num_drafted = gains[-1] if gains else 1.0, len(gains)
        level = num_drafted if self.drafts.is_leveled else sum(map(len, chains.values())) // len(self._values)
        expected = value.at(level, reach)
        if most >= len(value.table):
            return expected
        costs = self.drafts.slot_costs(most)  # fewer rows can be sent than is expected
        further = [n * reach - costs[num_drafted + n] + costs[num_drafted] for n in range(1, len(costs) - num_drafted)]
        return min(expected, max(further, default=0.0))

    def _lose(self, chains: Mapping[int, Sequence[float]]) -> float:
        """Return how much less sending all of these chains is worth than sending the best part of them."""
        gains, costs = split_into_units([*chains.values()], self.drafts.row_costs, self.drafts.is_leveled)
        if not gains or len(gains) >= len(costs):
            return 0.0
        return find_best_size(gains, costs)[1] - sum(gains) + costs[len(gains)]

    def _draft_step(self, num_slots: int) -> float:
        return self.drafts.token_costs.draft_step(self._drafters.primary or "", num_slots)

    def _can_grow(self, slot: int, chain: DraftChain | None) -> bool:
        if chain is None:
            return self._max_draft[slot] > 0
        return (
            not chain.ended
            and len(chain.tokens) < self.drafts.room(slot, chain.drafter)
            and (not chain.gains or chain.gains[-1] >= MIN_REACH)
        )

    def _takes_part(self, slot: int, drafter: str) -> bool:
        gate = self._policies[slot].gate
        if drafter != self._drafters.primary:
            return gate is not None or self._drafters.primary is None
        return gate is None or gate.is_probing or (gate.is_awake and not self._is_settled(slot))

    def _is_settled(self, slot: int) -> bool:
        """Return whether a lookup, or the rest of an earlier draft, promises at least as much as a new draft does."""
        free = [chain for name in self._drafters.free if (chain := self._chains[name].get(slot))]
        best = max([self._selection.worth(chain) for chain in free], default=0.0)
        return best > 0.0 and best >= self._expect(slot, {slot: ()}) - self._values[slot].first_step_cost

    def _must_grow(self, slot: int, drafter: str) -> bool:
        """Return whether the chain grows regardless of cost: by a rule, for a trial, or free of cost by a lookup."""
        policy, chain = self._policies[slot], self._chains[drafter].get(slot)
        length = len(chain.tokens) if chain else 0
        if policy.gate is None:
            return length < policy.length
        if drafter == self._drafters.primary:
            return length < policy.gate.probe_length
        return length == 0

    # ---- how many levels a call drafts
    def select_levels(self, drafter: str, slots: Sequence[int]) -> tuple[int, ExtraLevels]:
        """Return how many levels to draft for these slots in one call, and how many more while each token is sure."""
        num_drafted = self.drafts.num_drafted
        if self._is_branching:
            return 1, NO_EXTRA_LEVELS
        if drafter != self._drafters.primary or self._drafters.block_size > 1:
            most = max([self.drafts.useful_length(slot) for slot in slots])
            return most if drafter != self._drafters.primary else min(self._drafters.block_size, most), NO_EXTRA_LEVELS
        forced = min([self._forced_length(slot, drafter) - num_drafted(slot, drafter) for slot in slots])
        if forced > 0 or any(self._policies[slot].gate is None for slot in slots):
            return max(forced, 1), NO_EXTRA_LEVELS
        most = min([self.drafts.room(slot, drafter) - num_drafted(slot, drafter) for slot in slots])
        is_alone = len(self._auto) == 1
        growth = self._growth if is_alone and not num_drafted(slots[0], drafter) else None
        if growth is not None and growth.is_hoped_for(slots[0]):
            return 1, NO_EXTRA_LEVELS
        levels = self._count_levels([slot for slot in slots if slot in self._values], min(most, MOST_AHEAD))
        num_sure = self._count_sure_levels(slots[0], most) if is_alone else 0
        return levels, ExtraLevels(num_sure - levels, SURE) if num_sure > levels else NO_EXTRA_LEVELS

    def _forced_length(self, slot: int, drafter: str) -> int:
        """Return how many tokens are drafted regardless of cost: by a rule, or for a trial."""
        policy = self._policies[slot]
        length = policy.length if policy.gate is None else policy.gate.probe_length
        return min(length, self.drafts.room(slot, drafter))

    def _count_levels(self, slots: Sequence[int], most: int) -> int:
        """Return how many levels pay, at most `most`, even if each token is worse than most. The first is known to."""
        chains, cost = self._list_gains(), self._draft_step(len(slots))
        for levels in range(1, most):
            for slot in slots:
                chains[slot].append(self._values[slot].outlook.doubtful * (chains[slot][-1] if chains[slot] else 1.0))
            if sum([self._expect(slot, chains) for slot in slots]) <= cost + self._lose(chains):
                return levels
        return most

    def _count_sure_levels(self, slot: int, most: int) -> int:
        """Return how many levels of the only chain pay, at most `most`, if each of its tokens is sure.

        Sure tokens count as at the depth ahead that accepts them least.
        """
        chains, drafter, value = self._list_gains(), self._drafters.primary or "", self._values[slot]
        gains, needed = chains[slot], self._draft_step(1) + self._lose(chains)
        ends = len(gains) + 1, len(gains) + most
        chance = min([self.drafts.acceptance.probability(slot, drafter, at, SURE) for at in ends])
        reach = gains[-1] if gains else 1.0
        enough = (n for n in range(1, most) if value.at(len(gains) + n, reach * chance**n) <= needed)
        return next(enough, most)
