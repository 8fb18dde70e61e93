"""Choose what of a step's chains is sent to the target: for each slot one chain, so much of it, and which siblings.

Pure: reads the chains (step_drafts.py), changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglelocal.core.draft import Draft
from eaglelocal.speculation.policy.goodput import (
    cut_to_best,
    estimate_worth,
    find_best_size,
    share_out,
    split_into_units,
)
from eaglelocal.speculation.policy.pending_drafts import sibling_table
from eaglelocal.speculation.policy.step_drafts import StepDrafts
from eaglelocal.speculation.tree import EMPTY, NO_SIBLINGS, DraftChain, Siblings, pick_siblings


class DraftSelection:
    """The worth of one step's chains, and the choice among them."""

    def __init__(self, drafts: StepDrafts) -> None:
        self._drafts = drafts

    # ---- the worth of a chain to its slot
    def worth(self, chain: DraftChain) -> float:
        """Return the worth of the chain, in tokens, relative to no draft at all."""
        costs = self._drafts.slot_costs(len(chain.gains))
        return find_best_size(chain.gains, costs)[1] + costs[0]

    def is_settled_by_lookup(self, slot: int) -> bool:
        """Return whether a lookup promises at least as much as the primary drafter is expected to."""
        step, drafters = self._drafts, self._drafts.drafters
        best = max((self.worth(c) for name in drafters.lookups if (c := step.chains[name].get(slot))), default=0)
        if best <= 0.0:
            return False
        primary = drafters.primary or ""
        step_cost = step.token_costs.draft_step(primary, len(step.auto)) / len(step.auto)
        costs = step.slot_costs(step.max_draft[slot])
        mean = step.outlook(slot, primary).mean
        return best >= estimate_worth(mean, costs, step_cost, block_size=drafters.block_size)

    def promised_speed(self, slot: int) -> float:
        """Return the speed relative to plain decoding if the primary drafter's chain for the slot were sent."""
        step, drafters = self._drafts, self._drafts.drafters
        chain = step.chains[drafters.primary].get(slot) if drafters.primary else None
        if chain is None:
            return 1.0
        costs, num = step.slot_costs(len(chain.gains)), len(step.auto)
        size, _ = find_best_size(chain.gains, costs)
        num_steps = drafters.num_steps(chain.drafter, len(chain.gains))
        drafting = (num_steps * step.token_costs.draft_step(chain.drafter, num) + step.token_costs.drafted) / num
        # cost of a plain step for one slot: one token, where nothing is gained by drafting
        a_token = costs[0] if step.is_leveled else costs[0] / len(step.max_draft)
        cost = (costs[size] - costs[0] + drafting) / max(a_token, 1e-9)
        return (1.0 + sum(chain.gains[:size])) / (1.0 + cost)

    # ---- choosing
    def select(self) -> dict[int, Draft]:
        """Return the draft to verify for each slot."""
        step = self._drafts
        if step.is_empty:
            return dict.fromkeys(step.max_draft, EMPTY)
        best = {slot: self._best_chain(slot) for slot in step.max_draft}
        gains = [best[slot].gains for slot in step.auto]
        if step.max_siblings and self._may_pay([best[slot] for slot in step.auto], gains):
            return self._trees(best)
        sizes = self._sizes(gains)
        return {slot: chain.draft(sizes.get(slot, len(chain.tokens))) for slot, chain in best.items()}

    def _best_chain(self, slot: int) -> DraftChain:
        """Return the best of the slot's chains that may be sent: a probe's is not.

        Where a rule sets the length, whatever it is worth, that is the first drafter's that proposed something.
        """
        step = self._drafts
        names = step.drafters.lookups if step.policies[slot].is_probing else step.drafters.names
        chains = [step.chains[name][slot] for name in names if slot in step.chains[name]]
        if len(chains) < 2:
            return chains[0] if chains else DraftChain("")
        if step.policies[slot].gate is None:
            return next((chain for chain in chains if chain.tokens), chains[0])
        return max(chains, key=self.worth)

    def _sizes(self, gains: Sequence[Sequence[float]]) -> dict[int, int]:
        """Return how many tokens of each `auto` chain are sent, by slot."""
        step = self._drafts
        if len(gains) == 1:
            return {step.auto[0]: find_best_size(gains[0], step.row_costs)[0]}
        size, _ = find_best_size(*split_into_units(gains, step.row_costs, step.is_leveled))
        if step.is_leveled:
            return {slot: min(size, len(chain)) for slot, chain in zip(step.auto, gains, strict=True)}
        return dict(zip(step.auto, share_out(size, gains), strict=True))

    # ---- siblings
    def _may_pay(self, chains: Sequence[DraftChain], gains: Sequence[Sequence[float]]) -> bool:
        """Return whether siblings would pay if all were right. If not, their probabilities are not computed."""
        odds = sorted((each for chain in chains for each, _ in chain.sibling_odds()), reverse=True)
        if not odds:
            return False
        firsts, costs = split_into_units(gains, self._drafts.row_costs, False)
        nodes = sorted([*firsts, *odds], reverse=True)[: len(costs) - 1]
        return find_best_size(nodes, costs)[1] > find_best_size(firsts, costs)[1]

    def _trees(self, best: Mapping[int, DraftChain]) -> dict[int, Draft]:
        """Return `select` where they may have siblings: rows go to chains and siblings alike, by gain."""
        step = self._drafts
        siblings = {slot: self._siblings(slot, best[slot]) for slot in step.auto}
        gains: list[Sequence[float]] = []
        for slot in step.auto:
            gains += cut_to_best(step.max_draft[slot], (best[slot].gains, siblings[slot].gains))
        size, _ = find_best_size(*split_into_units(gains, step.row_costs, False))
        shares = iter(share_out(size, gains))
        drafts = {slot: chain.draft(len(chain.tokens)) for slot, chain in best.items() if slot not in siblings}
        for slot in step.auto:
            length, num_siblings = next(shares), next(shares)
            drafts[slot] = best[slot].draft(length, siblings[slot].depths[:num_siblings])
        return drafts

    def _siblings(self, slot: int, chain: DraftChain) -> Siblings:
        if not chain.siblings:
            return NO_SIBLINGS
        acceptance, name = self._drafts.acceptance, sibling_table(chain.drafter)
        return pick_siblings(
            chain,
            lambda depth, confidence: acceptance.probability(slot, name, depth, confidence),
            self._drafts.max_siblings,
        )
