"""The chosen tree against every other one: chains of all lengths with all sets of second choices beside them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from doubles.hindsight import Hindsight
from doubles.simulated_machine import BF16, Q4_0, SimulatedMachine
from doubles.simulation import DraftCosts, Profile, Simulation, curve, plain_text, rate, speed
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.core.request import AUTO_SPEC, fixed_spec
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet, SlotGate, SlotPolicy
from eaglelocal.speculation.policy.step_drafts import StepDrafts
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.tree import MIN_REACH

pytestmark = pytest.mark.full

HEAD = "head"
probabilities = st.floats(0.0, 1.0)
steps = st.one_of(st.floats(-0.5, 2.0), st.sampled_from([0.0, 0.0, 0.02, 1.0]))  # of a cost curve: it may fall


class KnownAcceptance:
    """An acceptance model in which a confidence is the probability itself."""

    def probability(self, slot: int, drafter: str, depth: int, confidence: float) -> float:
        return confidence


@dataclass
class TableCosts:
    """Step costs in tokens, by a table."""

    by_rows: Sequence[float]

    def rows(self, num_rows: int, num_ruled: int = 0) -> list[float]:
        return list(self.by_rows[: num_rows + 1])


@dataclass(frozen=True)
class Comb:
    """What is drafted for a slot: how likely each token is, and its second choice where the token is wrong."""

    firsts: list[float]
    siblings: list[float]

    @property
    def gains(self) -> list[float]:
        return list(itertools.accumulate(self.firsts, lambda a, b: a * b))

    def second_gain(self, depth: int) -> float | None:
        """Depth counts from 1; None: it is hardly ever asked for."""
        second = self.siblings[depth - 1]
        missed = (1.0, *self.gains)[depth - 1] - self.gains[depth - 1]
        return None if missed <= MIN_REACH else missed * second


def choice_of(
    combs: Sequence[Comb],
    prices: Sequence[float],
    *,
    max_siblings: int,
    room: int,
) -> StepPolicy:
    policies = {slot: SlotPolicy(AUTO_SPEC, SlotGate()) for slot in range(len(combs))}
    slots = [DecodeSlot(slot, room) for slot in policies]
    drafts = StepDrafts(
        slots,
        policies,
        DrafterSet(HEAD),
        KnownAcceptance(),  # type: ignore[arg-type]
        TableCosts(prices),  # type: ignore[arg-type]
        leveled=False,
        max_siblings=max_siblings,
    )
    choice = StepPolicy(drafts, lambda: pytest.fail("nothing is drafted on"))
    for slot, comb in enumerate(combs):
        for depth, (first, second) in enumerate(zip(comb.firsts, comb.siblings, strict=True), start=1):
            choice.drafts.add(slot, HEAD, [depth], [first], [[(100 + depth, second)]])
    return choice


def gain_of(comb: Comb, draft: Draft) -> float:
    """Of the nodes that were chosen, which must be those that were drafted, hanging together."""
    total = 0.0
    for token, parent, depth in zip(draft.tokens, draft.parents, draft.depths, strict=True):
        assert depth == token % 100
        assert parent == ROOT or draft.tokens[parent] == depth - 1
        gain = comb.second_gain(depth) if token > 100 else comb.gains[depth - 1]
        assert gain is not None
        total += gain
    return total


def every_draft(comb: Comb, *, max_siblings: int, room: int) -> dict[int, float]:
    """The largest gain of a draft, by its number of nodes."""
    best: dict[int, float] = {}
    for length in range(len(comb.firsts) + 1):
        depths = [d for d in range(1, min(length + 1, len(comb.firsts)) + 1) if comb.second_gain(d) is not None]
        for count in range(min(max_siblings, len(depths), room - length) + 1):
            for chosen in itertools.combinations(depths, count):
                gain = sum(comb.gains[:length]) + sum(comb.second_gain(d) or 0.0 for d in chosen)
                best[length + count] = max(best.get(length + count, -math.inf), gain)
    return best


combs = st.lists(st.tuples(probabilities, probabilities), max_size=4).map(
    lambda nodes: Comb([first for first, _ in nodes], [second for _, second in nodes])
)


@given(
    st.lists(combs, min_size=1, max_size=2),
    st.lists(steps, min_size=12, max_size=12),
    st.integers(0, 3),
    st.integers(4, 6),
)
def test_no_tree_is_worth_more(combs: list[Comb], rises: list[float], max_siblings: int, room: int) -> None:
    prices = [1.0 + rise for rise in itertools.accumulate(rises, initial=0.0)]
    drafts = choice_of(combs, prices, max_siblings=max_siblings, room=room).select_drafts()
    size = sum(map(len, drafts.values()))
    worth = sum(gain_of(comb, drafts[slot]) for slot, comb in enumerate(combs)) - prices[size]
    possible = [every_draft(comb, max_siblings=max_siblings, room=room) for comb in combs]
    best = max(
        sum(by_size[n] for by_size, n in zip(possible, sizes, strict=True)) - prices[sum(sizes)]
        for sizes in itertools.product(*possible)
    )
    assert worth == pytest.approx(best, abs=1e-9)
    assert all(len(draft) <= room and len(draft.leaves) <= 1 + max_siblings for draft in drafts.values())


def test_steady_costs_are_filled_with_second_choices() -> None:
    """Four rows cost what one costs, a fifth is a cliff: a comb fills the four where the chain has only two tokens."""
    comb = Comb([0.6, 0.5], [0.5, 0.5])
    cliff = [1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0]
    (draft,) = choice_of([comb], cliff, max_siblings=4, room=6).select_drafts().values()
    assert (draft.tokens, draft.parents) == ((1, 2, 101, 102), (ROOT, 0, ROOT, 0))
    (chain,) = choice_of([comb], cliff, max_siblings=0, room=6).select_drafts().values()
    assert chain.is_chain and chain.tokens == (1, 2)


def test_a_second_choice_may_be_worth_more_than_the_chains_next_token() -> None:
    comb = Comb([0.4, 0.1, 0.5], [0.9, 0.1, 0.1])
    (draft,) = choice_of([comb], [1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0], max_siblings=4, room=6).select_drafts().values()
    assert (draft.tokens, draft.parents) == ((1, 101), (ROOT, ROOT))


def test_of_many_second_choices_the_likeliest_are_sent() -> None:
    comb = Comb([0.9, 0.5, 0.9, 0.5], [0.5, 0.5, 0.5, 0.5])
    (draft,) = choice_of([comb], [1.0] * 17, max_siblings=2, room=16).select_drafts().values()
    assert draft.tokens == (1, 2, 3, 4, 102, 104)


# ---- what it brings
def gain(ratios: Sequence[float], profile: Profile, *, num_slots: int = 1, num_tokens: int = 2400) -> float:
    """Speed of trees relative to chains, on the same machines, after a learning phase: one run is 3 % of luck."""
    logs = [math.log(after_learning(ratios, profile, num_slots, num_tokens, 4, seed)) for seed in SEEDS]
    logs += [-math.log(after_learning(ratios, profile, num_slots, num_tokens, 0, seed)) for seed in SEEDS]
    return math.exp(sum(logs) / len(SEEDS))


def after_learning(
    ratios: Sequence[float], profile: Profile, num_slots: int, num_tokens: int, max_siblings: int, seed: int
) -> float:
    machine = SimulatedMachine(seed=seed, ratios=curve(ratios), hiccups=0.02)
    texts = dict.fromkeys(range(num_slots), plain_text(profile))
    run = Simulation(machine, texts, answer_tokens=600, max_siblings=max_siblings, seed=seed)
    run.run(600)
    return speed(run.run(num_tokens * num_slots))


SEEDS = (1, 2, 3)
FLAT_TO_8 = (*(1.0 + 0.01 * n for n in range(8)), *(1.5,) * 9)
GOOD, FAIR = Profile((0.7,), second=0.5), Profile((0.5,), second=0.4)


def test_where_rows_are_free_second_choices_pay() -> None:
    assert gain(FLAT_TO_8, GOOD) > 1.03
    assert gain(FLAT_TO_8, FAIR) > 1.06
    assert gain(FLAT_TO_8, FAIR, num_slots=2, num_tokens=1200) > 1.03


def test_where_rows_are_dear_they_cost_nothing() -> None:
    assert gain(Q4_0, GOOD) > 0.97
    assert gain(BF16, Profile((0.7,), second=0.01)) > 0.98


def test_trees_beat_the_best_chains_in_hindsight_where_rows_are_free() -> None:
    machine = SimulatedMachine(seed=2, ratios=curve(FLAT_TO_8), hiccups=0.0)
    run = Simulation(machine, {0: plain_text(FAIR)}, answer_tokens=600, max_siblings=4, seed=2)
    run.run(600)
    assert rate(run.run(3000)) > 1.02 * Hindsight(machine, DraftCosts()).best(plain_text(FAIR))


def test_fixed_lengths_are_chains() -> None:
    machine = SimulatedMachine(seed=1, ratios=curve(FLAT_TO_8))
    run = Simulation(machine, {0: plain_text(FAIR)}, spec=fixed_spec(3), max_siblings=4)
    assert {step.drafted[0] for step in run.run(300)} == {3}
