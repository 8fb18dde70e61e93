"""A lookahead costs little where all of its drafts are refused, and is soon sent where they are right."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import fmean

import pytest
from doubles.simulated_machine import BF16, Q4_0, SimulatedMachine
from doubles.simulation import LOOKUP, DraftCosts, Profile, Simulation, Stretch, Text, curve

from eaglelocal.drafters.lookahead import PAIR, PLACE, SINGLE
from eaglelocal.speculation.policy.slot_policy import DrafterSet

ANSWER = 48  # tokens
CURVES = {"bf16": BF16, "q4_0": Q4_0}
SOURCES, SHARES = (PAIR, SINGLE, PLACE), (0.3, 0.5, 0.2)


@dataclass(frozen=True)
class Guesses(Profile):
    """N-grams of the three sources, each right as often as `right` says."""

    right: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def draw(self, depth: int, chance: random.Random) -> tuple[float, float]:
        (source,) = chance.choices(range(3), SHARES)
        return self.right[source], SOURCES[source]


def first_speeds(name: str, right: tuple[float, float, float], num_answers: int) -> list[float]:
    """Return the speeds of engines' first answers relative to plain decoding."""
    guesses = Guesses((0.5,), found=0.8, right=right)
    speeds = []
    for seed in range(8):
        simulation = Simulation(
            SimulatedMachine(seed=seed, ratios=curve(CURVES[name])),
            {0: Text([Stretch(1, {LOOKUP: guesses})])},
            costs=DraftCosts(lookup_s=1e-5, plain_overhead_s=2e-4, drafted_overhead_s=2e-4),
            drafters=DrafterSet(lookups=(LOOKUP,)),
            answer_tokens=ANSWER,
            seed=seed,
        )
        steps = simulation.run(num_answers * ANSWER)
        plain_s = steps[0].plain_s * sum(step.num_tokens for step in steps)
        speeds.append(plain_s / sum(step.seconds for step in steps))
    return speeds


@pytest.mark.parametrize("name", CURVES)
def test_guesses_that_are_never_right_cost_less_than_a_percent_of_the_first_answer(name: str) -> None:
    assert fmean(first_speeds(name, (0.0, 0.0, 0.0), 1)) >= 0.99


def test_guesses_that_are_right_are_soon_sent() -> None:
    assert fmean(first_speeds("bf16", (0.7, 0.3, 0.15), 2)) >= 1.2
