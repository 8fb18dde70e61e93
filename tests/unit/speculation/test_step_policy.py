"""What a step drafts where slots differ: short rooms, new texts, prompts that begin beside others."""

from __future__ import annotations

import pytest

from eaglelocal.core.request import AUTO_SPEC, Spec, fixed_spec
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet, GateState

HEAD, LOOKUP = "head", "ngram"
CHEAP = {1: 1.0, 2: 1.02, 4: 1.05, 8: 1.1, 16: 1.2}
SECOND_ROW_DEAR = {1: 1.0, 2: 3.0, 4: 3.02, 8: 3.05, 16: 3.1}  # one drafted row does not pay, several do
STEEP = {1: 1.0, 2: 1.5, 4: 3.8, 8: 8.0, 16: 24.0}  # with eight slots, a row takes longer than a token is worth


def make_controller(
    seconds: dict[int, float], specs: dict[int, Spec], *, primary: str | None = HEAD, num_running: int = 1
) -> Controller:
    costs = StepCosts()
    costs.calibrate({rows: [each] * 3 for rows, each in seconds.items()})
    costs.learn_drafts(HEAD, 1, [0.01] * 8)
    controller = Controller(AUTO_SPEC, DrafterSet(primary, (LOOKUP,)), costs)
    for slot, spec in specs.items():
        controller.begin(slot, spec, num_running=num_running)
    return controller


def lookup_levels(controller: Controller, rooms: dict[int, int]) -> int:
    policy = controller.begin_step(
        [DecodeSlot(slot, room) for slot, room in rooms.items()], num_prefill_rows=0, num_cells=50
    )
    return policy.select_levels(LOOKUP, policy.select_slots(LOOKUP))[0]


def test_a_lookup_is_not_shortened_by_another_slot() -> None:
    assert lookup_levels(make_controller(CHEAP, {0: AUTO_SPEC, 1: AUTO_SPEC}), {0: 1, 1: 16}) == 16
    beside_a_rule = make_controller(CHEAP, {0: AUTO_SPEC, 1: fixed_spec(3)}, primary=None)
    assert lookup_levels(beside_a_rule, {0: 16, 1: 16}) == 16


def test_more_tokens_than_a_slot_can_use_are_dropped() -> None:
    controller = make_controller(CHEAP, {0: AUTO_SPEC, 1: AUTO_SPEC})
    policy = controller.begin_step([DecodeSlot(0, 1), DecodeSlot(1, 16)], num_prefill_rows=0, num_cells=50)
    for slot in (0, 1):
        policy.drafts.add(slot, LOOKUP, (5,) * 8, (0.99,) * 8)
    assert [policy.drafts.num_drafted(slot, LOOKUP) for slot in (0, 1)] == [1, 8]


def test_a_lookup_that_is_surely_wrong_is_asked_once() -> None:
    controller = make_controller(CHEAP, {0: AUTO_SPEC})
    for _ in range(3000):
        controller.acceptance.learn(0, LOOKUP, 1, 0.02, accepted=False)
    policy = controller.begin_step([DecodeSlot(0, 16)], num_prefill_rows=0, num_cells=50)
    assert policy.select_slots(LOOKUP) == [0]
    policy.drafts.add(0, LOOKUP, (5, 6), (0.02, 0.02))
    assert policy.drafts.num_drafted(0, LOOKUP) == 0
    assert policy.select_slots(LOOKUP) == []


@pytest.mark.parametrize(("room", "is_drafted"), [(1, False), (16, True)])
def test_nothing_is_drafted_that_could_not_be_sent_with_a_gain(room: int, is_drafted: bool) -> None:
    controller = make_controller(SECOND_ROW_DEAR, {0: AUTO_SPEC})
    for _ in range(400):
        controller.acceptance.learn(0, HEAD, 1, 0.98, accepted=True)
    controller.begin(0, None)
    policy = controller.begin_step([DecodeSlot(0, room)], num_prefill_rows=0, num_cells=50)
    assert bool(policy.select_slots(HEAD)) is is_drafted


def test_a_new_text_is_not_judged_by_the_old_one() -> None:
    controller = make_controller(CHEAP, {0: AUTO_SPEC})
    for _ in range(20):
        controller.acceptance.learn(0, HEAD, 1, 0.9, accepted=False)
    before = controller._switch.find_values([0], 1, 50)[0]
    controller.begin(0, None)
    after = controller._switch.find_values([0], 1, 50)[0]
    assert after.outlook.mean > before.outlook.mean


def test_values_of_a_step_with_a_prompt_are_not_kept() -> None:
    controller = make_controller(SECOND_ROW_DEAR, {0: AUTO_SPEC})
    beside, alone = (controller._switch.find_values([0], 1, 50, rows)[0] for rows in (8, 0))
    assert beside.gain > alone.gain
    assert controller._switch.find_values([0], 1, 50)[0] is alone


def test_a_prompt_is_read_by_the_drafter_if_drafts_pay_beside_the_others() -> None:
    (alone, _), (beside, reason) = (
        make_controller(STEEP, {0: AUTO_SPEC}, num_running=num_running).state(0) for num_running in (1, 8)
    )
    assert [alone, beside] == [GateState.AWAKE, GateState.ASLEEP]
    assert reason.endswith(", only lookups draft")
