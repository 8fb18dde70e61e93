"""Drafters whose steps cost much of a decode: what cannot pay is tried rarely, and found soon enough when it can."""

from __future__ import annotations

import statistics

import pytest
from doubles.simulated_machine import BF16, Q4_0, SimulatedMachine
from doubles.simulation import PRIMARY, DraftCosts, Profile, Simulation, curve, plain_text, speed
from doubles.tiers import some_of

from eaglelocal.speculation.costs.step_costs import READING_SHARE, StepCosts
from eaglelocal.speculation.policy.draft_switch import EXPLORED_SHARE
from eaglelocal.speculation.policy.slot_policy import TRIAL_LENGTH, TRIAL_STEPS, DrafterSet, GateState

pytestmark = pytest.mark.full

CURVES = {"bf16": BF16, "q4_0": Q4_0}
DECODE_S = 0.07
TEXTS = {
    "easy": plain_text(Profile((0.85,))),
    "fair": plain_text(Profile((0.55, 0.5, 0.45))),
    "hopeless": plain_text(Profile((0.05,), spread=0.5, reported=(1.0, 2.0))),
}
MODEL = DrafterSet(PRIMARY, max_unread=10**6)


def simulate(
    name: str, text: str, step: float, *, seed: int, answer_tokens: int, reading: float = 0.0, num_prompt: int = 0
) -> Simulation:
    """`step`, `reading`: of a draft step, and of a token of a text, in decodes of one row."""
    return Simulation(
        SimulatedMachine(seed=seed, ratios=curve(CURVES[name]), hiccups=0.02),
        {0: TEXTS[text]},
        DraftCosts(step_s=DECODE_S * step, reading_s=DECODE_S * reading),
        drafters=MODEL,
        seed=seed,
        answer_tokens=answer_tokens,
        num_prompt=num_prompt,
    )


@pytest.mark.parametrize("answer_tokens", [48, 600])
@pytest.mark.parametrize("step", some_of([0.6, 0.15, 0.3, 1.2, 2.0], 2, rest=pytest.mark.slow))
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", CURVES)
def test_no_price_of_a_draft_makes_auto_slower_than_plain_for_long(
    name: str, text: str, step: float, answer_tokens: int
) -> None:
    first, later = [], []
    for seed in range(2):
        run = simulate(name, text, step, seed=seed, answer_tokens=answer_tokens)
        first.append(speed(run.run(600)))
        later.append(speed(run.run(2400)))
    assert statistics.mean(first) > 0.94
    assert statistics.mean(later) > 0.97


@pytest.mark.parametrize("num_prompt", [100, 2000])
@pytest.mark.parametrize("text", ["easy", "hopeless"])
def test_a_prompt_is_not_read_for_drafts_that_cannot_pay(text: str, num_prompt: int) -> None:
    """A model as large as the target; a prompt of 2,000 tokens takes as long to read as 100 tokens to write."""
    run = simulate("bf16", text, 1.2, reading=0.05, num_prompt=num_prompt, seed=1, answer_tokens=100)
    run.run(200)  # the first prompts are read, before anything is known
    assert speed(run.run(4000)) > 0.96


def test_a_prompt_is_read_for_drafts_that_pay() -> None:
    run = simulate("bf16", "easy", 0.1, reading=0.01, num_prompt=100, seed=1, answer_tokens=100)
    assert speed(run.run(1000)) > 1.5
    assert run.controller.state(0)[0] is GateState.AWAKE


@pytest.mark.parametrize("step", [0.15, 0.3])
def test_a_dear_drafter_wakes_when_its_drafts_become_good(step: float) -> None:
    """Within what trials may take: the draft steps of two, at their share of the time."""
    run = simulate("bf16", "hopeless", step, seed=2, answer_tokens=10**6)
    run.run(3000)
    assert run.controller.state(0)[0] is GateState.ASLEEP
    run.texts[0], made = TEXTS["easy"], 0
    while run.controller.state(0)[0] is not GateState.AWAKE:
        made += run.run(1)[0].num_tokens
        assert made < 2 * TRIAL_STEPS * TRIAL_LENGTH * step / EXPLORED_SHARE
    run.run(200)
    assert speed(run.run(600)) > 1.2


@pytest.mark.parametrize("num_slots", [1, 4])
def test_reading_for_a_hundredth_of_the_time_does_not_keep_it_asleep_for_good(num_slots: int) -> None:
    """What takes longer to read than trials may take waits for the next text."""
    run = Simulation(
        SimulatedMachine(seed=1, ratios=curve(BF16), hiccups=0.02),
        dict.fromkeys(range(num_slots), TEXTS["hopeless"]),
        DraftCosts(step_s=DECODE_S * 0.1, reading_s=DECODE_S * 0.005),
        drafters=MODEL,
        seed=1,
        leveled=num_slots > 1,
        answer_tokens=10**6,
    )
    run.run(3000 * num_slots)
    run.texts, made = dict.fromkeys(range(num_slots), TEXTS["easy"]), 0
    while run.controller.state(0)[0] is not GateState.AWAKE:
        made += run.run(1)[0].tokens[0]
        assert made < 8192


def test_what_reading_costs_is_measured_and_kept() -> None:
    costs = StepCosts()
    costs.calibrate({1: [DECODE_S] * 3})
    costs.learn_drafts("model", 1, [0.02])
    assert costs.reading_seconds("model") == pytest.approx(0.02 * READING_SHARE)
    costs.learn_reading("model", 100, 0.3)
    assert costs.reading_seconds("model") == pytest.approx(0.003)
    again = StepCosts()
    assert again.restore(costs.state())
    assert again.reading_seconds("model") == pytest.approx(0.003)
    old = {key: value for key, value in costs.state().items() if key != "reading"}
    assert StepCosts().restore(old)
