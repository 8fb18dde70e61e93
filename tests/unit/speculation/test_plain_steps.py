"""Plain steps among drafted ones: more and more rarely, and soon again after one that surprised."""

from __future__ import annotations

import pytest
from doubles.drafts import chain

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.request import AUTO_SPEC, Spec, fixed_spec
from eaglelocal.core.sampling import Sampled
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.plain_steps import FIRST_GAP, MAX_GAP, NUM_CONFIRMING, TOLERANCE, PlainSteps
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet
from eaglelocal.speculation.policy.step_report import StepReport


def until_due(plain: PlainSteps) -> int:
    """Return the drafted steps before a plain one is due."""
    count = 0
    while not plain.is_due:
        plain.record(is_plain=False, surprise=0.0)
        count += 1
    return count


def test_as_expected_they_come_more_and_more_rarely() -> None:
    plain, gaps = PlainSteps(), []
    for _ in range(10):
        gaps.append(until_due(plain))
        plain.record(is_plain=True, surprise=0.1)
    assert gaps == [min(FIRST_GAP << n, MAX_GAP) for n in range(10)]


def test_after_a_surprise_others_follow_between_drafted_steps() -> None:
    plain = PlainSteps()
    until_due(plain)
    plain.record(is_plain=True, surprise=2 * TOLERANCE)
    gaps = []
    for _ in range(NUM_CONFIRMING + 1):
        gaps.append(until_due(plain))
        plain.record(is_plain=True, surprise=0.0)
    assert gaps == [*[1] * NUM_CONFIRMING, FIRST_GAP]


def test_a_step_that_is_plain_anyway_puts_the_next_one_off() -> None:
    plain = PlainSteps()
    plain.record(is_plain=False, surprise=0.0)
    plain.record(is_plain=True, surprise=2 * TOLERANCE)
    assert until_due(plain) == FIRST_GAP


# ---- in the controller
def controller(*specs: Spec) -> Controller:
    costs = StepCosts()
    costs.calibrate({rows: [1.0 + rows / 100] * 3 for rows in range(1, 18)})
    made = Controller(AUTO_SPEC, DrafterSet("head"), costs, leveled=len(specs) > 1)
    for slot, spec in enumerate(specs):
        made.begin(slot, spec)
    return made


def step(controller: Controller, *, num_drafted: int, num_padding: int = 0, num_passes: int = 1) -> bool:
    """Take a step of all slots. Return whether it could have drafted."""
    slots = sorted(controller._policies)
    choice = controller.begin_step([DecodeSlot(slot, 16) for slot in slots], num_prefill_rows=0, num_cells=0)
    may_draft = bool(choice.select_slots("head"))
    draft = chain(*range(1, 1 + num_drafted)) if may_draft else Draft()
    num_rows = len(slots) * (1 + len(draft)) + num_padding
    verdict = Verdict(tuple(range(len(draft))), tuple(Sampled(token) for token in range(1, 2 + len(draft))))
    controller.learn(
        StepReport(
            num_rows=num_rows,
            num_padding_rows=num_padding,
            num_passes=num_passes,
            num_prefill_rows=0,
            num_cells=0,
            decode_s=1.0,
            draft_calls=(),
            other_s=0.0,
            verdicts={slot: (draft, verdict) for slot in slots},
        )
    )
    return may_draft


@pytest.mark.parametrize(("num_padding", "num_passes"), [(0, 1), (1, 1), (0, 2)])
def test_one_plain_step_is_one_whatever_it_was_filled_up_with(num_padding: int, num_passes: int) -> None:
    brain = controller(AUTO_SPEC, AUTO_SPEC)
    drafting = [
        step(brain, num_drafted=2, num_padding=num_padding, num_passes=num_passes) for _ in range(FIRST_GAP + 8)
    ]
    assert drafting == [True] * FIRST_GAP + [False] + [True] * 7


def test_a_length_that_is_a_matter_of_rule_stays_one() -> None:
    brain = controller(AUTO_SPEC, fixed_spec(2))
    assert all(step(brain, num_drafted=2) for _ in range(3 * FIRST_GAP))
