"""Lookups without a head: a step that finds nothing is a plain one, and no number of them puts lookups to sleep."""

from __future__ import annotations

import pytest

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.request import AUTO, PID, Spec, fixed_spec
from eaglelocal.core.sampling import Sampled
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import StepReport

LOOKUP, ONE_S = "ngram", 0.01
SLOTS = (0, 1)


class UnaskedCosts(StepCosts):
    """Costs whose predictions nobody may ask for while `is_closed`."""

    is_closed = False

    def optimistic_seconds(self, *sizes: int, as_usual: bool = False) -> list[float]:
        assert not self.is_closed
        return super().optimistic_seconds(*sizes, as_usual=as_usual)

    def overhead(self, drafted: bool) -> float:
        assert not self.is_closed
        return super().overhead(drafted)


def make_controller(spec: Spec = AUTO) -> tuple[Controller, UnaskedCosts]:
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
    report = StepReport(
        num_rows=len(SLOTS),
        num_prefill_rows=0,
        num_cells=50,
        decode_s=ONE_S,
        draft_calls=(),
        other_s=1e-4,
        verdicts=dict.fromkeys(SLOTS, (Draft(), text)),
        policy=policy,
    )
    assert controller.learn(report) == []


def test_a_step_that_finds_nothing_asks_for_no_costs() -> None:
    controller, costs = make_controller()
    find_nothing(controller)
    costs.is_closed = True
    for _ in range(300):
        find_nothing(controller)


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
