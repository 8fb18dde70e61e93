"""Choose the part of a step's drafts to send to the target: for each slot a prefix of one chain, or the best nodes of
one tree.

Pure: reads the chains (step_drafts.py), changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglelocal.core.draft import Draft
from eaglelocal.speculation.policy.goodput import (
    estimate_worth,
    find_best_size,
    leaves_pay,
    share_out,
    split_into_units,
)
from eaglelocal.speculation.policy.slot_policy import DraftCall
from eaglelocal.speculation.policy.step_drafts import StepDrafts
from eaglelocal.speculation.tree import EMPTY, DraftChain, TreeNode, list_nodes, make_draft


class DraftSelection:
    """Decides, once drafting has ended, which drafted tokens of each slot are sent to the target."""

    def __init__(self, drafts: StepDrafts) -> None:
        self._drafts = drafts
        self._num_sent: dict[int, int] = {}  # tokens, by slot

    # ---- the worth of a chain to its slot
    def worth(self, chain: DraftChain) -> float:
        """Return the worth of the chain with its branches, in tokens, relative to no draft at all."""
        gains = chain.node_gains
        costs = self._drafts.slot_costs(len(gains))
        return find_best_size(gains[: len(costs) - 1], costs)[1] + costs[0]

    def is_settled(self, slot: int) -> bool:
        """Return whether a lookup, or the rest of an earlier draft, promises at least as much as the primary drafter
        could.
        """
        step, drafters = self._drafts, self._drafts.drafters
        best = max((self.worth(c) for name in drafters.free if (c := step.chains[name].get(slot))), default=0)
        if best <= 0.0:
            return False
        primary = drafters.primary or ""
        step_cost = step.token_costs.draft_step(primary, len(step.auto)) / len(step.auto)
        costs = step.slot_costs(step.room(slot, primary))
        mean = step.outlook(slot, primary).mean
        return best >= estimate_worth(mean, costs, step_cost, block_size=drafters.block_size)

    def promised_speed(self, slot: int, calls: Sequence[DraftCall]) -> float:
        """Return the speed relative to plain decoding if the primary drafter's draft for the slot were sent.

        Without one, the rest of an earlier draft counts, for which nothing is drafted.

        calls  of the drafters in this step
        """
        step, drafters = self._drafts, self._drafts.drafters
        found = [
            chain for name in (drafters.primary, drafters.kept) if (chain := step.chains.get(name or "", {}).get(slot))
        ]
        if not found:
            return 1.0
        chain = found[0]
        gains = [node.gain for node in self.list_nodes(slot, chain)] if chain.sibling_gains else chain.gains
        costs = self._shared_costs(slot, min(len(gains), len(step.row_costs) - 1))
        size, _ = find_best_size(gains[: len(costs) - 1], costs)
        drafting = self._drafting_cost(slot, chain.drafter, calls)
        num_drafted = len(chain.tokens)
        if step.policies[slot].is_probing and drafters.block_size == 1 and num_drafted > size:
            drafting *= (size + 1) / num_drafted  # awake it drafts one token more than it sends
        drafting += step.token_costs.drafted / len(step.auto)
        a_token = step.plain_cost / len(step.max_draft)  # one, where nothing is gained by drafting
        cost = (costs[size] - costs[0] + drafting) / max(a_token, 1e-9)
        return (1.0 + sum(gains[:size])) / (1.0 + cost)

    def _drafting_cost(self, slot: int, drafter: str, calls: Sequence[DraftCall]) -> float:
        """Return what the slot's draft cost, in tokens: its share of the drafter's calls, by the tokens drafted."""
        step, num_tokens = self._drafts, {}
        for each, trunk in step.chains[drafter].items():
            num_tokens[each] = sum([len(chain.tokens) for chain in trunk.chains]) - len(trunk.branches)
        cost = sum(
            [
                step.drafters.num_steps(drafter, call.num_levels) * step.token_costs.draft_step(drafter, call.num_rows)
                for call in calls
                if call.drafter == drafter and call.num_levels
            ]
        )
        return cost * num_tokens[slot] / max(sum(num_tokens.values()), 1)

    def _shared_costs(self, slot: int, length: int) -> list[float]:
        """Return the slot's costs of 0 .. length drafted tokens: its share of a decode with the rows that others send.

        `select` must have chosen those.
        """
        step = self._drafts
        if step.is_leveled:
            return step.slot_costs(length)
        costs = step.row_costs
        others = sum([self._num_sent.get(each, 0) for each in step.auto if each != slot])
        others = min(others, len(costs) - 1 - length)
        return [costs[0], *(costs[0] + (costs[others + n] - costs[0]) * n / (others + n) for n in range(1, length + 1))]

    # ---- choosing
    def select(self) -> dict[int, Draft]:
        """Return the draft to verify for each slot."""
        drafts = self._select()
        self._num_sent = {slot: len(draft) for slot, draft in drafts.items()}
        return drafts

    def _select(self) -> dict[int, Draft]:
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
        if step.policies[slot].is_probing:
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
