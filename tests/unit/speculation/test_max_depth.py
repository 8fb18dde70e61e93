"""A drafter that drafts a few tokens at most, one in each pass: MTP layers of which each drafts one."""

from __future__ import annotations

import pytest
from doubles.simulated_machine import BF16, Q4_0, SimulatedMachine
from doubles.simulation import PRIMARY, DraftCosts, Profile, Simulation, beyond, curve, plain_text, rate
from doubles.tiers import some_of

from eaglelocal.core.request import AUTO_SPEC, Spec, fixed_spec
from eaglelocal.speculation.policy.slot_policy import DrafterSet

MOST = 3
CURVES = {"bf16": BF16, "q4_0": Q4_0}


def run(name: str, accepted: float, spec: Spec, *, num_slots: int = 1) -> Simulation:
    simulation = Simulation(
        SimulatedMachine(1, curve(CURVES[name])),
        {slot: plain_text(Profile((accepted,))) for slot in range(num_slots)},
        costs=DraftCosts(step_s=0.006),
        spec=spec,
        drafters=DrafterSet(PRIMARY, max_depth=MOST),
        seed=1,
    )
    simulation.run(1500)
    return simulation


@pytest.mark.parametrize("spec", [AUTO_SPEC, fixed_spec(8)], ids=str)
@pytest.mark.parametrize("num_slots", [1, 3])
def test_no_draft_is_longer(spec: Spec, num_slots: int) -> None:
    steps = run("bf16", 0.95, spec, num_slots=num_slots).steps
    assert max(length for step in steps for length in step.drafted.values()) == MOST


@pytest.mark.parametrize("accepted", some_of([0.6, 0.3, 0.9]))
@pytest.mark.parametrize("name", CURVES)
def test_auto_is_near_the_best_length(name: str, accepted: float) -> None:
    best = max(rate(run(name, accepted, fixed_spec(length)).steps) for length in range(MOST + 1))
    assert rate(beyond(run(name, accepted, AUTO_SPEC).steps, 64)) >= 0.95 * best
