"""Decide after which nodes of the trees of `auto` slots a step drafts next: the next level of the tree, or none.

A call of the drafter takes several nodes, in one slot's tree or in several. Each costs a row of the call and, if its
children are sent, rows of the target's decode; so where rows cost next to nothing trees grow wide, and elsewhere they
stay chains. Pure: reads what was learned, and opens branches in the step's own trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from eaglelocal.speculation.policy.draft_selection import DraftSelection
from eaglelocal.speculation.policy.goodput import ChainValue, choose_width, find_best_size, leaves_pay
from eaglelocal.speculation.policy.pending_drafts import sibling_table
from eaglelocal.speculation.policy.step_drafts import StepDrafts
from eaglelocal.speculation.tree import Place

WIDTHS = (1, 2, 3, 4, 6, 8)  # nodes after which one call drafts, at most


class SlotTip(NamedTuple):
    """A leaf of a slot's tree, see speculation/tree.py."""

    slot: int
    gain: float = 1.0
    chain: int = 0
    place: Place | None = None


class TreeGrowth:
    """The growth of one step's trees, by one drafter that proposes siblings."""

    def __init__(
        self, drafts: StepDrafts, selection: DraftSelection, find_values: Callable[[], Mapping[int, ChainValue]]
    ) -> None:
        self._drafts, self._selection, self._find_values = drafts, selection, find_values
        self._drafter = drafts.drafters.primary or ""

    def may_pay(self) -> bool:
        """Return whether siblings may make the trees worth more; False if there are no trees."""
        trunks = [self._drafts.chains[self._drafter].get(slot) for slot in self._drafts.auto]
        drafted = [trunk for trunk in trunks if trunk is not None and trunk.tokens]
        if not drafted:
            return False
        return any([trunk.branches for trunk in drafted]) or self._selection.siblings_may_pay(drafted)

    def is_hoped_for(self, slot: int) -> bool:
        """Return whether siblings are likely to pay in this step, judged before anything is drafted."""
        step = self._drafts
        mean, gains, odds, reach = self._find_values()[slot].outlook.mean, [], [], 1.0
        second = step.acceptance.mean(sibling_table(self._drafter, 2))
        for _ in range(step.max_draft[slot]):
            odds.append(reach * (1.0 - mean) * second)
            reach *= mean
            gains.append(reach)
        return leaves_pay([gains], odds, step.row_costs)

    def select(self, slots: Sequence[int]) -> list[SlotTip]:
        """Return the leaves after which drafting is expected to pay, the likeliest first. Opens their branches."""
        step = self._drafts
        tips = self._list_tips(slots)
        if not tips:
            return []
        trees = [(slot, step.chains[self._drafter].get(slot)) for slot in step.auto]
        nodes = sorted(
            (node.gain for slot, trunk in trees if trunk for node in self._selection.list_nodes(slot, trunk)),
            reverse=True,
        )
        gains = [tip.gain for tip in tips]
        step_costs = {width: step.token_costs.wide_draft_step(self._drafter, width) for width in widths(len(tips))}
        width = choose_width(nodes, gains, step.row_costs, self._chances(tips[0].slot), step_costs)
        if not width and self._leads_on(nodes, tips[0], step_costs[1]):
            width = 1
        return [self._open(tip) for tip in tips[:width]]

    def _list_tips(self, slots: Sequence[int]) -> list[SlotTip]:
        step, trees = self._drafts, self._drafts.chains[self._drafter]
        for slot in slots:
            step.weigh_siblings(slot, trees[slot])
        most = min(step.max_siblings, step.drafters.num_branches)
        tips = [
            SlotTip(slot, *tip)
            for slot in slots
            for tip in trees[slot].list_tips(step.max_draft[slot], max_branches=most)
        ]
        return sorted(tips, key=lambda tip: -tip.gain)

    def _chances(self, slot: int) -> list[float]:
        """Return how likely the children of an accepted token are accepted: the first choice, and the second."""
        step = self._drafts
        first = self._find_values()[slot].outlook.mean
        return [first, (1.0 - first) * step.acceptance.mean(sibling_table(self._drafter, 2))]

    def _leads_on(self, nodes: Sequence[float], tip: SlotTip, step_cost: float) -> bool:
        """Return whether several more levels pay together although the next one alone does not: costs rise in jumps.

        They would take the rows after those of the nodes that are worth theirs.
        """
        step = self._drafts
        size, _ = find_best_size(nodes[: len(step.row_costs) - 1], step.row_costs)
        values = self._find_values()
        return values[tip.slot].at(size // len(values), tip.gain) > step_cost

    def _open(self, tip: SlotTip) -> SlotTip:
        if tip.place is None:
            return tip
        branch = self._drafts.chains[self._drafter][tip.slot].open_branch(tip.place)
        return tip._replace(chain=branch.number, place=None)


def widths(num_tips: int) -> list[int]:
    """Return the numbers of leaves that a call may draft after."""
    return [width for width in WIDTHS if width < num_tips] + [min(num_tips, WIDTHS[-1])]
