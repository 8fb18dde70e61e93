"""Lookups without a head: a step that finds nothing is a plain one, and no number of them puts lookups to sleep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.request import AUTO_SPEC, PID, Spec, fixed_spec
from eaglelocal.core.sampling import Sampled
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.cost_learner import MOST_AT_ONCE
from eaglelocal.speculation.policy.draft_switch import DECIDED_EVERY
from eaglelocal.speculation.policy.lookup_filter import EXPLORED_EVERY
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import StepReport
from eaglelocal.speculation.policy.throughput import ThroughputEstimate

LOOKUP, ONE_S = "ngram", 0.01
SLOTS = (0, 1)


class UnaskedCosts(StepCosts):
    """Costs that count the requests for predictions."""

    num_asked = 0

    def optimistic_seconds(self, *sizes: int) -> list[float]:
        self.num_asked += 1
        return super().optimistic_seconds(*sizes)

    def overhead(self, drafted: bool) -> float:
        self.num_asked += 1
        return super().overhead(drafted)


def make_controller(spec: Spec = AUTO_SPEC) -> tuple[Controller, UnaskedCosts]:
    costs = UnaskedCosts()
    costs.calibrate({1: [ONE_S] * 3, 2: [1.1 * ONE_S] * 3, 8: [1.5 * ONE_S] * 3})
    controller = Controller(spec, DrafterSet(lookups=(LOOKUP,)), costs)
    for slot in SLOTS:
        controller.begin(slot, None)
    return controller, costs


def begin(controller: Controller) -> StepPolicy:
    return controller.begin_step([DecodeSlot(slot, 16) for slot in SLOTS], num_prefill_rows=0, num_cells=50)


def find_nothing(controller: Controller) -> None:
    policy = begin(controller)
    assert policy.select_slots(LOOKUP) == list(SLOTS)
    assert policy.select_levels(LOOKUP, SLOTS)[0] > 0
    for slot in SLOTS:
        policy.drafts.add(slot, LOOKUP, (), ())
        policy.drafts.end(slot, LOOKUP)
    assert policy.select_slots(LOOKUP) == []
    assert policy.select_drafts() == dict.fromkeys(SLOTS, Draft())
    learn(controller, policy)


def learn(controller: Controller, policy: StepPolicy, *tokens: int) -> None:
    text = Verdict((), tuple(map(Sampled, tokens or (7,))))
    report = replace(report_plain(), verdicts=dict.fromkeys(SLOTS, (Draft(), text)), policy=policy)
    assert controller.learn(report) == []


def test_a_step_that_finds_nothing_asks_for_no_costs() -> None:
    controller, costs = make_controller()
    for _ in range(MOST_AT_ONCE):  # costs are learned
        find_nothing(controller)
    before = costs.num_asked
    for _ in range(300):
        find_nothing(controller)
    assert costs.num_asked == before


def test_after_long_in_vain_a_find_is_sent_at_once() -> None:
    controller, _ = make_controller()
    for _ in range(300):
        find_nothing(controller)
    assert [controller.state(slot)[1] for slot in SLOTS] == ["", ""]
    for _ in range(2):  # a plain step may be due
        policy = begin(controller)
        if policy.select_slots(LOOKUP):
            break
        learn(controller, policy)
    for slot in SLOTS:
        policy.drafts.add(slot, LOOKUP, (1, 2, 3), (0.95, 0.95, 0.95))
        policy.drafts.end(slot, LOOKUP)
    assert [len(draft) for draft in policy.select_drafts().values()] == [3, 3]


@pytest.mark.parametrize(("spec", "length"), [(fixed_spec(3), 3), (PID, None)])
def test_rules_hold_for_lookups_alone(spec: Spec, length: int | None) -> None:
    controller, _ = make_controller(spec)
    policy = begin(controller)
    assert policy.select_slots(LOOKUP) == list(SLOTS)
    levels, _ = policy.select_levels(LOOKUP, SLOTS)
    assert levels == length if length is not None else levels > 0


# ---- looking rarely
def run_plain(controller: Controller, num_steps: int) -> list[float | None]:
    """Run steps in which no look finds anything. Return the confidence that each asked of the first slot, or None."""
    asked = []
    for _ in range(num_steps):
        confidences = controller.select_confidences(SLOTS, 50)
        assert confidences is not None
        asked.append(confidences.get(0, {}).get(LOOKUP))
        controller.learn_plain(report_plain())
    return asked


def report_plain() -> StepReport:
    return StepReport(
        num_rows=len(SLOTS),
        num_prefill_rows=0,
        num_cells=50,
        decode_s=ONE_S,
        draft_calls=(),
        other_s=1e-4,
        verdicts=dict.fromkeys(SLOTS, (Draft(), Verdict((), (Sampled(7),)))),
    )


def find(controller: Controller, confidence: float, *, is_right: bool) -> None:
    """Run a step in which the lookup finds a token."""
    policy = begin(controller)
    while not policy.select_slots(LOOKUP):  # a plain step is due
        learn(controller, policy)
        policy = begin(controller)
    for slot in SLOTS:
        policy.drafts.add(slot, LOOKUP, (1,), (confidence,))
        policy.drafts.end(slot, LOOKUP)
    policy.select_drafts()
    learn(controller, policy, 1 if is_right else 9)


def test_where_rows_cost_more_than_their_tokens_bring_no_step_looks() -> None:
    costs = StepCosts()
    costs.calibrate({rows: [ONE_S * rows**1.2] * 3 for rows in (1, 2, 3, 4, 6, 8, 16)})
    controller = Controller(AUTO_SPEC, DrafterSet(lookups=(LOOKUP,)), costs)
    for slot in SLOTS:
        controller.begin(slot, None)
    assert run_plain(controller, 3 * EXPLORED_EVERY) == [None] * 3 * EXPLORED_EVERY


@pytest.mark.parametrize("is_right", [True, False])
def test_finds_that_are_wrong_ask_for_better_ones(is_right: bool) -> None:
    controller, _ = make_controller()
    (before, *_) = run_plain(controller, 1)
    for _ in range(24):
        find(controller, 0.4, is_right=is_right)
    after = run_plain(controller, DECIDED_EVERY)[-1]
    assert before is not None and after is not None
    assert after <= before if is_right else after > before


def test_one_step_in_sixteen_accepts_whatever_is_found() -> None:
    controller, _ = make_controller()
    for _ in range(24):
        find(controller, 0.4, is_right=False)
    asked = run_plain(controller, 4 * EXPLORED_EVERY)
    assert asked.count(0.0) == 4 and None not in asked


def test_a_text_of_which_nothing_was_seen_for_long_is_looked_at_again() -> None:
    controller, _ = make_controller()
    for _ in range(24):
        find(controller, 0.4, is_right=False)
    early, late = run_plain(controller, DECIDED_EVERY)[-1], run_plain(controller, 200)[-1]
    assert early is not None and late is not None and late < early


@pytest.mark.parametrize("num_steps", [1, 2, 50])
def test_plain_steps_that_are_learned_together_teach_the_same(num_steps: int) -> None:
    one_by_one, together = ThroughputEstimate(30.0, 20.0), ThroughputEstimate(30.0, 20.0)
    for _ in range(num_steps):
        one_by_one.add(3, 3.0)
    together.add_plain(3, num_steps)
    assert together.speed == pytest.approx(one_by_one.speed)
    assert together.tokens == pytest.approx(one_by_one.tokens)
