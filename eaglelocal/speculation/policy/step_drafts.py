"""Keep the drafters' proposals for one step, with their expected gains and costs.

Made for each step, and discarded with it. Pure: reads what was learned, changes nothing but its own chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglelocal.core.request import DraftPolicy
from eaglelocal.speculation.acceptance.acceptance_model import AcceptanceModel
from eaglelocal.speculation.costs.ubatch_split import price_levels
from eaglelocal.speculation.policy.pending_drafts import PendingDraft, Sibling
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet, SlotPolicy
from eaglelocal.speculation.policy.token_costs import TokenCosts
from eaglelocal.speculation.tree import MIN_REACH, DraftChain


class StepDrafts:
    """Proposals of all drafters in one step: chains, or trunks of trees, by drafter and slot.

    `leveled` and `max_siblings` as in Controller.
    """

    def __init__(
        self,
        slots: Sequence[DecodeSlot],
        policies: Mapping[int, SlotPolicy],
        drafters: DrafterSet,
        acceptance: AcceptanceModel,
        token_costs: TokenCosts,
        *,
        leveled: bool,
        max_siblings: int = 0,
    ) -> None:
        self.max_draft = {
            each.slot: min(each.max_draft, policies[each.slot].spec.max_draft) for each in slots
        }  # by slot
        self.policies, self.drafters, self.acceptance = policies, drafters, acceptance
        self.auto = [slot for slot in self.max_draft if policies[slot].spec.drafting is DraftPolicy.AUTO]
        self._ruled = [slot for slot in self.max_draft if slot not in self.auto] if self.auto else []
        self.is_leveled = leveled and len(slots) > 1
        self.max_siblings = max_siblings
        self.token_costs = token_costs
        self.chains: dict[str, dict[int, DraftChain]] = {name: {} for name in (*drafters.free, *drafters.names)}
        self._row_costs: dict[tuple[int, ...], list[float]] = {}  # by the lengths of the drafts that rules set

    @property
    def row_costs(self) -> list[float]:
        """The costs by drafted rows of all `auto` slots, in addition to the rows that rules (fixed, PID)
        send anyway.
        """
        ruled = tuple([self._ruled_length(slot) for slot in self._ruled]) if self._ruled else ()
        costs = self._row_costs.get(ruled)
        if costs is None:
            costs = self._row_costs[ruled] = self._price_rows(ruled)
        return costs

    def _price_rows(self, ruled: Sequence[int]) -> list[float]:
        limits = [self.max_draft[slot] for slot in self.auto]
        if not limits:
            return [0.0]
        if not self.is_leveled:
            return self.token_costs.rows(sum(limits), sum(ruled))
        most, num = max(limits), len(limits)
        num_slots = len(self.max_draft)
        has_prompt = self.token_costs.num_base_rows > num_slots  # whose rows would be priced in each pass
        if not ruled or has_prompt:
            return self.token_costs.rows(most * num, sum(ruled))
        costs = self.token_costs.rows(num_slots * max(most, *ruled))
        fixed = {slot: 1 + length for slot, length in zip(self._ruled, ruled, strict=True)}
        prices = price_levels(fixed, self.auto, most, lambda num_rows: costs[max(num_rows - num_slots, 0)])
        return [max(prices[-(-n // num)], prices[0]) for n in range(most * num + 1)]

    def _ruled_length(self, slot: int) -> int:
        """Return how many tokens the slot will send by its rule: as many as are drafted, once no more can be."""
        chains = [by_slot[slot] for by_slot in self.chains.values() if slot in by_slot]
        drafted = next((len(chain.tokens) for chain in chains if chain.tokens), 0)
        is_final = bool(chains) and all([chain.ended for chain in chains])
        if is_final:
            return drafted
        most = self.useful_length(slot)
        return min(most, self.drafters.depth_limit(self.drafters.primary)) if self.drafters.primary else most

    @property
    def is_empty(self) -> bool:
        """True if nothing was proposed for any slot."""
        return not any([chain.tokens for chains in self.chains.values() for chain in chains.values()])

    # ---- what is proposed
    def add(
        self,
        slot: int,
        drafter: str,
        tokens: Sequence[int],
        confidences: Sequence[float],
        siblings: Sequence[Sequence[Sibling]] = (),
        *,
        branch: int = 0,
        is_cut: bool = False,
    ) -> None:
        """Append the drafter's proposals to a chain of the slot's tree.

        siblings  of the tokens
        branch    number of the chain
        is_cut    the call drafted more tokens, so that no branch can leave at the last one
        """
        chain = self._chain(slot, drafter, branch)
        depth = chain.depth + len(chain.tokens)
        if drafter != self.drafters.primary or self.drafters.block_size > 1:  # a call may draft more than is of use
            tokens = tokens[: self.useful_length(slot) - depth]
        is_ruled = self.policies[slot].gate is None  # its length is set by a rule, and needs no gains
        gains: list[float] = []
        if not is_ruled:
            gain = chain.gains[-1] if chain.gains else chain.reach
            for at, confidence in enumerate(confidences[: len(tokens)], start=depth + 1):
                gain *= self.acceptance.probability(slot, drafter, at, confidence)
                if gain < MIN_REACH and drafter in self.drafters.lookups:
                    tokens = tokens[: at - depth - 1]
                    chain.end()  # even if nothing is left of it: no call proposes more
                    break
                gains.append(gain)
        siblings = siblings if self.max_siblings and not is_ruled else ()
        chain.add(tokens, confidences, siblings, may_branch=bool(siblings) and not is_cut)
        chain.gains += gains

    def end(self, slot: int, drafter: str, branch: int = 0) -> None:
        """Record that the drafter has nothing more to propose after this chain of the slot's tree."""
        self._chain(slot, drafter, branch).end()

    def _chain(self, slot: int, drafter: str, branch: int = 0) -> DraftChain:
        chains = self.chains[drafter]
        trunk = chains.get(slot)
        if trunk is None:
            trunk = chains[slot] = DraftChain(drafter)
        return trunk.branches[branch - 1] if branch else trunk

    def keep(self, slot: int, rest: PendingDraft) -> None:
        """Propose the rest of an earlier draft again, at no cost; its acceptance is learned in a table of its own."""
        name, most = self.drafters.kept, self.max_draft[slot]
        self.add(slot, name, rest.tokens[rest.num_right :][:most], rest.confidences[rest.num_right :][:most])
        self.end(slot, name)

    def chain(self, slot: int, drafter: str, number: int = 0) -> DraftChain | None:
        """Return a chain of the slot's tree, or None if the drafter has proposed nothing."""
        trunk = self.chains[drafter].get(slot)
        return trunk if trunk is None else trunk.chains[number]

    def weigh_siblings(self, slot: int, trunk: DraftChain) -> None:
        """Compute the gains of the siblings in the slot's tree that have none yet."""
        probability = self.acceptance.probability
        trunk.weigh_siblings(lambda table, depth, confidence: probability(slot, table, depth, confidence))

    def num_drafted(self, slot: int, drafter: str) -> int:
        """Return how many tokens a drafter proposed for a slot, sent or not."""
        chain = self.chains[drafter].get(slot)
        return len(chain.tokens) if chain else 0

    def pending(self, slot: int) -> list[PendingDraft]:
        """Return all drafts for a slot, sent or not, which the text that follows will judge."""
        by_drafter = (chains.get(slot) for chains in self.chains.values())
        return [chain.pending() for chain in by_drafter if chain and chain.tokens]

    # ---- what is expected
    def room(self, slot: int, drafter: str) -> int:
        """Return how many tokens of the drafter the slot can use."""
        return min(self.max_draft[slot], self.drafters.depth_limit(drafter))

    def useful_length(self, slot: int) -> int:
        """Return how many tokens the slot can use: the length set by a rule (fixed, PID), or for `auto` all that may be
        sent.
        """
        policy, most = self.policies[slot], self.max_draft[slot]
        return min(policy.length, most) if policy.gate is None else most

    def slot_costs(self, length: int) -> list[float]:
        """Return one slot's cost of 0 .. length drafted tokens; where leveled, its share of the cost of all."""
        if not self.is_leveled:
            return self.row_costs[: length + 1]
        num, costs = len(self.auto), self.row_costs
        last = len(costs) - 1
        return [costs[min(n * num, last)] / num for n in range(length + 1)]
