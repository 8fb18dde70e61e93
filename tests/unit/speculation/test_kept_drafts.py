"""What was drafted and not sent is proposed again, as long as the text follows it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from doubles.simulated_machine import BF16, Q4_0, SimulatedMachine
from doubles.simulation import PRIMARY, DraftCosts, Profile, Simulation, curve, plain_text, speed

from eaglelocal.core.draft import Draft
from eaglelocal.core.request import AUTO_SPEC
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.pending_drafts import PendingDraft, PendingDrafts
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet

BLOCK = [5, 6, 7, 8]


def after(text: Sequence[int], *, drafter: str = "head") -> PendingDraft | None:
    pending = PendingDrafts()
    pending.judge(0, [PendingDraft(drafter, BLOCK, [0.9] * 4)], text)
    return pending.find_rest(0, "head")


@pytest.mark.parametrize(("text", "rest"), [([5], [6, 7, 8]), ([5, 6, 7], [8])])
def test_what_the_text_has_not_reached_is_left(text: list[int], rest: list[int]) -> None:
    left = after(text)
    assert left is not None and left.tokens[left.num_right :] == rest


@pytest.mark.parametrize("text", [[9], [5, 9], [5, 6, 7, 8], [5, 6, 7, 8, 1]])
def test_nothing_is_left_of_what_was_refuted_or_is_at_its_end(text: list[int]) -> None:
    assert after(text) is None


def test_another_drafters_chain_is_not_kept() -> None:
    assert after([5], drafter="ngram") is None


class NoRests(Controller):
    def _keep_rests(self, drafts: object) -> None:
        pass


def simulate(ratios: Sequence[float], rate: float, seed: int, *, keeps: bool, block_size: int = 8) -> Simulation:
    simulation = Simulation(
        SimulatedMachine(seed=seed, ratios=curve(ratios), hiccups=0.02),
        {0: plain_text(Profile((rate,)))},
        costs=DraftCosts(step_s=0.003, row_s=0.002),
        drafters=DrafterSet(PRIMARY, block_size=block_size),
        answer_tokens=600,
        seed=seed,
    )
    if not keeps:
        simulation.controller.__class__ = NoRests
    simulation.run(600)
    return simulation


def gain(ratios: Sequence[float], rate: float) -> float:
    logs = [
        sign * math.log(speed(simulate(ratios, rate, seed, keeps=keeps).run(2500)))
        for seed in (1, 2, 3)
        for keeps, sign in ((True, 1), (False, -1))
    ]
    return math.exp(sum(logs) / 3)


def test_a_block_in_parts_pays_where_rows_rise_in_jumps() -> None:
    assert gain(Q4_0, 0.9) > 1.01  # 1.04 over more texts


def test_elsewhere_it_costs_nothing() -> None:
    assert gain(BF16, 0.8) > 0.985


def test_a_rest_is_sent_without_another_draft_step() -> None:
    """Three rows are cheap and a fourth is not: of a block of eight sure tokens some are sent later, at no cost."""
    cliff = [1.0, 1.02, 1.04, 1.06, *(3.0 + n for n in range(20))]
    simulation = simulate(cliff, 0.999, 1, keeps=True)
    sent: list[Draft] = []
    learn = simulation.controller.learn
    calls = []

    def watch(report: object) -> object:
        sent.extend(draft for draft, _ in report.verdicts.values())  # type: ignore[attr-defined]
        calls.extend(report.draft_calls)  # type: ignore[attr-defined]
        return learn(report)  # type: ignore[arg-type]

    simulation.controller.learn = watch  # type: ignore[assignment, method-assign]
    simulation.run(400)
    kept = [draft for draft in sent if draft.drafter == "head+"]
    assert len(kept) > 0.3 * len(sent) and len(calls) < 0.75 * len(sent)


def test_rests_are_judged_apart() -> None:
    simulation = simulate(Q4_0, 0.9, 1, keeps=True)
    state = simulation.controller.acceptance.state()
    assert {"head", "head+"} <= set(state["drafters"])  # type: ignore[call-overload]


def test_a_rest_is_judged_once_a_step() -> None:
    """It is proposed anew in each step; what is left of it then must not be learned from again and again."""
    pending = PendingDrafts()
    pending.judge(0, [PendingDraft("head", BLOCK, [0.9] * 4)], BLOCK[:1])
    judged = [pending.judge(0, [PendingDraft("head+", BLOCK[at:], [0.9] * 3)], [BLOCK[at]]) for at in (1, 2, 3)]
    assert [[seen.drafter for seen in each] for each in judged] == [["head+", "head"]] * 3


def test_no_rest_is_proposed_before_the_step_before_it_is_reported() -> None:
    """A device still computes that step: the rest would be of a text that has gone on since."""
    controller = Controller(AUTO_SPEC, DrafterSet("head", block_size=4), StepCosts())
    controller.begin(0, None)
    controller._pending_drafts.judge(0, [PendingDraft("head", BLOCK, [0.9] * 4)], BLOCK[:1])
    slots = [DecodeSlot(0, 8)]
    first, second = (controller.begin_step(slots, num_prefill_rows=0, num_cells=0) for _ in range(2))
    assert first.drafts.num_drafted(0, "head+") == 3
    assert second.drafts.num_drafted(0, "head+") == 0
    controller.begin(0, None)  # another request in the slot
    controller._is_reported = True
    assert controller.begin_step(slots, num_prefill_rows=0, num_cells=0).drafts.num_drafted(0, "head+") == 0
