"""Occasional plain steps keep the cost of plain decoding up to date."""

from __future__ import annotations

import math

import pytest
from doubles.drafts import chain

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.request import AUTO, Spec, fixed_spec
from eaglelocal.core.sampling import Sampled
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.baseline_probe import FIRST_GAP, MAX_GAP, NUM_CONFIRMATIONS, BaselineProbe
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet
from eaglelocal.speculation.policy.step_report import StepReport


def until_due(probe: BaselineProbe) -> int:
    """Drafted steps."""
    count = 0
    while not probe.is_due:
        probe.record_drafted()
        count += 1
    return count


def test_one_that_takes_what_was_expected_comes_more_and_more_rarely() -> None:
    probe, gaps = BaselineProbe(), []
    for _ in range(10):
        gaps.append(until_due(probe))
        assert probe.record_plain(1.1, 1.0) == 0.0
    assert gaps == [min(FIRST_GAP << n, MAX_GAP) for n in range(10)]


def test_three_in_a_row_are_believed() -> None:
    probe = BaselineProbe()
    until_due(probe)
    said = []
    for seconds in (1.8, 9.0, 1.9):
        assert probe.is_due
        said.append(probe.record_plain(seconds, 1.0))
    assert said == [0.0, 0.0, pytest.approx(math.log(1.9))]
    assert until_due(probe) == FIRST_GAP


def test_a_hiccup_is_none() -> None:
    probe = BaselineProbe()
    until_due(probe)
    assert [probe.record_plain(seconds, 1.0) for seconds in (5.0, 1.0, 1.0)] == [0.0] * NUM_CONFIRMATIONS
    assert not probe.is_due


def test_where_steps_are_plain_anyway_nothing_is_corrected() -> None:
    """A machine that becomes slower takes everything with it."""
    probe = BaselineProbe()
    for _ in range(200):
        assert probe.record_plain(3.0, 1.0) == 0.0 and not probe.is_due
    probe.record_drafted()
    assert probe.record_plain(3.0, 1.0) == 0.0 and not probe.is_due


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_what_nothing_is_known_of_is_no_surprise(seconds: float, expected: float) -> None:
    probe = BaselineProbe()
    until_due(probe)
    assert probe.record_plain(seconds, expected) == 0.0


# ---- in the controller
def controller(*specs: Spec) -> Controller:
    costs = StepCosts()
    costs.calibrate({rows: [1.0 + rows / 100] * 3 for rows in range(1, 18)})
    made = Controller(AUTO, DrafterSet("head"), costs, leveled=len(specs) > 1)
    for slot, spec in enumerate(specs):
        made.begin(slot, spec)
    return made


def step(controller: Controller, *, num_drafted: int, num_padding: int = 0, num_passes: int = 1) -> bool:
    """Of all slots. True: it could have drafted."""
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
    brain = controller(AUTO, AUTO)
    drafting = [
        step(brain, num_drafted=2, num_padding=num_padding, num_passes=num_passes) for _ in range(FIRST_GAP + 8)
    ]
    assert drafting == [True] * FIRST_GAP + [False] + [True] * 7


def test_a_length_that_is_a_matter_of_rule_stays_one() -> None:
    brain = controller(AUTO, fixed_spec(2))
    assert all(step(brain, num_drafted=2) for _ in range(3 * FIRST_GAP))
