"""Trees that branch anywhere: what is chosen of them always hangs together, and nothing likelier is left out."""

from __future__ import annotations

import math
import random

import pytest
from doubles.simulated_machine import BF16, CLIFF, GPU, Q4_0, Q8_0, SimulatedMachine
from doubles.simulation import PRIMARY, DraftCosts, Profile, Simulation, curve, plain_text, speed
from doubles.tiers import some_of
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.speculation.policy.goodput import choose_width
from eaglelocal.speculation.policy.pending_drafts import PendingDrafts
from eaglelocal.speculation.policy.slot_policy import DrafterSet
from eaglelocal.speculation.tree import MIN_REACH, DraftChain, list_nodes, make_draft

pytestmark = pytest.mark.full

MOST = 8  # tokens deep
chances = st.floats(0.0, 1.0)


def probability(table: str, depth: int, confidence: float) -> float:
    return confidence


class GrownTree:
    """A tree that was grown at random; each token is new, and knows the tokens before it."""

    def __init__(self, seed: int, num_calls: int, max_branches: int) -> None:
        self.chance, self.trunk = random.Random(seed), DraftChain("head")
        self.paths: dict[int, tuple[int, ...]] = {}  # tokens up to each token
        self._extend(self.trunk, ())
        for _ in range(num_calls):
            self.trunk.weigh_siblings(probability)
            tips = self.trunk.list_tips(MOST, max_branches=max_branches)
            for tip in tips[: self.chance.randint(1, 3)]:
                if tip.place is None or len(self.trunk.branches) < max_branches:
                    chain = self.trunk.chains[tip.chain]
                    branch = chain if tip.place is None else self.trunk.open_branch(tip.place)
                    assert branch.gains[-1] == tip.gain >= MIN_REACH
                    self._extend(branch, self.paths[branch.tokens[-1]])
        self.trunk.weigh_siblings(probability)

    def _extend(self, chain: DraftChain, before: tuple[int, ...]) -> None:
        tokens = [100 * len(self.paths) + rank for rank in range(3)]
        for token in tokens:
            self.paths[token] = (*before, token)
        confidence = self.chance.random()
        siblings = [[(token, self.chance.random()) for token in tokens[1:]]]
        chain.add(tokens[:1], [confidence], siblings)
        chain.gains.append((chain.gains[-1] if chain.gains else chain.reach) * confidence)


@given(st.integers(0, 10**6), st.integers(0, 12), st.integers(0, 8), st.integers(1, 16))
def test_the_likeliest_nodes_hang_together(seed: int, num_calls: int, max_branches: int, room: int) -> None:
    grown = GrownTree(seed, num_calls, max_branches)
    nodes = list_nodes(grown.trunk, max_branches=max_branches, room=room)
    assert len(nodes) <= room and [n.gain for n in nodes] == sorted([n.gain for n in nodes], reverse=True)
    for size in range(len(nodes) + 1):
        draft = make_draft(grown.trunk, nodes[:size])
        assert len(draft) == size and len(draft.leaves) <= 1 + max_branches
        for node, token in enumerate(draft.tokens):
            assert tuple(draft.tokens[each] for each in draft.path_to(node)) == grown.paths[token]


@given(st.integers(0, 10**6), st.integers(0, 12), st.integers(1, 16))
def test_nothing_likelier_is_left_out(seed: int, num_calls: int, room: int) -> None:
    """With sequences for all, the sum of gains is that of the best nodes, whatever tree they make."""
    grown = GrownTree(seed, num_calls, 6)
    nodes = list_nodes(grown.trunk, max_branches=1000, room=room)
    places = grown.trunk.places
    gains = [gain for chain in grown.trunk.chains for gain in chain.gains]
    gains += [
        gain
        for chain in grown.trunk.chains
        for at, ranked in enumerate(chain.sibling_gains)
        for rank, gain in enumerate(ranked)
        if (chain.number, at, rank) not in places
    ]
    assert sum(n.gain for n in nodes) == pytest.approx(sum(sorted(gains, reverse=True)[:room]))


