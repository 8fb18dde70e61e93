"""For which slots the drafter is awake, and what trials may take."""

from __future__ import annotations

import itertools

import pytest
from doubles.simulated_machine import BF16, Q4_0, Q8_0, SimulatedMachine
from doubles.simulation import DraftCosts, Profile, Simulation, beyond, curve, plain_text, speed
from doubles.slow_time import SlowTime
from doubles.tiers import some_of

from eaglelocal.speculation.acceptance.acceptance_model import AcceptanceModel, Outlook
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.draft_switch import EXPLORED_SHARE, DraftSwitch
from eaglelocal.speculation.policy.slot_policy import TRIAL_LENGTH, TRIAL_SKIPPED, DrafterSet, GateState, SlotGate

CURVES = {"bf16": BF16, "q8_0": Q8_0, "q4_0": Q4_0}
GOOD, HOPELESS = Profile((0.85,)), Profile((0.05,), spread=0.5, reported=(1.0, 2.0))
DEAR = DraftCosts(step_s=0.0035, drafted_overhead_s=0.002)  # a row takes 0.07 s


class CountedAcceptance(AcceptanceModel):
    num_asked = 0

    def outlook(self, *args: object) -> Outlook:
        self.num_asked += 1
        return super().outlook(*args)  # type: ignore[arg-type]


# ---- gates
def test_tokens_that_a_sleeping_drafter_has_not_read_are_counted_from_the_pause() -> None:
    gate = SlotGate(num_unread=7)
    gate.sleep("because")
    assert gate.num_unread == 0, "awake it has read the text"
    gate.num_unread = 5
    gate.sleep("still")
    assert gate.num_unread == 5
    gate.missed = 9.0
    gate.wake("again")
    assert gate.is_awake and gate.num_unread == 0
    gate.sleep("no promising draft")
    assert gate.missed == 0.0, "what it missed is counted from the pause too"


def test_the_first_steps_of_a_trial_teach_nothing() -> None:
    gate = SlotGate()
    gate.try_out()
    assert gate.is_probing and gate.is_settling and gate.probe_length == TRIAL_LENGTH
    gate.trial_steps = TRIAL_SKIPPED
    assert not gate.is_settling


# ---- decisions
def simulation(name: str, profiles: list[Profile], *, costs: DraftCosts = DEAR, **options: object) -> Simulation:
    machine = SimulatedMachine(seed=1, ratios=curve(CURVES[name]), hiccups=0.02)
    texts = {slot: plain_text(profile) for slot, profile in enumerate(profiles)}
    return Simulation(machine, texts, costs, seed=1, **options)  # type: ignore[arg-type]


def lost_share(run: Simulation, num_steps: int) -> float:
    """Return the share of the time that trials take, beyond that of the same steps without drafts."""
    trials_s = plain_s = 0.0
    for _ in range(num_steps):
        is_trial = run.controller.state(0)[0] is GateState.PROBING
        step = run.step()
        plain_s += step.plain_s
        trials_s += (step.seconds - step.plain_s) * is_trial
    return trials_s / plain_s


@pytest.mark.parametrize(("num_slots", "name"), some_of(itertools.product((1, 8), CURVES), 3))
def test_trials_take_a_hundredth_of_the_time_whatever_the_number_of_slots(num_slots: int, name: str) -> None:
    run = simulation(name, [HOPELESS] * num_slots, leveled=num_slots > 1, answer_tokens=10**6)
    run.run(300 * num_slots)
    assert run.controller.state(0)[0] is not GateState.AWAKE
    assert 0.0 < lost_share(run, 3000) < 1.5 * EXPLORED_SHARE


def test_what_became_slow_for_good_is_tried_more_and_more_rarely() -> None:
    """Draft steps that take twenty times as long."""
    run = simulation("bf16", [GOOD], answer_tokens=10**6)
    run.run(600)
    run.machine.slow_time = SlowTime(begin_s=run.machine.clock_s, seconds=1e9, draft=20.0)
    run.run(1000)
    first, later = speed(run.run(2000)), speed(run.run(4000))
    assert first > 0.93 and later > 0.97


def test_one_predictable_text_among_others_is_still_drafted_for() -> None:
    run = simulation("bf16", [GOOD, *[HOPELESS] * 3], costs=DraftCosts(), answer_tokens=10**6)
    run.run(2400)
    steps = run.run(4000)
    drafted = [sum(step.drafted[slot] for step in steps) / len(steps) for slot in (0, 1)]
    assert drafted[0] > 1.0 > 0.4 > drafted[1]
    assert speed(steps) > 1.1


@pytest.mark.parametrize("leveled", [False, True])
def test_where_a_row_costs_nine_tenths_of_a_token_one_predictable_text_is_no_loss(leveled: bool) -> None:
    run = simulation("bf16", [GOOD, *[HOPELESS] * 7], costs=DraftCosts(), leveled=leveled, answer_tokens=10**6)
    run.run(2400)
    assert speed(run.run(6000)) > 0.97


def test_a_text_that_turns_good_is_noticed_in_company() -> None:
    """Alone no slot pays on a curve with levels of eight rows; all together they do."""
    run = simulation("q4_0", [HOPELESS] * 8, costs=DraftCosts(), leveled=True, answer_tokens=10**6)
    run.run(2400)
    assert run.controller.state(0)[0] is not GateState.AWAKE
    run.texts = dict.fromkeys(run.texts, plain_text(GOOD))
    run.run(8 * 300)
    assert speed(run.run(2400)) > 1.1


