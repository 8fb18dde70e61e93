"""The draft gate as a table: the steps it sees, and the state it is in afterwards."""

from __future__ import annotations

import random

from eaglelocal.core.draft import MEASURING
from eaglelocal.speculation.policy.draft_gate import (
    DEAR_IDLE_STEPS,
    FIRST_GAP,
    IDLE_STEPS,
    LAST_GAP,
    PROBE_LENGTH,
    PROBE_SKIPPED,
    PROBE_STEPS,
    TRIAL_GAPS,
    TRIED_TOKENS,
    DecayingSums,
    DraftGate,
    GateState,
)


def step(extra: float, cost: float, drafted: int = 3) -> DecayingSums:
    return DecayingSums(1.0, extra=extra, cost=cost, drafted=drafted)


def asleep() -> DraftGate:
    return DraftGate(starts_awake=False)


def probe(gate: DraftGate, promised_speed: float) -> None:
    while not gate.is_probing:
        gate.record_tokens(1)
    for _ in range(PROBE_STEPS):
        gate.record_probe(promised_speed)


def test_a_watch_begins_awake_or_with_an_early_probe() -> None:
    assert DraftGate().state is GateState.AWAKE
    gate = asleep()
    assert gate.state is GateState.ASLEEP
    assert gate.reason == "it was slower for earlier answers"
    gate.record_tokens(FIRST_GAP - 1)
    assert not gate.is_awake
    gate.record_tokens(1)
    assert gate.is_probing and gate.is_awake
    assert gate.reason == MEASURING


def test_a_clear_loss_puts_it_to_sleep_with_a_reason() -> None:
    gate = DraftGate()
    for _ in range(40):
        if gate.is_awake:
            gate.record_step(step(0.3, 0.6))
    assert gate.state is GateState.ASLEEP
    assert gate.reason == "it would be slower (0.81x)"


def test_a_gain_and_a_draw_keep_it_awake() -> None:
    for extra, cost in [(1.0, 0.5), (0.5, 0.5)]:
        gate = DraftGate()
        for _ in range(500):
            gate.record_step(step(extra, cost))
        assert gate.state is GateState.AWAKE


def test_bad_luck_is_no_loss() -> None:
    """Dear drafts that pay, but only once in a while."""
    num_asleep = 0
    for seed in range(200):
        chance, gate = random.Random(seed), DraftGate()
        for _ in range(48):
            if gate.state is GateState.AWAKE:
                gate.record_step(step(6.0 if chance.random() < 0.45 else 0.0, 2.2))
        num_asleep += gate.state is GateState.ASLEEP
    assert num_asleep < 40


def test_nothing_worth_sending_for_long_puts_it_to_sleep() -> None:
    gate = DraftGate()
    for _ in range(IDLE_STEPS - 1):
        gate.record_step(step(0.0, 0.0, drafted=0))
    assert gate.state is GateState.AWAKE
    gate.record_step(step(0.0, 0.0, drafted=0))
    assert gate.state is GateState.ASLEEP
    assert "no promising draft" in gate.reason


def test_a_draft_now_and_then_is_not_idle() -> None:
    gate = DraftGate()
    for n in range(300):
        gate.record_step(step(1.0, 0.5) if n % IDLE_STEPS == 0 else step(0.0, 0.0, drafted=0))
    assert gate.state is GateState.AWAKE


def test_the_first_steps_of_a_probe_settle() -> None:
    gate = asleep()
    gate.record_tokens(FIRST_GAP)
    settling = []
    for _ in range(PROBE_STEPS):
        settling.append(gate.is_settling)
        gate.record_probe(1.0)
    assert settling == [True] * PROBE_SKIPPED + [False] * (PROBE_STEPS - PROBE_SKIPPED)


def test_a_probe_wakes_it_or_not_and_says_why() -> None:
    gate = asleep()
    probe(gate, 1.2)
    assert (gate.state, gate.reason) == (GateState.AWAKE, "it pays again (1.20x)")
    gate = asleep()
    probe(gate, 1.0)
    assert (gate.state, gate.reason) == (GateState.ASLEEP, "it would gain too little (1.00x)")
    gate = asleep()
    probe(gate, 0.9)
    assert (gate.state, gate.reason) == (GateState.ASLEEP, "it would be slower (0.90x)")