@given(st.integers(0, 10**6), st.integers(0, 12), st.data())
def test_a_text_through_the_tree_is_judged_at_each_node_of_its_path(seed: int, calls: int, data: st.DataObject) -> None:
    """In one piece or in several: every token on the path is found, in the table of its rank and at its depth."""
    grown = GrownTree(seed, calls, 6)
    *path, last = grown.paths[data.draw(st.sampled_from(sorted(grown.paths)))]
    text = [*path, last, -5]
    pending, judged = PendingDrafts(), []
    cuts = sorted(data.draw(st.lists(st.integers(1, len(text)), max_size=2)))
    new = [grown.trunk.pending()]
    for first, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        judged += pending.judge(0, new, text[first:end])
        new = []
    hits = [seen for seen in judged if seen.accepted]
    assert [seen.depth for seen in hits] == list(range(1, len(path) + 2))
    ranks = ["head" if token % 100 == 0 else f"head/{token % 100 + 1}" for token in (*path, last)]
    assert [seen.drafter for seen in hits] == ranks


def test_a_wide_call_is_made_where_rows_and_draft_steps_are_cheap() -> None:
    tips, costs = [0.6, 0.2, 0.1, 0.05], [1.0 + 0.01 * n for n in range(17)]
    cheap, dear = {1: 0.05, 2: 0.055, 4: 0.06}, {1: 0.05, 2: 0.3, 4: 0.6}
    assert choose_width(tips, tips, costs, [0.6, 0.2], cheap) == 4
    assert choose_width(tips, tips, costs, [0.6, 0.2], dear) == 1
    assert choose_width(tips, tips, costs, [0.02], dear) == 0
    assert choose_width(tips, tips, costs[:1], [0.6], cheap) == 0  # no row can be sent


FREE_TO_16 = (*(1.0 + 0.01 * n for n in range(16)), *(1.15 * n / 16 for n in range(17, 66)))
CARD = DraftCosts(step_s=0.0035, row_s=0.0003, plain_overhead_s=0.0005)
PROCESSOR = DraftCosts(step_s=0.003, row_s=0.002)
SEEDS = (1, 2)


def gain(ratios: tuple[float, ...], acceptance: float, costs: DraftCosts, **drafters: int) -> float:
    """Speed of trees relative to chains, over the same texts."""
    profile, found = Profile((acceptance,), second=0.45, third=0.3), 0.0
    for seed in SEEDS:
        for max_siblings, sign in ((8, 1), (0, -1)):
            run = Simulation(
                SimulatedMachine(seed=seed, ratios=curve(ratios), hiccups=0.02),
                {0: plain_text(profile)},
                costs=costs,
                drafters=DrafterSet(PRIMARY, **drafters),
                answer_tokens=600,
                max_siblings=max_siblings,
                seed=seed,
                paired=True,
            )
            run.run(600)
            found += sign * math.log(speed(run.run(2000)))
    return math.exp(found / len(SEEDS))


def test_where_rows_are_free_a_head_of_the_world_gains_by_branching() -> None:
    assert gain(FREE_TO_16, 0.65, CARD, num_branches=8) > 1.18  # 1.27 over more texts
    assert gain(FREE_TO_16, 0.65, CARD, num_branches=8) > 1.05 * gain(FREE_TO_16, 0.65, CARD)


@pytest.mark.parametrize("ratios", some_of([(BF16,), (Q8_0,), (Q4_0,), (CLIFF,), (GPU,)], 2, rest=pytest.mark.slow))
@pytest.mark.parametrize("acceptance", [0.5, 0.95])
def test_elsewhere_trees_cost_next_to_nothing(ratios: tuple[float, ...], acceptance: float) -> None:
    assert gain(ratios, acceptance, CARD if ratios is GPU else PROCESSOR, num_branches=8) > 0.97


def test_a_draft_of_one_chain_is_a_chain() -> None:
    grown = GrownTree(1, 0, 0)
    (first,) = list_nodes(grown.trunk, max_branches=0, room=16)
    assert make_draft(grown.trunk, [first]) == Draft((0,), (ROOT,), (grown.trunk.confidences[0],), "head")
