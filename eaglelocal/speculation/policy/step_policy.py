"""Decide one step's drafting: which drafter runs, whether a chain grows another level, how much of it is verified.

A StepPolicy is made for each step by the controller and discarded with it. Fixed and PID lengths are decided per slot;
`auto` decides for all its slots together, because they share the rows of one decode. Pure: reads what was learned,
changes nothing but its own chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels
from eaglelocal.core.draft import Draft
from eaglelocal.core.request import DraftPolicy
from eaglelocal.speculation.acceptance.acceptance_model import AcceptanceModel, Outlook
from eaglelocal.speculation.policy.draft_gate import PROBE_LENGTH
from eaglelocal.speculation.policy.goodput import (
    best_size,
    expected_worth,
    num_paying,
    pays_to_grow,
    pays_to_grow_all,
    shared_out,
    units,
    within,
)
from eaglelocal.speculation.policy.pending_drafts import PendingDraft, Sibling, sibling_table_of
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet, SlotPolicy
from eaglelocal.speculation.policy.token_costs import TokenCosts
from eaglelocal.speculation.tree import MIN_REACH, NO_SECONDS, DraftChain, Siblings, likeliest

LOOKUP_LEVELS = 4  # levels that a lookup is asked for at a time
SURE = 0.99  # confidence above which a model drafts on within the same call
MOST_AHEAD = 3  # levels in doubt that a model drafts at a time; with more, wasted draft steps add up


class StepPolicy:
    """The drafting decisions of one step; for `leveled` and `max_siblings` see Controller.

    Whoever drafts reports proposals (`add`, `end`), asks which slots draft on (`growing`) and what to verify
    (`chosen`).
    """

    def __init__(
        self,
        seats: Sequence[DecodeSlot],
        minds: Mapping[int, SlotPolicy],
        drafters: DrafterSet,
        acceptance: AcceptanceModel,
        prices: TokenCosts,
        *,
        leveled: bool,
        max_siblings: int = 0,
    ) -> None:
        self._room = {seat.slot: min(seat.room, minds[seat.slot].spec.max_draft) for seat in seats}
        self._minds, self._drafters, self._acceptance = minds, drafters, acceptance
        self._auto = [slot for slot in self._room if minds[slot].spec.drafting is DraftPolicy.AUTO]
        self._leveled = leveled and len(seats) > 1
        self._max_siblings = max_siblings
        self._prices = prices
        self._row_prices = prices.rows(self._most_rows()) if self._auto else [0.0]
        self._outlooks: dict[tuple[int, str, int], Outlook] = {}
        self._chains: dict[str, dict[int, DraftChain]] = {name: {} for name in drafters.names}

    def _most_rows(self) -> int:
        rooms = [self._room[slot] for slot in self._auto]
        return max(rooms) * len(rooms) if self._leveled else sum(rooms)

    # ---- growing
    def growing(self, drafter: str) -> list[int]:
        """Return the slots for which this drafter should propose another level."""
        chains = self._chains[drafter]
        if len(self._room) == 1:
            return self._growing_alone(drafter, *self._room)
        able = [s for s in self._room if self._has_room(s, chains.get(s)) and self._takes_part(s, drafter)]
        if not able:
            return able
        told = [s for s in able if self._is_told(s, drafter)]
        undecided = [s for s in able if s not in told and self._minds[s].watch is not None]
        if undecided and self._pays(drafter, undecided, self._gains(drafter)):
            return [s for s in able if s in told or s in undecided]
        return told

    def _growing_alone(self, drafter: str, slot: int) -> list[int]:
        """Return `growing` where one slot decodes, the common case."""
        if not (self._has_room(slot, self._chains[drafter].get(slot)) and self._takes_part(slot, drafter)):
            return []
        grows = self._is_told(slot, drafter) or (self._auto and self._pays(drafter, (slot,), self._gains(drafter)))
        return [slot] if grows else []

    def levels(self, drafter: str, slots: Sequence[int]) -> tuple[int, ExtraLevels]:
        """Return how many levels to draft for these slots in one call, and how many more while each token is sure."""
        if drafter == self._drafters.primary and self._drafters.block_size > 1:
            return min(self._drafters.block_size, max([self._length(slot) for slot in slots])), NO_EXTRA_LEVELS
        told = min([self._sure_length(slot) - self.num_drafted(slot, drafter) for slot in slots])
        if told > 0 or any(self._minds[slot].watch is None for slot in slots):
            return max(told, 1), NO_EXTRA_LEVELS
        most = min([self._room[slot] - self.num_drafted(slot, drafter) for slot in slots])
        if drafter != self._drafters.primary:
            return min(LOOKUP_LEVELS, most), NO_EXTRA_LEVELS
        if len(self._auto) > 1:
            return self._levels_in_doubt(drafter, slots, most), NO_EXTRA_LEVELS
        return self._levels_alone(drafter, slots[0], most)

    def _levels_alone(self, drafter: str, slot: int, most: int) -> tuple[int, ExtraLevels]:
        """Return `levels` of the only `auto` slot; sure tokens count as at the depth ahead that accepts them least."""
        gains, outlook = self._gains(drafter)[slot], self._outlook(slot, drafter)
        chain_so_far = (gains, self._row_prices, outlook.mean, self._prices.draft_step(drafter, 1))
        depth = num_paying(*chain_so_far, chance=outlook.doubtful, most=min(most, MOST_AHEAD))
        ends = len(gains) + 1, len(gains) + most
        sure = min([self._acceptance.probability(slot, drafter, at, SURE) for at in ends])
        num_sure = num_paying(*chain_so_far, chance=sure, most=most)
        return depth, ExtraLevels(num_sure - depth, SURE) if num_sure > depth else NO_EXTRA_LEVELS

    def _levels_in_doubt(self, drafter: str, slots: Sequence[int], most: int) -> int:
        """Return how many levels pay even if each token is worse than most: another call costs more than a level."""
        gains, most = self._gains(drafter), min(most, MOST_AHEAD)
        for levels in range(1, most):
            for slot in slots:
                reach = gains[slot][-1] if gains[slot] else 1.0
                gains[slot].append(reach * self._outlook(slot, drafter, len(slots)).doubtful)
            if not self._pays(drafter, slots, gains):
                return levels
        return most

    def _gains(self, drafter: str) -> dict[int, list[float]]:
        chains = self._chains[drafter]
        return {slot: list(chains[slot].gains) if slot in chains else [] for slot in self._auto}

    def _sure_length(self, slot: int) -> int:
        mind = self._minds[slot]
        if mind.watch is None:
            return min(mind.length, self._room[slot])
        return min(PROBE_LENGTH, self._room[slot]) if mind.is_probing else 0

    def _length(self, slot: int) -> int:
        """Return how many tokens can be of use: those of a rule (fixed, PID), or for `auto` all that may be sent."""
        mind, room = self._minds[slot], self._room[slot]
        return min(mind.length, room) if mind.watch is None else room

    def _has_room(self, slot: int, chain: DraftChain | None) -> bool:
        if chain is None:
            return self._room[slot] > 0
        return (
            not chain.ended
            and len(chain.tokens) < self._room[slot]
            and (not chain.gains or chain.gains[-1] >= MIN_REACH)
        )

    def _takes_part(self, slot: int, drafter: str) -> bool:
        watch = self._minds[slot].watch
        if drafter != self._drafters.primary:
            return watch is not None
        return watch is None or watch.is_probing or (watch.is_awake and not self._is_settled_by_lookup(slot))

    def _is_told(self, slot: int, drafter: str) -> bool:
        """Return whether the chain grows whatever it costs: by a rule, for a probe, or for a first lookup."""
        mind, chain = self._minds[slot], self._chains[drafter].get(slot)
        length = len(chain.tokens) if chain else 0
        if mind.watch is None:
            return length < mind.length
        if drafter == self._drafters.primary:
            return mind.is_probing and length < PROBE_LENGTH
        return length == 0  # a first lookup costs nothing

    def _pays(self, drafter: str, slots: Sequence[int], gains: Mapping[int, Sequence[float]]) -> bool:
        """Return whether another level of these slots pays, after chains with these gains."""
        outlook, step_price = self._outlook, self._prices.draft_step(drafter, len(slots))
        if len(self._auto) == 1:
            at = (gains[slots[0]], self._row_prices, outlook(slots[0], drafter), step_price)
            return pays_to_grow(*at, block_size=self._at_once(drafter))
        return pays_to_grow_all(
            list(gains.values()),
            self._row_prices,
            [outlook(s, drafter, len(slots)) if s in slots else None for s in self._auto],
            step_price,
            self._leveled,
            block_size=self._at_once(drafter),
        )

    def _at_once(self, drafter: str) -> int:
        return self._drafters.block_size if drafter == self._drafters.primary else 1

    def _outlook(self, slot: int, drafter: str, num_chains: int = 1) -> Outlook:
        """Return the outlook, computed once: nothing is learned within a step."""
        key = (slot, drafter, num_chains)
        outlook = self._outlooks.get(key)
        if outlook is None:
            outlook = self._outlooks[key] = self._acceptance.outlook(*key)
        return outlook

    def add(
        self,
        slot: int,
        drafter: str,
        tokens: Sequence[int],
        confidences: Sequence[float],
        siblings: Sequence[Sibling] = (),
    ) -> None:
        """Append the drafter's proposals to its chain for the slot; `siblings` are the siblings of the tokens."""
        chain = self._chain(slot, drafter)
        depth = len(chain.tokens)
        if self._drafters.block_size > 1:  # a block may be longer than what is of use
            tokens = tokens[: self._length(slot) - depth]
        chain.tokens += tokens
        chain.confidences += confidences[: len(tokens)]
        if self._minds[slot].watch is None:
            return  # its length is set by a rule, and needs no gains
        if self._max_siblings:
            chain.siblings += siblings[: len(tokens)]
        gain, probability = chain.gains[-1] if chain.gains else 1.0, self._acceptance.probability
        for confidence in confidences[: len(tokens)]:
            depth += 1
            gain *= probability(slot, drafter, depth, confidence)
            chain.gains.append(gain)

    def end(self, slot: int, drafter: str) -> None:
        """Note that the drafter has nothing more to propose for the slot."""
        self._chain(slot, drafter).ended = True

    def _chain(self, slot: int, drafter: str) -> DraftChain:
        chains = self._chains[drafter]
        chain = chains.get(slot)
        if chain is None:
            chain = chains[slot] = DraftChain(drafter)
        return chain

    # ---- the worth of a chain to its slot
    def _slot_prices(self, length: int) -> list[float]:
        """Return one slot's price of 0 .. length drafted tokens; where leveled, its share of the price of all."""
        if not self._leveled:
            return self._row_prices[: length + 1]
        num = len(self._auto)
        last = len(self._row_prices) - 1
        return [self._row_prices[min(n * num, last)] / num for n in range(length + 1)]

    def _worth(self, chain: DraftChain) -> float:
        """Return the worth of the chain, in tokens, relative to no draft at all."""
        prices = self._slot_prices(len(chain.gains))
        return best_size(chain.gains, prices)[1] + prices[0]

    def _is_settled_by_lookup(self, slot: int) -> bool:
        """Return whether a lookup promises at least as much as the primary drafter is expected to."""
        best = max(
            (self._worth(c) for name in self._drafters.lookups if (c := self._chains[name].get(slot))), default=0
        )
        if best <= 0.0:
            return False
        primary = self._drafters.primary or ""
        step_price = self._prices.draft_step(primary, len(self._auto)) / len(self._auto)
        prices = self._slot_prices(self._room[slot])
        hope = self._outlook(slot, primary).mean
        return best >= expected_worth(hope, prices, step_price, block_size=self._drafters.block_size)

    def promised(self, slot: int) -> float:
        """Return the speed relative to plain decoding if the primary drafter's chain for the slot were sent."""
        chain = self._chains[self._drafters.primary].get(slot) if self._drafters.primary else None
        if chain is None:
            return 1.0
        prices, num = self._slot_prices(len(chain.gains)), len(self._auto)
        size, _ = best_size(chain.gains, prices)
        num_steps = self._drafters.num_steps(chain.drafter, len(chain.gains))
        drafting = (num_steps * self._prices.draft_step(chain.drafter, num) + self._prices.drafted) / num
        # price of a plain step for one slot: one token, where nothing is gained by drafting
        a_token = prices[0] if self._leveled else prices[0] / len(self._room)
        price = (prices[size] - prices[0] + drafting) / max(a_token, 1e-9)
        return (1.0 + sum(chain.gains[:size])) / (1.0 + price)

    # ---- choosing
    def chosen(self) -> dict[int, Draft]:
        """Return the draft to verify for each slot."""
        best = {slot: self._best_chain(slot) for slot in self._room}
        gains = [best[slot].gains for slot in self._auto]
        if self._max_siblings and self._may_pay([best[slot] for slot in self._auto], gains):
            return self._trees(best)
        sizes = self._sizes(gains)
        return {slot: chain.draft(sizes.get(slot, len(chain.tokens))) for slot, chain in best.items()}

    def _may_pay(self, chains: Sequence[DraftChain], gains: Sequence[Sequence[float]]) -> bool:
        """Return whether siblings would pay if all were right. If not, their probabilities are not computed."""
        hopes = sorted((missed for chain in chains for missed, _ in chain.misses()), reverse=True)
        if not hopes:
            return False
        firsts, prices = units(gains, self._row_prices, False)
        nodes = sorted([*firsts, *hopes], reverse=True)[: len(prices) - 1]
        return best_size(nodes, prices)[1] > best_size(firsts, prices)[1]

    def _trees(self, best: Mapping[int, DraftChain]) -> dict[int, Draft]:
        """Return `chosen` where drafts may have siblings: rows go to chains and siblings alike, by gain."""
        siblings = {slot: self._siblings(slot, best[slot]) for slot in self._auto}
        gains: list[Sequence[float]] = []
        for slot in self._auto:
            gains += within(self._room[slot], (best[slot].gains, siblings[slot].gains))
        size, _ = best_size(*units(gains, self._row_prices, False))
        shares = iter(shared_out(size, gains))
        drafts = {slot: chain.draft(len(chain.tokens)) for slot, chain in best.items() if slot not in siblings}
        for slot in self._auto:
            length, num_siblings = next(shares), next(shares)
            drafts[slot] = best[slot].draft(length, siblings[slot].depths[:num_siblings])
        return drafts

    def _siblings(self, slot: int, chain: DraftChain) -> Siblings:
        if not chain.siblings:
            return NO_SECONDS
        acceptance, name = self._acceptance, sibling_table_of(chain.drafter)
        return likeliest(
            chain, lambda depth, confidence: acceptance.probability(slot, name, depth, confidence), self._max_siblings
        )

    def _best_chain(self, slot: int) -> DraftChain:
        """Return the best of the slot's chains that may be sent: a probe's is not."""
        names = self._drafters.lookups if self._minds[slot].is_probing else self._drafters.names
        chains = [self._chains[name][slot] for name in names if slot in self._chains[name]]
        if len(chains) > 1:
            return max(chains, key=self._worth)
        return chains[0] if chains else DraftChain("")

    def _sizes(self, gains: Sequence[Sequence[float]]) -> dict[int, int]:
        """Return how many tokens of each `auto` chain are sent, by slot."""
        if len(gains) == 1:
            return {self._auto[0]: best_size(gains[0], self._row_prices)[0]}
        size, _ = best_size(*units(gains, self._row_prices, self._leveled))
        if self._leveled:
            return {slot: min(size, len(chain)) for slot, chain in zip(self._auto, gains, strict=True)}
        return dict(zip(self._auto, shared_out(size, gains), strict=True))

    def guesses(self, slot: int) -> list[PendingDraft]:
        """Return everything that was drafted for a slot, sent or not."""
        by_drafter = (chains.get(slot) for chains in self._chains.values())
        return [
            PendingDraft(chain.drafter, chain.tokens, chain.confidences, chain.siblings)
            for chain in by_drafter
            if chain
        ]

    def num_drafted(self, slot: int, drafter: str) -> int:
        """Return how many tokens a drafter proposed for a slot, sent or not."""
        chain = self._chains[drafter].get(slot)
        return len(chain.tokens) if chain else 0
