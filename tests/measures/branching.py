"""Trees that branch anywhere against combs and chains: branching.py TARGET [--draft FILE] [--prompts FILE] [--rounds N]

One engine in this process, with one slot, answers each prompt with all three in turns: chains; combs, whose siblings
stay leaves; trees. They share the engine's learned costs and acceptance. Printed are tokens a second relative to
chains, with 95 % intervals, and the acceptance lengths.

    python tests/measures/worse_head.py ~/.cache/eaglelocal/generated/demo-300m-q4_0-*-head.gguf 0.6 worse.gguf
    python tests/measures/branching.py demo@300m:q4_0 --draft worse.gguf
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts, group_by_category, read_prompts
from eaglelocal.bench.statistics import bound_mean
from eaglelocal.core.events import Failed, Finished, Tokens
from eaglelocal.core.request import AUTO, ChatRequest
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.engine_builder import build
from eaglelocal.planning.resolve import resolve

SHAPES = ("chains", "combs", "trees")
WARM_UP = 6  # prompts


@dataclass
class Total:
    """What one shape of drafts gave: tokens a second by kind and prompt, and all drafts together."""

    speeds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    num_drafts: int = 0
    num_accepted: int = 0
    num_rows: int = 0

    @property
    def acceptance_length(self) -> float:
        return 1.0 + self.num_accepted / max(self.num_drafts, 1)


def set_shape(engine: Engine, shape: str) -> None:
    controller = engine._controller
    branches = engine._context.num_branches if shape != "chains" else 0
    controller._max_siblings = branches
    controller._drafters = replace(controller._drafters, num_branches=branches if shape == "trees" else 0)


def answer(engine: Engine, prompt: BenchPrompt, name: str, max_tokens: int) -> tuple[float, Finished]:
    """Return the tokens a second after the first step of the answer, and its end."""
    engine.submit(
        ChatRequest(
            id=name, messages=prompt.messages, params=SamplingParams(temperature=0.0, max_tokens=max_tokens), owner=name
        )
    )
    first_at, num_tokens, num_first = 0.0, 0, 0
    while True:
        for event in engine.step():
            if isinstance(event, Tokens):
                num_tokens += len(event.pieces)
                if not first_at:
                    first_at, num_first = time.perf_counter(), num_tokens
            elif isinstance(event, Finished):
                return (num_tokens - num_first) / (time.perf_counter() - first_at), event
            elif isinstance(event, Failed):
                raise SystemExit(event.message)


def spread(prompts: list[BenchPrompt], most: int) -> list[BenchPrompt]:
    """Return at most so many prompts, equally many of each kind."""
    kinds = group_by_category(prompts)
    return [prompt for kind in kinds.values() for prompt in kind[: max(most // len(kinds), 1)]]


def measure(engine: Engine, prompts: list[BenchPrompt], num_rounds: int, max_tokens: int) -> dict[str, Total]:
    totals = {shape: Total() for shape in SHAPES}
    for round_ in range(num_rounds + 1):
        for number, prompt in enumerate(prompts if round_ else prompts[:WARM_UP]):
            turn = (number + round_) % len(SHAPES)
            for shape in SHAPES[turn:] + SHAPES[:turn]:
                set_shape(engine, shape)
                speed, finished = answer(engine, prompt, f"{shape}-{round_}-{number}", max_tokens)
                if round_:
                    total, stats = totals[shape], finished.speculation
                    total.speeds.setdefault((prompt.category, number), []).append(speed)
                    total.num_drafts += stats.drafts
                    total.num_accepted += stats.accepted_tokens
                    total.num_rows += stats.draft_tokens
    return totals


def show(totals: dict[str, Total]) -> None:
    chains = totals["chains"]
    for shape, total in totals.items():
        by_kind: dict[str, list[float]] = {}
        for (kind, number), speeds in total.speeds.items():
            by_kind.setdefault(kind, []).append(sum(speeds) / sum(chains.speeds[kind, number]))
        said = bound_mean(list(by_kind.values()))
        rows = total.num_rows / max(total.num_drafts, 1)
        sys.stdout.write(
            f"{shape:7} {said.mean:.3f} ({said.low:.3f} to {said.high:.3f}) of chains,"
            f" acceptance length {total.acceptance_length:.2f}, {rows:.1f} rows a draft\n"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--most", type=int, default=24, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()
    options = RunOptions(target=given.target, draft=given.draft, parallel=1)
    plan = resolve(options, on_progress=lambda share, what: None)
    engine = build(replace(plan, n_ctx=2048, spec=AUTO), lambda progress: None)
    prompts = read_prompts(given.prompts) if given.prompts else builtin_prompts([], 4)
    show(measure(engine, spread(prompts, given.most), given.rounds, given.max_tokens))
    engine.close()
