"""What `auto` makes of the tokens that follow a time in which another program slowed the machine:

    python tests/measures/slow_minutes.py [PART OF A NAME ...] [--seeds N]

Simulated (doubles/simulation.py): an engine writes 600 tokens, then something is slow (doubles/slow_time.py), and the
500 tokens after it are rated: `after` is their speed relative to the best fixed length, `never` the same where nothing
was slow. The last columns compare with `never`: the 500 tokens, the first 64 of them, those behind, and the worst run.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.simulation import Simulation, Step, beyond, speed
from doubles.slow_time import SlowTime
from policy import ANSWERS, CHEAP, CURVES, DEAR, Scenario

BEFORE, AFTER, RECOVERY = 600, 500, 64  # tokens
TINY_S = 0.001  # a time in which one step begins, if it begins with one
SLOW_TIMES = {
    "all 1.5x, 2 s": SlowTime(seconds=2.0, decode=1.5, draft=1.5, other=1.5),
    "all 3x, 2 s": SlowTime(seconds=2.0, decode=3.0, draft=3.0, other=3.0),
    "all 3x, 10 s": SlowTime(seconds=10.0, decode=3.0, draft=3.0, other=3.0),
    "all 2x, 60 s": SlowTime(seconds=60.0, decode=2.0, draft=2.0, other=2.0),
    "all 2x, 5 s, 4 times": SlowTime(seconds=5.0, decode=2.0, draft=2.0, other=2.0, times=4),
    "uneven, 5 s": SlowTime(seconds=5.0, decode=2.0, draft=2.0, other=2.0, spread=0.8),
    "uneven, 60 s": SlowTime(seconds=60.0, decode=2.0, draft=2.0, other=2.0, spread=0.8),
    "uneven, 5 s, 4 times": SlowTime(seconds=5.0, decode=2.0, draft=2.0, other=2.0, spread=0.8, times=4),
    "from 2 rows 2x, 10 s": SlowTime(seconds=10.0, decode=2.0, least_rows=2),
    "from 4 rows 3x, 10 s": SlowTime(seconds=10.0, decode=3.0, least_rows=4),
    "from 2 rows 3x, 60 s": SlowTime(seconds=60.0, decode=3.0, least_rows=2),
    "from 4 rows 3x, 60 s": SlowTime(seconds=60.0, decode=3.0, least_rows=4),
    "head 3x, 10 s": SlowTime(seconds=10.0, draft=3.0),
    "head 20x, 10 s": SlowTime(seconds=10.0, draft=20.0),
    "head 20x, 60 s": SlowTime(seconds=60.0, draft=20.0),
    "clock jumps in a decode": SlowTime(seconds=TINY_S, decode=1e4),
    "clock jumps in a draft": SlowTime(seconds=TINY_S, draft=1e6),
    "clock jumps elsewhere": SlowTime(seconds=TINY_S, other=1e6),
}


def run_slowly(scenario: Scenario, slow_time: SlowTime, seed: int) -> tuple[int, list[Step]]:
    """Return the tokens written until the end of the slow time, and the steps after it."""
    run = scenario.simulation(seed)
    run.run(BEFORE)
    begin_s = run.machine.clock_s
    if slow_time.seconds > TINY_S:
        begin_s += random.Random(seed).uniform(0.0, 5.0)
    run.machine.slow_time = replace(slow_time, begin_s=begin_s)
    while run.machine.clock_s < run.machine.slow_time.end_s:
        run.steps.append(run.step())
    return sum(step.num_tokens for step in run.steps), run.run(AFTER)


@dataclass(frozen=True)
class Row:
    """Speeds relative to the best fixed length."""

    name: str
    never: float
    after: float
    at_once: float  # relative to never, the first RECOVERY tokens
    later: float
    worst: float

    @property
    def share(self) -> float:
        return self.after / self.never

    def line(self) -> str:
        figures = (self.never, self.after, self.share, self.at_once, self.later, self.worst)
        return f"{self.name:<50}" + "".join(f"{figure:8.2f}" for figure in figures)


HEAD = f"{'':<50}" + "".join(f"{title:>8}" for title in ("never", "after", "share", "first64", "behind", "worst"))


def measure(scenario: Scenario, slow_names: Sequence[str], seeds: range) -> list[Row]:
    best = max(scenario.best_fixed()[1], 1.0)
    undisturbed = [scenario.simulation(seed) for seed in seeds]
    for run in undisturbed:
        run.run(BEFORE + AFTER)
    return [measure_one(scenario, slow_name, undisturbed, best) for slow_name in slow_names]


def measure_one(scenario: Scenario, slow_name: str, undisturbed: Sequence[Simulation], best: float) -> Row:
    rates: dict[str, list[float]] = defaultdict(list)
    for seed, beside in enumerate(undisturbed):
        num_before, after = run_slowly(scenario, SLOW_TIMES[slow_name], seed)
        num_missing = num_before + AFTER - sum(step.num_tokens for step in beside.steps)
        if num_missing > 0:
            beside.run(num_missing)
        same = up_to(beyond(beside.steps, num_before), AFTER)  # of the same texts
        for title, steps in (("after", after), ("never", same)):
            rates[title].append(speed(steps) / best)
            rates[title + " first"].append(speed(up_to(steps, RECOVERY)) / best)
            rates[title + " behind"].append(speed(beyond(steps, RECOVERY)) / best)
    means = {title: statistics.mean(each) for title, each in rates.items()}
    return Row(
        f"{scenario.name}: {slow_name}",
        means["never"],
        means["after"],
        means["after first"] / means["never first"],
        means["after behind"] / means["never behind"],
        min(rates["after"]) / means["never"],
    )


def up_to(steps: Sequence[Step], num_tokens: int) -> Sequence[Step]:
    return steps[: len(steps) - len(beyond(steps, num_tokens))]


def scenarios() -> list[Scenario]:
    return [
        Scenario(f"{curve}, {text}{', dear' if costs is DEAR else ''}", CURVES[curve], ANSWERS[text], costs)
        for curve, text, costs in (
            ("bf16", "excellent", DEAR),
            ("bf16", "good", CHEAP),
            ("bf16", "mixed", DEAR),
            ("q8_0", "excellent", DEAR),
            ("q4_0", "good", DEAR),
            ("gpu", "good", CHEAP),
            ("cliff", "excellent", DEAR),
        )
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=4)
    asked = parser.parse_args()
    sys.stdout.write(HEAD + "\n")
    rows: list[Row] = []
    for scenario in scenarios():
        slow_names = [each for each in SLOW_TIMES if all(part in f"{scenario.name}: {each}" for part in asked.names)]
        if slow_names:
            rows += (found := measure(scenario, slow_names, range(asked.seeds)))
            sys.stdout.write("".join(row.line() + "\n" for row in found))
            sys.stdout.flush()
    for title, worst in (
        ("share", min(rows, key=lambda row: row.share)),
        ("run", min(rows, key=lambda row: row.worst)),
    ):
        sys.stdout.write(f"worst {title}: {worst.line()}\n")
    sys.stdout.write(f"mean share {statistics.mean(row.share for row in rows):.3f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
