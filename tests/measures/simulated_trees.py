"""Trees that branch anywhere against combs and chains: simulated_trees.py [--seeds N] [--slots N] [--rates R ...]

The policy drives a simulated head (doubles/simulation.py) whose first choice is right in 50 to 95 % of all places, the
second in 45 % of the others, the third in 30 % of what is left. Machines are the cost curves of processors, and cards
whose rows are nearly free up to 8, 16 and 64. All slots answer at once. Printed are tokens a second relative to chains
over the same texts, with 95 % intervals, and acceptance lengths.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.simulated_machine import BF16, CLIFF, GPU, Q4_0, Q8_0, SimulatedMachine
from doubles.simulation import PRIMARY, DraftCosts, Profile, Simulation, curve, plain_text, speed

from eaglelocal.bench.results import bound_mean
from eaglelocal.speculation.policy.slot_policy import DrafterSet

FREE_TO_16 = (*(1.0 + 0.01 * n for n in range(16)), *(1.15 * n / 16 for n in range(17, 66)))
FREE_TO_64 = tuple(1.0 + 0.004 * n for n in range(64))
CARD = DraftCosts(step_s=0.0035, row_s=0.0003, plain_overhead_s=0.0005)  # one row of the target: 0.07 s
PROCESSOR = DraftCosts(step_s=0.003, row_s=0.002)
MACHINES = {
    "bf16": (BF16, PROCESSOR),
    "q8_0": (Q8_0, PROCESSOR),
    "q4_0": (Q4_0, PROCESSOR),
    "cliff": (CLIFF, PROCESSOR),
    "card, rows free to 8": (GPU, CARD),
    "card, rows free to 16": (FREE_TO_16, CARD),
    "card, rows free to 64": (FREE_TO_64, CARD),
}
SHAPES = {"chains": (0, 0), "combs": (8, 0), "trees": (8, 8)}  # siblings that are sent, branches that are drafted


def run(
    ratios: Sequence[float], costs: DraftCosts, rate: float, shape: str, seed: int, given: argparse.Namespace
) -> tuple[float, float]:
    """Return the speed relative to plain decoding, and the tokens of a slot's step."""
    max_siblings, num_branches = SHAPES[shape]
    simulation = Simulation(
        SimulatedMachine(seed=seed, ratios=curve(ratios), hiccups=0.02),
        {slot: plain_text(Profile((rate,), second=0.45, third=0.3)) for slot in range(given.slots)},
        costs=costs,
        drafters=DrafterSet(PRIMARY, num_branches=num_branches),
        answer_tokens=600,
        max_siblings=max_siblings,
        seed=seed,
        paired=True,
    )
    simulation.run(600 * given.slots)
    steps = simulation.run(given.tokens * given.slots)
    return speed(steps), sum(step.num_tokens for step in steps) / len(steps) / given.slots


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=3000, help="of a slot, after its first 600")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 0.65, 0.8, 0.95])
    parser.add_argument("--machines", nargs="+", default=list(MACHINES), choices=list(MACHINES))
    given = parser.parse_args()
    for name in given.machines:
        ratios, costs = MACHINES[name]
        for rate in given.rates:
            found = {
                shape: [run(ratios, costs, rate, shape, seed, given) for seed in range(given.seeds)] for shape in SHAPES
            }
            chains = [one for one, _ in found["chains"]]
            said = [f"{name:22} {rate:4}"]
            for shape, each in found.items():
                length = sum(tokens for _, tokens in each) / len(each)
                bound = bound_mean([[one / base for (one, _), base in zip(each, chains, strict=True)]])
                share = "" if shape == "chains" else f"{bound.mean:.3f} ({bound.low:.3f} to {bound.high:.3f}), "
                said.append(f"{shape} {share}{length:.2f}")
            sys.stdout.write("; ".join(said) + "\n")
            sys.stdout.flush()