def test_gaps_grow_to_a_bound_within_which_recovery_is_reported() -> None:
    gate, gaps = asleep(), []
    for _ in range(6):
        gap = 0
        while not gate.is_probing:
            gate.record_tokens(1)
            gap += 1
        gaps.append(gap)
        probe(gate, 1.0)
    assert gaps[0] == FIRST_GAP
    assert gaps == sorted(gaps)
    assert gaps[-1] == LAST_GAP
    assert LAST_GAP + 2 * PROBE_STEPS <= 128


def test_what_wakes_it_is_more_than_what_keeps_it_awake() -> None:
    """At the break-even point it stays as it is."""
    gate = asleep()
    for _ in range(20):
        probe(gate, 1.01)
        assert gate.state is GateState.ASLEEP
    gate = DraftGate()
    for _ in range(2000):
        gate.record_step(step(0.50, 0.51))
    assert gate.state is GateState.AWAKE


def test_a_gap_goes_on_over_short_answers() -> None:
    """Where each is shorter than the first gap, none would ever be probed."""
    gate, answers = asleep(), 0
    while not gate.is_probing and answers < 100:
        gate = DraftGate(starts_awake=False, previous=gate)
        for _ in range(10):
            if not gate.is_probing:
                gate.record_tokens(1)
        answers += 1
    assert answers == -(-FIRST_GAP // 10)


def test_a_text_that_begins_with_hope_takes_nothing_over() -> None:
    before = asleep()
    before.record_tokens(FIRST_GAP - 1)
    assert DraftGate(previous=before).state is GateState.AWAKE
    awake = DraftGate(starts_awake=False, previous=DraftGate())
    awake.record_tokens(FIRST_GAP - 1)
    assert awake.state is GateState.ASLEEP


def dear_asleep(extra: float = 0.0, cost: float = 3.0) -> DraftGate:
    """A gate that fell asleep because draft steps became expensive."""
    gate = DraftGate()
    while gate.is_awake:
        gate.record_step(step(extra, cost), is_dear=True)
    return gate


def test_a_drafter_that_became_dear_is_tried_in_single_steps() -> None:
    gate = dear_asleep()
    for promised_speed, gap in ((0.75, TRIAL_GAPS[0]), (0.4, 12), (0.01, 27), (0.5, TRIAL_GAPS[1])):
        for _ in range(gap - 1):
            gate.record_tokens(1)
        assert not gate.is_awake
        gate.record_tokens(1)
        assert gate.is_trial
        assert gate.probe_length == 1
        gate.record_probe(promised_speed)
        assert not gate.is_awake, "one step is enough"


def test_a_trial_that_promises_much_is_a_probe() -> None:
    gate = dear_asleep()
    probe(gate, 1.2)
    assert gate.state is GateState.AWAKE
    assert gate.probe_length == 0


def test_after_many_tokens_a_probe_takes_the_place_of_a_trial() -> None:
    """What a text is worth may have changed; trials do not show it."""
    gate, num_tokens = dear_asleep(), 0
    while not gate.is_probing or gate.is_trial:
        assert num_tokens <= TRIED_TOKENS + TRIAL_GAPS[1]
        if gate.is_trial:
            gate.record_probe(0.9)
        else:
            gate.record_tokens(1)
            num_tokens += 1
    assert num_tokens >= TRIED_TOKENS
    assert gate.probe_length == PROBE_LENGTH
    probe(gate, 1.2)
    assert gate.state is GateState.AWAKE


def test_what_fell_asleep_while_it_was_dear_wakes_when_that_is_over() -> None:
    gate = dear_asleep()
    gate.end_trials()
    assert gate.state is GateState.AWAKE
    useless = asleep()
    useless.end_trials()
    assert useless.state is GateState.ASLEEP


def test_an_idle_drafter_sleeps_sooner_where_it_is_dear() -> None:
    gate = DraftGate()
    for _ in range(DEAR_IDLE_STEPS):
        assert gate.is_awake
        gate.record_step(step(0.0, 0.0, drafted=0), is_dear=True)
    assert gate.state is GateState.ASLEEP


def test_drafts_that_hardly_promise_anything_are_idle() -> None:
    gate = DraftGate()
    for _ in range(IDLE_STEPS):
        gate.record_step(step(0.1, 0.1), promised_speed=1.0)
    assert gate.state is GateState.ASLEEP
    gate = DraftGate()
    for n in range(4 * IDLE_STEPS):
        gate.record_step(step(0.1, 0.1), promised_speed=1.2 if n % IDLE_STEPS == 0 else 1.0)
    assert gate.state is GateState.AWAKE
