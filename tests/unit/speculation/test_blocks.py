"""A drafter that proposes a whole block, under `auto`: near the best fixed length, never much slower than plain."""

from __future__ import annotations

import pytest
from doubles.simulated_machine import BF16, Q4_0, SimulatedMachine
from doubles.simulation import PRIMARY, DraftCosts, Profile, Simulation, beyond, curve, plain_text, rate, speed
from doubles.tiers import some_of

from eaglelocal.core.request import AUTO_SPEC, Spec, fixed_spec
from eaglelocal.speculation.policy.slot_policy import DrafterSet

pytestmark = pytest.mark.full

LENGTHS = (0, 2, 3, 7, 15)
CURVES = {"bf16": BF16, "q4_0": Q4_0}
TEXTS = {"easy": (0.95, 0.94), "fair": (0.8, 0.75, 0.7), "hard": (0.5, 0.35, 0.2), "hopeless": (0.05,)}


def run(name: str, rates: tuple[float, ...], step_s: float, spec: Spec, *, block: int, seed: int = 0) -> Simulation:
    simulation = Simulation(
        SimulatedMachine(seed, curve(CURVES[name])),
        {0: plain_text(Profile(rates))},
        costs=DraftCosts(step_s=step_s),
        spec=spec,
        drafters=DrafterSet(PRIMARY, block_size=block),
        seed=seed,
    )
    simulation.run(2500)
    return simulation


@pytest.mark.parametrize(
    ("block", "step_s"), some_of([(15, 0.002), (15, 0.02), (7, 0.01), (3, 0.02)], rest=pytest.mark.slow)
)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", CURVES)
def test_auto_is_near_the_best_length(name: str, text: str, block: int, step_s: float) -> None:
    lengths = [length for length in LENGTHS if length <= block]
    best = max(rate(run(name, TEXTS[text], step_s, fixed_spec(length), block=block).steps) for length in lengths)
    mine = run(name, TEXTS[text], step_s, AUTO_SPEC, block=block)
    assert rate(beyond(mine.steps, 64)) >= 0.95 * best
    assert speed(beyond(mine.steps, 64)) >= 0.95
