"""Decide one step's drafting: which drafter runs, whether a chain grows another level, how much of it is verified.

A StepPolicy is made for each step by the controller and discarded with it. Fixed and PID lengths are decided per slot;
`auto` decides for all its slots together, because they share the rows of one decode. Pure: reads what was learned,
changes nothing but its own chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels
from eaglelocal.core.draft import Draft
from eaglelocal.speculation.policy.draft_selection import DraftSelection
from eaglelocal.speculation.policy.goodput import count_paying_levels, pays_to_grow, pays_to_grow_all
from eaglelocal.speculation.policy.step_drafts import StepDrafts
from eaglelocal.speculation.policy.tree_growth import SlotTip, TreeGrowth
from eaglelocal.speculation.tree import MIN_REACH, DraftChain

LOOKUP_LEVELS = 4  # levels that a lookup drafts in one call
SURE = 0.99  # confidence above which a model drafts on in the same call
MOST_AHEAD = 3  # uncertain levels that a model drafts in one call; with more, wasted draft steps add up


class StepPolicy:
    """The drafting decisions of one step, made while drafters run; discarded with the step.

    The draft loop asks after which leaves to draft on (`select_tips`) and how far (`select_levels`), adds the proposals
    to `drafts`, and asks what to verify (`select_drafts`).
    """

    def __init__(self, drafts: StepDrafts) -> None:
        self.drafts, self._selection = drafts, DraftSelection(drafts)
        has_trees = min(drafts.max_siblings, drafts.drafters.num_branches) > 0
        self._growth = TreeGrowth(drafts, self._selection, drafts.drafters.primary or "") if has_trees else None
        self._is_branching = False  # whether the last leaves are those of trees, not of chains
        self._policies, self._drafters, self._max_draft = drafts.policies, drafts.drafters, drafts.max_draft
        self._chains, self._auto = drafts.chains, drafts.auto

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
            chains = self._chains[drafter]
            return growth.select([s for s in self._auto if s in chains and self._takes_part(s, drafter)])
        return [SlotTip(slot) for slot in self.select_slots(drafter)]

    def _are_undecided(self, drafter: str) -> bool:
        """Return whether cost alone decides about all chains, and every `auto` slot that takes part has one."""
        slots = [s for s, most in self._max_draft.items() if most and self._takes_part(s, drafter)]
        has_begun = all([slot in self._chains[drafter] for slot in slots if slot in self._auto])
        return has_begun and not any([self._must_grow(slot, drafter) for slot in slots])

    def select_slots(self, drafter: str) -> list[int]:
        """Return the slots for which this drafter should propose another level."""
        chains = self._chains[drafter]
        if len(self._max_draft) == 1:
            return self._select_alone(drafter, *self._max_draft)
        able = [s for s in self._max_draft if self._can_grow(s, chains.get(s)) and self._takes_part(s, drafter)]
        if not able:
            return able
        forced = [s for s in able if self._must_grow(s, drafter)]
        undecided = [s for s in able if s not in forced and self._policies[s].gate is not None]
        growing = self._select_growing(drafter, undecided, len(forced))
        return [s for s in able if s in forced or s in growing]

    def _select_growing(self, drafter: str, slots: Sequence[int], num_forced: int) -> Sequence[int]:
        """Return the slots for which another level pays: all, or the likeliest half, quarter, ..; all or none where
        they send equally many rows.
        """
        if not slots:
            return slots
        gains = self._gains(drafter)
        reach = {slot: gains[slot][-1] if gains[slot] else 1.0 for slot in slots}
        ranked = sorted(slots, key=lambda slot: -reach[slot] * self.drafts.outlook(slot, drafter).mean)
        while ranked and not self._pays(drafter, ranked, gains, num_forced=num_forced):
            ranked = [] if self.drafts.is_leveled else ranked[: len(ranked) // 2]
        return ranked

    def _select_alone(self, drafter: str, slot: int) -> list[int]:
        """Return `select_slots` where one slot decodes, the common case."""
        if not (self._can_grow(slot, self._chains[drafter].get(slot)) and self._takes_part(slot, drafter)):
            return []
        grows = self._must_grow(slot, drafter) or (self._auto and self._pays(drafter, (slot,), self._gains(drafter)))
        return [slot] if grows else []

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
        return gate is None or gate.is_probing or (gate.is_awake and not self._selection.is_settled(slot))

    def _must_grow(self, slot: int, drafter: str) -> bool:
        """Return whether the chain grows regardless of cost: by a rule, for a probe, or for a first lookup."""
        policy, chain = self._policies[slot], self._chains[drafter].get(slot)
        length = len(chain.tokens) if chain else 0
        if policy.gate is None:
            return length < policy.length
        if drafter == self._drafters.primary:
            return length < policy.gate.probe_length
        return length == 0  # a first lookup costs nothing

    def _pays(
        self, drafter: str, slots: Sequence[int], gains: Mapping[int, Sequence[float]], num_forced: int = 0
    ) -> bool:
        """Return whether another level of these slots pays, after chains with these gains.

        num_forced  slots for which the drafter is called in any case
        """
        step, draft_step = self.drafts, self.drafts.token_costs.draft_step
        outlook, step_cost = step.outlook, draft_step(drafter, len(slots) + num_forced)
        if num_forced:
            step_cost = max(step_cost - draft_step(drafter, num_forced), 0.0)
        block_size = self._drafters.block_size if drafter == self._drafters.primary else 1
        if len(self._auto) == 1:
            slot = slots[0]
            costs = step.row_costs[: step.room(slot, drafter) + 1]
            return pays_to_grow(gains[slot], costs, outlook(slot, drafter), step_cost, block_size=block_size)
        return pays_to_grow_all(
            list(gains.values()),
            step.row_costs,
            [outlook(s, drafter, len(slots)) if s in slots else None for s in self._auto],
            step_cost,
            step.is_leveled,
            block_size=block_size,
            max_depth=self._drafters.depth_limit(drafter),
        )

    def _gains(self, drafter: str) -> dict[int, list[float]]:
        chains = self._chains[drafter]
        return {slot: list(chains[slot].gains) if slot in chains else [] for slot in self._auto}

    # ---- how many levels a call drafts
    def select_levels(self, drafter: str, slots: Sequence[int]) -> tuple[int, ExtraLevels]:
        """Return how many levels to draft for these slots in one call, and how many more while each token is sure."""
        num_drafted = self.drafts.num_drafted
        if self._is_branching:
            return 1, NO_EXTRA_LEVELS
        if drafter == self._drafters.primary and self._drafters.block_size > 1:
            most = max([self.drafts.useful_length(slot) for slot in slots])
            return min(self._drafters.block_size, most), NO_EXTRA_LEVELS
        forced = min([self._forced_length(slot, drafter) - num_drafted(slot, drafter) for slot in slots])
        if forced > 0 or any(self._policies[slot].gate is None for slot in slots):
            return max(forced, 1), NO_EXTRA_LEVELS
        most = min([self.drafts.room(slot, drafter) - num_drafted(slot, drafter) for slot in slots])
        if drafter != self._drafters.primary:
            return min(LOOKUP_LEVELS, most), NO_EXTRA_LEVELS
        if len(self._auto) > 1:
            return self._levels_in_doubt(drafter, slots, most), NO_EXTRA_LEVELS
        return self._levels_alone(drafter, slots[0], most)

    def _forced_length(self, slot: int, drafter: str) -> int:
        """Return how many tokens are drafted regardless of cost: by a rule, or for a probe."""
        policy = self._policies[slot]
        length = policy.length if policy.gate is None else policy.gate.probe_length
        return min(length, self.drafts.room(slot, drafter))

    def _levels_alone(self, drafter: str, slot: int, most: int) -> tuple[int, ExtraLevels]:
        """Return the levels of the only `auto` slot.

        Sure tokens count as at the depth ahead that accepts them least.
        """
        step = self.drafts
        gains, outlook = self._gains(drafter)[slot], step.outlook(slot, drafter)
        if self._growth is not None and not gains and self._growth.is_hoped_for(slot):
            return 1, NO_EXTRA_LEVELS
        costs = step.row_costs[: step.room(slot, drafter) + 1]
        chain_so_far = (gains, costs, outlook.mean, step.token_costs.draft_step(drafter, 1))
        depth = count_paying_levels(*chain_so_far, chance=outlook.doubtful, most=min(most, MOST_AHEAD))
        ends = len(gains) + 1, len(gains) + most
        sure = min([step.acceptance.probability(slot, drafter, at, SURE) for at in ends])
        num_sure = count_paying_levels(*chain_so_far, chance=sure, most=most)
        return depth, ExtraLevels(num_sure - depth, SURE) if num_sure > depth else NO_EXTRA_LEVELS

    def _levels_in_doubt(self, drafter: str, slots: Sequence[int], most: int) -> int:
        """Return how many levels pay even if each token is worse than most: another call costs more than a level."""
        gains, most = self._gains(drafter), min(most, MOST_AHEAD)
        for levels in range(1, most):
            for slot in slots:
                reach = gains[slot][-1] if gains[slot] else 1.0
                gains[slot].append(reach * self.drafts.outlook(slot, drafter, len(slots)).doubtful)
            if not self._pays(drafter, slots, gains):
                return levels
        return most
