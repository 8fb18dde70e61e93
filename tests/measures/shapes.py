"""Does changing the number of rows cost anything of its own? python tests/measures/shapes.py [TARGET ...] [--pairs N]

llama.cpp rebuilds its graph where the shape of a decode is not that of the one before. The same decodes of three and
five rows, once sorted and once in turn: all that differs is how often the size changes. Blocks alternate, A B A B, and
the median of their ratios is printed, with what one change costs. Without targets: a small random one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.random_models import write_target

from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import RunOptions
from eaglelocal.engine.warmup import Warmup
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve

SORTED, IN_TURN = [3] * 8 + [5] * 8, [3, 5] * 8
MORE_CHANGES = 14  # of IN_TURN than of SORTED
MAX_ROWS = 5


def took(warming: Warmup, sizes: list[int]) -> float:
    return sum(warming.time_rows(rows) for rows in sizes)


def measure(name: str, plan: Plan, num_pairs: int) -> None:
    engine = build(plan, lambda _: None)
    ratios, sorted_s = [], []
    warming = Warmup(engine.context, (), max_outputs=MAX_ROWS)
    took(warming, IN_TURN)
    for pair in range(num_pairs):
        blocks = [SORTED, IN_TURN] if pair % 2 == 0 else [IN_TURN, SORTED]
        seconds = {id(block): took(warming, block) for block in blocks}
        ratios.append(seconds[id(IN_TURN)] / seconds[id(SORTED)])
        sorted_s.append(seconds[id(SORTED)])
    engine.close()
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=num_pairs)) for _ in range(999))
    ratio, step_s = statistics.median(ratios), statistics.median(sorted_s) / len(SORTED)
    change = (ratio - 1.0) * len(SORTED) / MORE_CHANGES  # of a step
    sys.stdout.write(
        f"{name:<16} step {step_s * 1000:7.2f} ms, in turn / sorted {ratio:.4f}"
        f" ({medians[25]:.4f} to {medians[973]:.4f}),"
        f" one change {change * 100:.2f} % of a step, {change * step_s * 1e6:.0f} us\n"
    )
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--threads", type=int, default=None)
    asked = parser.parse_args()
    for target in asked.targets:
        options = RunOptions(target=target, threads=asked.threads)
        measure(target, resolve(options, on_progress=lambda fraction, what: None), asked.pairs)
    if not asked.targets:
        with tempfile.TemporaryDirectory() as folder:
            target_file = write_target(Path(folder) / "target.gguf")
            plan = Plan(target=target_file, target_label="random", draft_kind="ngram", n_ctx=256, threads=asked.threads)
            measure("random", plan, asked.pairs * 20)
    return 0


if __name__ == "__main__":
    sys.exit(main())
