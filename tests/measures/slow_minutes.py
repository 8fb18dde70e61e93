"""What `auto` makes of the tokens that follow a time in which another program slowed the machine:

    python tests/measures/slow_minutes.py [PART OF A NAME ...] [--seeds N] [--jobs N]

Simulated (doubles/simulation.py): an engine writes 600 tokens, then something is slow (doubles/slow_time.py), and the
500 tokens after it are rated, beside two engines that write the same text where nothing was slow: `auto`, and the best
fixed length. Tokens are as hard in all three, so that chance weighs little; how much is in the lines `other noise`,
where nothing was slow and only the noise of the decodes was another.

    fixed     speed relative to the best fixed length
    share     relative to the `auto` where nothing was slow; then of the first 64 tokens, and of those behind
    +-        standard error of the share
    during    tokens a second while something was slow, relative to the best fixed length where nothing is
    worst     share of the worst run
    possible  share of a policy that knows everything but when the slow time ends: it goes on with the fixed length that
              is best meanwhile, tries what is slow for TRIED_SHARE of the time, and drafts best from the first try on
              that is not slow. Of texts without chance, by the mean time until that try.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.simulation import DraftCosts, Simulation, Step, beyond, rate, speed
from doubles.slow_time import SlowTime
from policy import ANSWERS, CHEAP, CURVES, DEAR, Scenario

from eaglelocal.core.request import AUTO_SPEC, Spec, fixed_spec

BEFORE, AFTER, RECOVERY = 600, 500, 64  # tokens
TRIED_SHARE = 0.15  # of the time, as the policy allows itself trials of a drafter
LEAST = 0.97  # share of the best fixed length that `auto` is to keep
NO_SLOW_TIME, OTHER_NOISE = "other noise", 1000  # the seed of that machine's noise is so much higher
TINY_S = 0.001  # a time in which one step begins, if it begins with one
SLOW_TIMES = {
    NO_SLOW_TIME: SlowTime(seconds=10.0),
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


def begin(scenario: Scenario, seed: int, spec: Spec = AUTO_SPEC, machine_seed: int | None = None) -> Simulation:
    machine = scenario.machine(seed if machine_seed is None else machine_seed)
    first = {0: scenario.answers[0].text}
    return Simulation(machine, first, scenario.costs, spec, answers=scenario.answers, seed=seed, paired=True)


def run_slowly(run: Simulation, slow_time: SlowTime, seed: int) -> tuple[int, list[Step]]:
    """Return the tokens written until the end of the slow time, and the steps after it."""
    run.run(BEFORE)
    begin_s = run.machine.clock_s
    if slow_time.seconds > TINY_S:
        begin_s += random.Random(seed).uniform(0.0, 5.0)
    run.machine.slow_time = replace(slow_time, begin_s=begin_s)
    while run.machine.clock_s < run.machine.slow_time.end_s:
        run.steps.append(run.step())
    return sum(step.num_tokens for step in run.steps), run.run(AFTER)


def write_the_same(run: Simulation, num_before: int) -> Sequence[Step]:
    """Return the steps of a run in which nothing was slow, for the AFTER tokens behind the first `num_before`."""
    num_missing = num_before + AFTER - sum(step.num_tokens for step in run.steps)
    if num_missing > 0:
        run.run(num_missing)
    return up_to(beyond(run.steps, num_before), AFTER)


def up_to(steps: Sequence[Step], num_tokens: int) -> Sequence[Step]:
    return steps[: len(steps) - len(beyond(steps, num_tokens))]


def possible_share(scenario: Scenario, slow_time: SlowTime) -> float:
    if slow_time.seconds <= TINY_S:
        return 1.0
    costs = scenario.costs
    slowed = replace(
        scenario,
        ratios=[
            each * (slow_time.decode if rows >= slow_time.least_rows else 1.0)
            for rows, each in enumerate(scenario.ratios, start=1)
        ],
        costs=DraftCosts(
            costs.step_s * slow_time.draft,
            costs.row_s * slow_time.draft,
            plain_overhead_s=costs.plain_overhead_s * slow_time.other,
            drafted_overhead_s=costs.drafted_overhead_s * slow_time.other,
        ),
    )
    calm, slow = scenario.fixed_rates(), slowed.fixed_rates()
    meanwhile = slow.index(max(slow))
    tried = range(max(slow_time.least_rows - 1, 1), len(slow))
    lost_s = min(slowed.fixed_s(length) * (1.0 - slow[length] / max(slow)) for length in tried)
    wait_s = lost_s / TRIED_SHARE / 2
    return AFTER / (wait_s * (max(calm) - calm[meanwhile]) + AFTER)


class Shares(NamedTuple):
    """Speeds after one slow time, relative to the best fixed length, and to `auto` where nothing was slow."""

    fixed: float
    share: float
    during: float  # tokens a second while it was slow, relative to the best fixed length where it is not
    first: float  # of the first RECOVERY tokens
    behind: float


def measure(scenario: Scenario, slow_names: Sequence[str], seed: int) -> dict[str, Shares]:
    never, fixed = begin(scenario, seed), begin(scenario, seed, fixed_spec(scenario.best_fixed()[0]))
    found = {}
    for name in slow_names:
        machine_seed = seed + OTHER_NOISE if name == NO_SLOW_TIME else seed
        run = begin(scenario, seed, AUTO_SPEC, machine_seed)
        num_before, after = run_slowly(run, SLOW_TIMES[name], seed)
        slow_time = run.machine.slow_time
        same = write_the_same(never, num_before)
        found[name] = Shares(
            speed(after) / speed(write_the_same(fixed, num_before)),
            speed(after) / speed(same),
            (num_before - BEFORE) / (slow_time.end_s - slow_time.begin_s) / rate(fixed.steps),
            speed(up_to(after, RECOVERY)) / speed(up_to(same, RECOVERY)),
            speed(beyond(after, RECOVERY)) / speed(beyond(same, RECOVERY)),
        )
    return found


class Row(NamedTuple):
    name: str
    fixed: float
    share: float
    error: float
    during: float
    first: float
    behind: float
    worst: float
    possible: float

    def line(self) -> str:
        return f"{self.name:<50}" + "".join(f"{figure:8.3f}" for figure in self[1:])


TITLES = ("fixed", "share", "+-", "during", "first64", "behind", "worst", "possible")
HEAD = f"{'':<50}" + "".join(f"{title:>9}" if title == "possible" else f"{title:>8}" for title in TITLES)


def summarize(name: str, runs: Sequence[Shares], possible: float) -> Row:
    fixed, share, during, first, behind = (statistics.mean(figures) for figures in zip(*runs, strict=True))
    shares = [run.share for run in runs]
    error = statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
    return Row(name, fixed, share, error, during, first, behind, min(shares), possible)


def scenarios() -> list[Scenario]:
    return [
        Scenario(f"{curve}, {text}{', expensive' if costs is DEAR else ''}", CURVES[curve], ANSWERS[text], costs)
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
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    sys.stdout.write(HEAD + "\n")
    rows: list[Row] = []
    with ProcessPoolExecutor(asked.jobs) as pool:
        for scenario in scenarios():
            names = [each for each in SLOW_TIMES if all(part in f"{scenario.name}: {each}" for part in asked.names)]
            if not names:
                continue
            runs = list(pool.map(partial(measure, scenario, names), range(asked.seeds)))
            found = [
                summarize(f"{scenario.name}: {name}", [run[name] for run in runs], possible_share(scenario, slow_time))
                for name, slow_time in SLOW_TIMES.items()
                if name in names
            ]
            sys.stdout.write("".join(row.line() + "\n" for row in found))
            sys.stdout.flush()
            rows += found
    sys.stdout.write(summary(rows))
    return 0


def summary(rows: Sequence[Row]) -> str:
    disturbed = [row for row in rows if not row.name.endswith(NO_SLOW_TIME)] or rows
    lines = []
    for title in ("fixed", "share", "first", "behind"):
        figures = sorted((getattr(row, title), row.name) for row in disturbed)
        worst = ", ".join(f"{figure:.3f} {name}" for figure, name in figures[:4])
        num_low = sum(figure < LEAST for figure, _ in figures)
        mean = statistics.mean(figure for figure, _ in figures)
        lines.append(f"{title:<7} mean {mean:.3f}, {num_low} of {len(figures)} under {LEAST}; worst {worst}\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