@pytest.mark.parametrize("num_slots", [2, 4, 8, 16])
def test_a_weak_head_on_a_processor_is_no_loss_in_waves(num_slots: int) -> None:
    """Answers that begin together, by a head whose tokens are accepted one time in three."""
    weak = Profile((0.35, 0.3), reported=(1.0, 0.5))
    run = simulation("q4_0", [weak] * num_slots, leveled=True, answer_tokens=64)
    assert speed(beyond(run.run(200 * num_slots), 64 * num_slots)) > 0.97


def test_reasons_say_how_many_answers_run() -> None:
    run = simulation("q8_0", [HOPELESS] * 8, leveled=True, answer_tokens=10**6)
    run.run(2400)
    reasons = {run.controller.state(slot)[1] for slot in run.texts}
    assert any("8 answers at once leave no room for drafts" in reason for reason in reasons), reasons


def test_a_longer_draft_of_a_rule_than_the_drafter_can_make_is_no_error() -> None:
    """A lookup of sixteen tokens beside a head of seven, on slots with caches of their own."""
    acceptance, costs = AcceptanceModel(), StepCosts()
    costs.calibrate({rows: [1.0 + rows / 10] * 3 for rows in (1, 2, 4, 8, 16)})
    switch = DraftSwitch(costs, acceptance, DrafterSet("head", max_depth=7), 16, True, costs.plain_rate)
    gate = SlotGate()
    for _ in range(20):
        switch.record({0: gate}, {0: 1}, [0], 0.0, 100, ruled=(16,))
    assert gate.is_awake


@pytest.mark.parametrize(("num_reading", "is_awake"), [(0, True), (7, False)])
def test_slots_whose_prompts_are_read_count_as_company(num_reading: int, is_awake: bool) -> None:
    """Eight rows take as long as one, so a second is worth eight times as many tokens once eight slots decode."""
    costs, gate = StepCosts(), SlotGate()
    costs.calibrate({rows: [1.0 + 0.001 * rows] * 3 for rows in range(1, 33)})
    costs.learn_drafts("head", 1, [0.4])
    switch = DraftSwitch(costs, AcceptanceModel(), DrafterSet("head"), 16, False, costs.plain_rate)
    switch.num_reading = num_reading
    switch.record({0: gate}, {0: 1}, [0], 0.0, 100)
    assert gate.is_awake is is_awake


@pytest.mark.parametrize(("max_unread", "num_steps"), [(0, 8), (10**6, 24)])
def test_a_drafter_wakes_once_what_it_missed_would_have_paid_for_reading(max_unread: int, num_steps: int) -> None:
    """Drafts bring many tokens each step; reading all that it slept through takes as long as many decodes."""
    costs, acceptance, gate = StepCosts(), AcceptanceModel(), SlotGate()
    costs.calibrate({rows: [1.0 + 0.001 * rows] * 3 for rows in range(1, 33)})
    costs.learn_drafts("head", 1, [0.01])
    costs.learn_reading("head", 100, 7.0)
    for _ in range(200):
        acceptance.learn(0, "head", 1, 0.9, accepted=True)
    switch = DraftSwitch(costs, acceptance, DrafterSet("head", max_unread=max_unread), 4, False, costs.plain_rate)
    gate.sleep("because")
    gate.num_unread = 400
    steps = 0
    while not gate.is_awake:
        steps += 1
        switch.credit = -1.0  # no trial
        switch.record({0: gate}, {0: 1}, [], 0.0, 100)
        assert steps < 100
    assert steps <= num_steps if not max_unread else 8 < steps <= num_steps


def test_sleeping_drafters_cost_few_decisions() -> None:
    costs, acceptance = StepCosts(), CountedAcceptance()
    costs.calibrate({rows: [1.0 * rows] * 3 for rows in range(1, 33)})
    costs.learn_drafts("head", 1, [5.0])
    switch = DraftSwitch(costs, acceptance, DrafterSet("head"), 16, False, costs.plain_rate)
    gates = {slot: SlotGate() for slot in range(4)}
    for gate in gates.values():
        gate.sleep("because")
    for _ in range(8):
        switch.credit = -10.0
        switch.record(gates, dict.fromkeys(gates, 1), [], 0.0, 100)
    before = acceptance.num_asked
    for _ in range(320):
        switch.credit = -10.0
        switch.record(gates, dict.fromkeys(gates, 1), [], 0.0, 100)
    assert acceptance.num_asked - before <= 4 * 11


def test_the_first_price_of_draft_steps_is_decided_by_at_once() -> None:
    """A draft step takes as long as two decodes; eight more steps would be wasted."""
    run = simulation("bf16", [GOOD], costs=DraftCosts(step_s=0.14), answer_tokens=10**6)
    assert sum(step.drafted[0] for step in run.run(12)) < 8


def test_every_change_alternates_and_has_a_reason() -> None:
    run = simulation("q4_0", [Profile((0.5, 0.45))] * 2, leveled=True, answer_tokens=300)
    changes = [change for step in run.run(3000) for change in step.changes]
    assert all(change.reason for change in changes)
    for slot in run.texts:
        own = [change.state for change in changes if change.slot == slot]
        assert all(one is not next_ for one, next_ in itertools.pairwise(own))
