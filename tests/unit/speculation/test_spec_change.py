"""The spec changes while requests run: requests without a spec of their own follow at once, others do not."""

from __future__ import annotations

import pytest

from eaglelocal.core.request import AUTO_SPEC, OFF, Spec, fixed_spec
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DrafterSet


def controller(spec: Spec) -> Controller:
    return Controller(spec, DrafterSet("head"), StepCosts())


@pytest.mark.parametrize(
    ("before", "after"), [(AUTO_SPEC, OFF), (OFF, AUTO_SPEC), (AUTO_SPEC, fixed_spec(3)), (fixed_spec(3), OFF)]
)
def test_slots_without_a_wish_follow(before: Spec, after: Spec) -> None:
    brain = controller(before)
    brain.begin(0, None)
    brain.begin(1, fixed_spec(5))
    brain.set_default_spec(after)
    assert brain.spec == after
    assert (brain.max_draft(0), brain.max_draft(1)) == (after.max_draft, 5)
    assert brain.is_awake(0) is (after.max_draft > 0)


def test_a_wish_is_of_a_request_and_not_of_its_slot() -> None:
    brain = controller(AUTO_SPEC)
    brain.begin(0, fixed_spec(5))
    brain.begin(0, None)
    brain.set_default_spec(OFF)
    assert brain.max_draft(0) == 0
    brain.begin(0, fixed_spec(5))
    brain.set_default_spec(AUTO_SPEC)
    assert brain.max_draft(0) == 5


def test_what_comes_later_follows_too() -> None:
    brain = controller(AUTO_SPEC)
    brain.set_default_spec(OFF)
    brain.begin(0, None)
    assert brain.state(0) == (None, "switched off")


@pytest.mark.parametrize("spec", [AUTO_SPEC, fixed_spec(4)])
def test_without_drafters_nothing_is_decided(spec: Spec) -> None:
    brain = Controller(spec, DrafterSet(), StepCosts())
    brain.begin(0, None)
    brain.begin(1, AUTO_SPEC)
    assert [brain.max_draft(slot) for slot in (0, 1)] == [0, 0]
    assert not brain.is_awake(0) and brain.spec == spec
