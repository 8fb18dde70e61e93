"""What `auto` makes of cost curves and drafters, beside plain decoding and the best fixed length in hindsight:

    python tests/measures/policy.py [PART OF A NAME ...] [--tokens N] [--seeds N]

Simulated (doubles/simulation.py), so that a change of the policy is judged in a minute, to the per cent. `fresh` is
the first half of a new engine's run, `later` the second, `kept` a new engine that knows what the run before it had
learned of acceptance. Fixed lengths are computed from the true chances and costs: one for the whole run, the best.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.hindsight import Hindsight
from doubles.simulated_machine import BF16, CLIFF, EXPERTS, GPU, Q4_0, Q8_0, Level, SimulatedMachine, drifting, steady
from doubles.simulation import (
    PRIMARY,
    Answer,
    DraftCosts,
    Profile,
    Simulation,
    Step,
    Stretch,
    Text,
    curve,
    plain_text,
    speed,
)

CURVES = {"bf16": BF16, "q8_0": Q8_0, "q4_0": Q4_0, "cliff": CLIFF, "gpu": GPU, "experts": EXPERTS}
CHEAP, DEAR = DraftCosts(), DraftCosts(step_s=0.0035, row_s=0.0003, drafted_overhead_s=0.002)  # one row: 0.07 s

# like the embedded head on the embedded texts: sure of nearly everything, and right
EXCELLENT = Profile((0.998, 0.998, 0.998, 0.998, 0.997, 0.995, 0.993, 0.99), spread=1.5, hard=(0.08, 5.5))
GOOD = Profile((0.9, 0.88, 0.86, 0.84, 0.82, 0.8, 0.78, 0.76, 0.74, 0.72, 0.7))
MEDIOCRE = Profile((0.62, 0.58, 0.55, 0.52, 0.5))
USELESS = Profile((0.05,), spread=0.5, reported=(1.0, 2.0))
POOR = Profile((0.3,), reported=(1.0, 0.7))


def short(*profiles: Profile, seed: int = 1, lengths: tuple[int, int] = (32, 128)) -> list[Answer]:
    """Answers as people get them, of kinds in random order."""
    chance = random.Random(seed)
    return [Answer(chance.randint(*lengths), plain_text(chance.choice(profiles))) for _ in range(64)]


def long(*stretches: tuple[int, Profile]) -> list[Answer]:
    text = Text([Stretch(num, {PRIMARY: profile}) for num, profile in stretches])
    return [Answer(sum(num for num, _ in stretches), text)]


ANSWERS = {
    "excellent": short(EXCELLENT),
    "tiny": short(EXCELLENT, lengths=(8, 40)),
    "good": short(GOOD),
    "mediocre": short(MEDIOCRE),
    "mixed": short(EXCELLENT, GOOD, MEDIOCRE),
    "easy, hard": short(GOOD, POOR),
    "switches": long((300, GOOD), (300, POOR)),
    "late": [*short(USELESS, lengths=(8, 40))[:12], *short(GOOD, lengths=(8, 40))],
    "useless": short(USELESS),
    "useless, long": long((600, USELESS)),
}


@dataclass(frozen=True)
class Scenario:
    name: str
    ratios: Sequence[float]
    answers: Sequence[Answer]
    costs: DraftCosts = CHEAP
    level: Level = steady

    def machine(self, seed: int = 0) -> SimulatedMachine:
        return SimulatedMachine(seed=seed, ratios=curve(self.ratios), hiccups=0.02, level=self.level)

    def simulation(self, seed: int, kept: object | None = None) -> Simulation:
        return Simulation(
            self.machine(seed), {0: self.answers[0].text}, self.costs, answers=self.answers, seed=seed, kept=kept
        )

    def best_fixed(self) -> tuple[int, float]:
        """Length, and speed relative to plain decoding."""
        rates = self.fixed_rates()
        length = max(range(len(rates)), key=lambda n: rates[n])
        return length, rates[length] / rates[0]

    def fixed_rates(self) -> list[float]:
        """Return the tokens per second of every fixed length."""
        hindsight = Hindsight(SimulatedMachine(ratios=curve(self.ratios)), self.costs)
        return hindsight.fixed_rates(Text([s for answer in self.answers for s in shares(answer)]))

    def fixed_s(self, length: int) -> float:
        """Return the seconds of a step with so many drafted tokens."""
        draft_s = length * self.costs.draft_s(PRIMARY, 1)
        return self.machine().true_seconds(1 + length) + draft_s + self.costs.other_s(length > 0)


def shares(answer: Answer) -> list[Stretch]:
    """The stretches of an answer of its length."""
    period = sum(s.num_tokens for s in answer.text.stretches)
    return [Stretch(max(s.num_tokens * answer.num_tokens // period, 1), s.profiles) for s in answer.text.stretches]


def scenarios() -> list[Scenario]:
    found = [
        Scenario(f"{curve_name}, {text}{', expensive' if costs is DEAR else ''}", CURVES[curve_name], answers, costs)
        for curve_name in CURVES
        for text, answers in ANSWERS.items()
        for costs in ((CHEAP, DEAR) if text in ("excellent", "good", "mediocre") else (DEAR,))
    ]
    found += [
        Scenario(f"{curve_name}, mixed, drifting", CURVES[curve_name], ANSWERS["mixed"], DEAR, drifting)
        for curve_name in CURVES
    ]
    return found


@dataclass(frozen=True)
class Row:
    """Speeds relative to plain decoding."""

    scenario: Scenario
    length: int
    fixed: float
    fresh: float
    later: float
    kept: float
    begun: float  # after the first 64 tokens of a new engine

    @property
    def best(self) -> float:
        return max(self.fixed, 1.0)

    @property
    def is_useless(self) -> bool:
        return "useless" in self.scenario.name

    def line(self) -> str:
        figures = f"{self.length:>3} {self.fixed:6.2f} {self.fresh:6.2f} {self.later:6.2f}"
        parts = [self.fresh / self.best, self.later / self.best, self.kept / self.best]
        return f"{self.scenario.name:<28} {figures}   " + " ".join(f"{part:6.2f}" for part in parts)


HEAD = f"{'':<28} {'':>3} {'fixed':>6} {'fresh':>6} {'later':>6}   {'fresh':>6} {'later':>6} {'kept':>6}"
TITLE = f"{'':<28} {'relative to plain':>24}   {'to the best fixed':>20}"


def measure(scenario: Scenario, num_tokens: int, seeds: range) -> Row:
    length, fixed = scenario.best_fixed()
    fresh, later, kept, begun = [], [], [], []
    for seed in seeds:
        run = scenario.simulation(seed)
        first = run.run(num_tokens // 2)
        fresh.append(speed(first))
        later.append(speed(run.run(num_tokens // 2)))
        begun.append(speed(steps_beyond(first, 64)))
        again = scenario.simulation(seed + 100, kept=run.state())
        kept.append(speed(again.run(num_tokens // 2)))
    means = [statistics.mean(speeds) for speeds in (fresh, later, kept, begun)]
    return Row(scenario, length, fixed, *means)


def steps_beyond(steps: Sequence[Step], num_tokens: int) -> Sequence[Step]:
    made = 0
    for at, step in enumerate(steps):
        if made >= num_tokens:
            return steps[at:]
        made += step.num_tokens
    return steps


def summary(rows: Sequence[Row]) -> str:
    out = []
    for name in ("fresh", "later", "kept"):
        parts = sorted((getattr(row, name) / row.best, row.scenario.name) for row in rows)
        mean = statistics.mean(part for part, _ in parts)
        worst = ", ".join(f"{part:.2f} {of}" for part, of in parts[:3])
        out.append(f"{name:<6} mean {mean:.3f}, worst {worst}")
    useless = [row.begun for row in rows if row.is_useless]
    if useless:
        out.append(f"useless heads, after 64 tokens: {min(useless):.3f} of plain or more")
    return "\n".join(out)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tokens", type=int, default=2400)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    chosen = [s for s in scenarios() if all(name in s.name for name in asked.names)]
    rows = []
    sys.stdout.write(f"{TITLE}\n{HEAD}\n")
    for scenario in chosen:
        rows.append(measure(scenario, asked.tokens, range(asked.seeds)))
        sys.stdout.write(rows[-1].line() + "\n")
        sys.stdout.flush()
    sys.stdout.write(summary(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
