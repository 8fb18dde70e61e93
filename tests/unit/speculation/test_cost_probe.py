"""Occasional plain steps keep the cost of plain decoding up to date; retries do so for sizes that became expensive."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from doubles.drafts import chain
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.request import AUTO_SPEC, Spec, fixed_spec
from eaglelocal.core.sampling import Sampled
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.cost_probe import FIRST_GAP, MAX_GAP, NUM_CONFIRMATIONS, Correction, CostProbe
from eaglelocal.speculation.policy.level_difference import TimedDecode
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet
from eaglelocal.speculation.policy.step_report import StepReport


def level_of(decode: TimedDecode) -> float:
    return math.log(decode.seconds)


def record(probe: CostProbe, is_probe: bool, seconds: float | None = 1.0) -> Correction | None:
    return probe.record(is_probe, None if seconds is None else TimedDecode(1, seconds, 0), level_of)


def until_due(probe: CostProbe, seconds: float = 1.0) -> int:
    """Steps that are no probes."""
    count = 0
    while not probe.is_due:
        assert record(probe, False, seconds) is None
        count += 1
    return count


def run(probe: CostProbe, num_steps: int, probe_s: Sequence[float], other_s: Sequence[float]) -> Correction | None:
    """Probe when it is due, until a correction. Seconds by step."""
    for step in range(num_steps):
        is_probe = probe.is_due
        correction = record(probe, is_probe, (probe_s if is_probe else other_s)[step % len(probe_s)])
        if correction:
            return correction
    return None


def test_one_that_takes_what_was_expected_comes_more_and_more_rarely() -> None:
    probe, gaps = CostProbe(), []
    for _ in range(10):
        gaps.append(until_due(probe))
        assert record(probe, True, 1.1) is None
    assert gaps == [min(FIRST_GAP << n, MAX_GAP) for n in range(10)]


@given(factor=st.floats(1.3, 20.0) | st.floats(0.05, 0.75), level=st.floats(1e-4, 10.0))
def test_three_between_others_are_believed(factor: float, level: float) -> None:
    probe, num_probes = CostProbe(), 0
    for _ in range(FIRST_GAP + 2 * NUM_CONFIRMATIONS):
        is_probe = probe.is_due
        num_probes += is_probe
        if found := record(probe, is_probe, level * (factor if is_probe else 1.0)):
            break
    assert num_probes == NUM_CONFIRMATIONS
    assert found is not None and found.error == pytest.approx(math.log(factor))
    assert found.level == pytest.approx(math.log(level * factor))


def test_a_hiccup_is_none() -> None:
    probe = CostProbe()
    until_due(probe)
    for seconds in (5.0, 1.0, 1.0):
        assert probe.is_due
        assert record(probe, True, seconds) is None
        assert record(probe, False) is None
    assert not probe.is_due


@given(begin=st.integers(0, 60), length=st.integers(1, 60), factor=st.floats(1.5, 10.0))
def test_a_machine_that_is_slow_for_a_while_corrects_nothing(begin: int, length: int, factor: float) -> None:
    """It takes everything with it, whenever it begins and ends."""
    seconds = [factor if begin <= step < begin + length else 1.0 for step in range(200)]
    assert run(CostProbe(), 200, seconds, seconds) is None


@pytest.mark.parametrize("seed", range(8))
def test_where_seconds_scatter_a_difference_may_be_chance(seed: int) -> None:
    chance = random.Random(seed)
    seconds = [math.exp(chance.gauss(0.0, 0.8)) for _ in range(400)]
    found = run(CostProbe(), 400, seconds, seconds)
    assert found is None or abs(found.error) > 0.5  # nothing small is believed of them


def test_steps_that_run_so_anyway_are_compared() -> None:
    probe = CostProbe()
    found = [record(probe, step % 3 == 0, 2.0 if step % 3 == 0 else 1.0) for step in range(10)]
    assert [each for each in found if each] == [Correction(pytest.approx(math.log(2.0)), pytest.approx(math.log(2.0)))]


def test_what_cannot_be_compared_is_in_no_pair() -> None:
    probe = CostProbe()
    for _ in range(100):
        assert record(probe, True, 3.0) is None
        assert record(probe, False, None) is None
        assert record(probe, False, 1.0) is None
        assert record(probe, True, None) is None


# ---- in the controller
def controller(*specs: Spec) -> Controller:
    costs = StepCosts()
    costs.calibrate({rows: [1.0 + rows / 100] * 3 for rows in range(1, 18)})
    made = Controller(AUTO_SPEC, DrafterSet("head"), costs, leveled=len(specs) > 1)
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
    brain = controller(AUTO_SPEC, AUTO_SPEC)
    drafting = [
        step(brain, num_drafted=2, num_padding=num_padding, num_passes=num_passes) for _ in range(FIRST_GAP + 8)
    ]
    assert drafting == [True] * FIRST_GAP + [False] + [True] * 7


def test_a_length_that_is_a_matter_of_rule_stays_one() -> None:
    brain = controller(AUTO_SPEC, fixed_spec(2))
    assert all(step(brain, num_drafted=2) for _ in range(3 * FIRST_GAP))
