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
from eaglelocal.speculation.policy.lookup_filter import EXPLORED_EVERY, Find
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import StepReport
from eaglelocal.speculation.policy.throughput import ThroughputEstimate

LOOKUP, ONE_S = "ngram", 0.01
MATCH = 0.4  # confidence of a match of two tokens
SLOTS = (0, 1)


class UnaskedCosts(StepCosts):
    """Costs that count the requests for predictions."""

    num_asked = 0

    def optimistic_seconds(self, *sizes: int) -> list[float]:
        self.num_asked += 1
        return super().optimistic_seconds(*sizes)

    def overhead(self, may_draft: bool, num_rows: int) -> float:
        self.num_asked += 1
        return super().overhead(may_draft, num_rows)


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
def run_plain(controller: Controller, num_steps: int, *, num_reading: int = 0) -> list[bool]:
    """Run steps in which nothing is found. Return for each whether a find of MATCH would have been worth a policy."""
    worth = []
    for _ in range(num_steps):
        may_look = controller.may_look(SLOTS, 50, num_reading)
        assert may_look is not None
        worth.append(may_look and controller.may_pay([Find(0, LOOKUP, MATCH)]))
        controller.learn_plain(report_plain())
    return worth


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


def make_priced(*, leveled: bool = False, power: float) -> Controller:
    """Decodes of n rows cost n to this power as much as one row."""
    costs = StepCosts()
    costs.calibrate({rows: [ONE_S * rows**power] * 3 for rows in range(1, 40)})
    controller = Controller(AUTO_SPEC, DrafterSet(lookups=(LOOKUP,)), costs, leveled=leveled)
    for slot in SLOTS:
        controller.begin(slot, None)
    return controller


@pytest.mark.parametrize("leveled", [False, True])
def test_where_rows_cost_more_than_their_tokens_bring_no_step_looks(leveled: bool) -> None:
    dear, cheap = make_priced(leveled=leveled, power=1.2), make_priced(leveled=leveled, power=0.3)
    assert not any(dear.may_look(SLOTS, 50) for _ in range(3 * EXPLORED_EVERY))
    assert all(cheap.may_look(SLOTS, 50) for _ in range(3 * EXPLORED_EVERY))


def test_slots_with_caches_of_their_own_pay_for_a_level_together() -> None:
    """One alone would not: a level of two rows costs 1.2 tokens, and brings two where both copy."""
    controller = make_priced(leveled=True, power=0.9)
    assert controller.may_look(SLOTS, 50) and not controller.may_pay([Find(0, LOOKUP, 0.99)])
    assert controller.may_pay([Find(slot, LOOKUP, 0.99) for slot in SLOTS])


def test_finds_that_are_wrong_are_no_longer_worth_a_policy() -> None:
    controller = make_priced(power=0.4)
    assert all(run_plain(controller, DECIDED_EVERY))
    for _ in range(64):
        find(controller, MATCH, is_right=False)
    assert not any(run_plain(controller, DECIDED_EVERY - 1))
    assert controller.may_pay([Find(0, LOOKUP, 0.99)]), "better ones are"


def test_one_step_in_sixteen_takes_whatever_is_found() -> None:
    controller = make_priced(power=0.4)
    for _ in range(64):
        find(controller, MATCH, is_right=False)
    assert run_plain(controller, 2 * EXPLORED_EVERY).count(True) == 2


def test_texts_are_judged_each_by_its_own_finds_and_a_new_one_anew() -> None:
    controller = make_priced(power=0.4)
    learn_find = controller.acceptance.learn
    for number in range(200):
        learn_find(1, LOOKUP, 1, MATCH, accepted=number % 4 > 0)
    for _ in range(40):
        learn_find(0, LOOKUP, 1, MATCH, accepted=False)
    assert controller.may_look(SLOTS, 50)
    assert [controller.may_pay([Find(slot, LOOKUP, MATCH)]) for slot in SLOTS] == [False, True]
    controller.begin(0, None)
    assert controller.may_look(SLOTS, 50) and controller.may_pay([Find(0, LOOKUP, MATCH)])


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


@pytest.mark.parametrize("num_steps", [1, 2, 50])
def test_plain_steps_that_are_learned_together_teach_the_same(num_steps: int) -> None:
    one_by_one, together = ThroughputEstimate(30.0, 20.0), ThroughputEstimate(30.0, 20.0)
    for _ in range(num_steps):
        one_by_one.add(3, 3.0)
    together.add_plain(3, num_steps)
    assert together.speed == pytest.approx(one_by_one.speed)
    assert together.tokens == pytest.approx(one_by_one.tokens)
