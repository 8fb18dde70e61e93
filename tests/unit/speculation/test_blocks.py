"""A drafter that says a block at once, under `auto`: near the best fixed length, and never much slower than plain."""

from __future__ import annotations

import pytest
from doubles.simulated_machine import BF16, Q4_0, SimulatedMachine
from doubles.simulation import PRIMARY, DraftCosts, Profile, Simulation, beyond, curve, plain_text, rate, speed

from eaglelocal.core.request import AUTO, Spec, fixed
from eaglelocal.speculation.mind import Drafters

BLOCK = 15
LENGTHS = (0, 2, 4, 8, 15)
CURVES = {"bf16": BF16, "q4_0": Q4_0}
TEXTS = {"easy": (0.95, 0.94), "fair": (0.8, 0.75, 0.7), "hard": (0.5, 0.35, 0.2), "hopeless": (0.05,)}


def run(name: str, rates: tuple[float, ...], step_s: float, spec: Spec, *, slots: int = 1, seed: int = 0) -> Simulation:
    simulation = Simulation(
        SimulatedMachine(seed, curve(CURVES[name])),
        {slot: plain_text(Profile(rates)) for slot in range(slots)},
        costs=DraftCosts(step_s=step_s),
        spec=spec,
        drafters=Drafters(PRIMARY, at_once=BLOCK),
        seed=seed,
    )
    simulation.run(3000)
    return simulation


@pytest.mark.parametrize("step_s", [0.002, 0.02])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", CURVES)
def test_auto_is_near_the_best_length(name: str, text: str, step_s: float) -> None:
    best = max(rate(run(name, TEXTS[text], step_s, fixed(length)).steps) for length in LENGTHS)
    mine = run(name, TEXTS[text], step_s, AUTO)
    assert rate(beyond(mine.steps, 64)) >= 0.95 * best
    assert speed(beyond(mine.steps, 64)) >= 0.95
