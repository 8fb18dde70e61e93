"""Choose the part of a step's drafts to send to the target: for each slot a prefix of one chain, or the best nodes of
one tree.

Pure: reads the chains (step_drafts.py), changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglelocal.core.draft import Draft
from eaglelocal.speculation.policy.goodput import find_best_size, leaves_pay, share_out, split_into_units
from eaglelocal.speculation.policy.step_drafts import StepDrafts
from eaglelocal.speculation.tree import EMPTY, DraftChain, TreeNode, list_nodes, make_draft


class DraftSelection:
    """Decides, once drafting has ended, which drafted tokens of each slot are sent to the target."""

    def __init__(self, drafts: StepDrafts) -> None:
        self._drafts = drafts

    # ---- the worth of a chain to its slot
    def worth(self, chain: DraftChain) -> float:
        """Return the worth of the chain with its branches, in tokens, relative to no draft at all."""
        gains = chain.node_gains
        costs = self._drafts.slot_costs(len(gains))
        return find_best_size(gains[: len(costs) - 1], costs)[1] + costs[0]

    # ---- choosing
    def select(self) -> dict[int, Draft]:
        """Return the draft to verify for each slot."""
        step = self._drafts
        if step.is_empty:
            return dict.fromkeys(step.max_draft, EMPTY)
        best = {slot: self._best_chain(slot) for slot in step.max_draft}
        gains = [best[slot].gains for slot in step.auto]
        if step.max_siblings and self._may_branch([best[slot] for slot in step.auto]):
            return self._trees(best)
        sizes = self._sizes(gains)
        return {slot: chain.draft(sizes.get(slot, len(chain.tokens))) for slot, chain in best.items()}

    def _best_chain(self, slot: int) -> DraftChain:
        """Return the slot's best chain among those that may be sent; a probe's chain may not.

        Where a rule sets the length regardless of worth, that is the chain of the first drafter that proposed
        something.
        """
        step = self._drafts
        names = (step.drafters.kept, *step.drafters.names)
        gate = step.policies[slot].gate
        if gate is not None and gate.is_probing:
            names = step.drafters.lookups
        chains = [step.chains[name][slot] for name in names if slot in step.chains.get(name, ())]
        if len(chains) < 2:
            return chains[0] if chains else DraftChain("")
        if step.policies[slot].gate is None:
            return next((chain for chain in chains if chain.tokens), chains[0])
        return max(chains, key=self.worth)

    def _may_branch(self, chains: Sequence[DraftChain]) -> bool:
        return any([chain.branches for chain in chains]) or self.siblings_may_pay(chains)

    def _sizes(self, gains: Sequence[Sequence[float]]) -> dict[int, int]:
        step = self._drafts
        if len(gains) == 1:
            return {step.auto[0]: find_best_size(gains[0], step.row_costs)[0]}
        size, _ = find_best_size(*split_into_units(gains, step.row_costs, step.is_leveled))
        if step.is_leveled:
            return {slot: min(size, len(chain)) for slot, chain in zip(step.auto, gains, strict=True)}
        return dict(zip(step.auto, share_out(size, gains), strict=True))

    # ---- trees
    def siblings_may_pay(self, chains: Sequence[DraftChain]) -> bool:
        """Return whether siblings of these chains, one per `auto` slot, would pay if every sibling were right.

        If not, their probabilities are not computed.
        """
        gains = [chain.gains for chain in chains]
        odds = [each for chain in chains for each in chain.sibling_odds()]
        return bool(odds) and leaves_pay(gains, odds, self._drafts.row_costs)

    def _trees(self, best: Mapping[int, DraftChain]) -> dict[int, Draft]:
        """Do the work of `select` where drafts may be trees: rows go to the likeliest nodes of all slots."""
        step = self._drafts
        nodes = {slot: self.list_nodes(slot, best[slot]) for slot in step.auto}
        gains = [[node.gain for node in nodes[slot]] for slot in step.auto]
        size, _ = find_best_size(*split_into_units(gains, step.row_costs, False))
        drafts = {slot: chain.draft(len(chain.tokens)) for slot, chain in best.items() if slot not in nodes}
        for slot, share in zip(step.auto, share_out(size, gains), strict=True):
            drafts[slot] = make_draft(best[slot], nodes[slot][:share])
        return drafts

    def list_nodes(self, slot: int, trunk: DraftChain) -> list[TreeNode]:
        """Return the nodes of the slot's tree that may be sent, the likeliest first."""
        step = self._drafts
        step.weigh_siblings(slot, trunk)
        return list_nodes(trunk, max_branches=step.max_siblings, room=step.max_draft[slot])
