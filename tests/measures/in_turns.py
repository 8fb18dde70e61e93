"""Ways to draft against one another, in one engine: in_turns.py trees|rests TARGET [--draft FILE] [--prompts FILE]

The engine is in this process, has one slot, and answers each prompt in all ways in turns, which share its learned costs
and acceptance. Printed are tokens a second relative to the first way, with 95 % intervals, and acceptance lengths.

trees  chains; combs, whose siblings stay leaves; trees that branch anywhere
rests  what was drafted and not sent is drafted anew; it is kept; all of a block is sent at once

    python tests/measures/worse_head.py ~/.cache/eaglelocal/generated/demo-300m-bf16-*-head.gguf 0.6 worse.gguf
    python tests/measures/in_turns.py trees demo@300m:q4_0 --draft worse.gguf
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MethodType

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts, group_by_category, read_prompts
from eaglelocal.bench.results import bound_mean
from eaglelocal.core.events import Failed, Finished, Tokens
from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Spec, fixed_spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve
from eaglelocal.speculation.policy.controller import Controller

WAYS = {"trees": ("chains", "combs", "trees"), "rests": ("anew", "kept", "all")}
WARM_UP = 6  # prompts


@dataclass
class Total:
    """What one way gave: tokens a second by kind and prompt, and all drafts together."""

    speeds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    num_drafts: int = 0
    num_accepted: int = 0
    num_rows: int = 0

    @property
    def acceptance_length(self) -> float:
        return 1.0 + self.num_accepted / max(self.num_drafts, 1)


def choose_way(engine: Engine, way: str) -> Spec:
    """Let the engine draft that way, and return the spec of requests for it."""
    controller = engine.controller
    if way in WAYS["trees"]:
        branches = engine.context.num_branches if way != "chains" else 0
        controller._max_siblings = branches
        controller._drafters = replace(controller._drafters, num_branches=branches if way == "trees" else 0)
    else:
        keep = Controller._keep_rests if way == "kept" else lambda controller, drafts: None
        controller._keep_rests = MethodType(keep, controller)  # type: ignore[method-assign]
    return fixed_spec(controller._drafters.block_size) if way == "all" else AUTO_SPEC


def answer(engine: Engine, prompt: BenchPrompt, name: str, spec: Spec, max_tokens: int) -> tuple[float, Finished]:
    """Return the tokens a second after the first step of the answer, and its end."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    engine.submit(ChatRequest(id=name, messages=prompt.messages, params=params, owner=name, spec=spec))
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


def measure(
    engine: Engine, ways: Sequence[str], prompts: list[BenchPrompt], num_rounds: int, max_tokens: int
) -> dict[str, Total]:
    totals = {way: Total() for way in ways}
    for round_ in range(num_rounds + 1):
        for number, prompt in enumerate(prompts if round_ else prompts[:WARM_UP]):
            turn = (number + round_) % len(ways)
            for way in [*ways[turn:], *ways[:turn]]:
                spec = choose_way(engine, way)
                speed, finished = answer(engine, prompt, f"{way}-{round_}-{number}", spec, max_tokens)
                if round_:
                    total, stats = totals[way], finished.speculation
                    total.speeds.setdefault((prompt.category, number), []).append(speed)
                    total.num_drafts += stats.drafts
                    total.num_accepted += stats.accepted_tokens
                    total.num_rows += stats.draft_tokens
    return totals


def show(totals: dict[str, Total]) -> None:
    first, *_ = totals
    for way, total in totals.items():
        by_kind: dict[str, list[float]] = {}
        for (kind, number), speeds in total.speeds.items():
            by_kind.setdefault(kind, []).append(sum(speeds) / sum(totals[first].speeds[kind, number]))
        said = bound_mean(list(by_kind.values()))
        rows = total.num_rows / max(total.num_drafts, 1)
        sys.stdout.write(
            f"{way:7} {said.mean:.3f} ({said.low:.3f} to {said.high:.3f}) of {first},"
            f" acceptance length {total.acceptance_length:.2f}, {rows:.1f} rows a draft\n"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("ways", choices=sorted(WAYS))
    parser.add_argument("target")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--most", type=int, default=24, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()
    options = RunOptions(target=given.target, draft=given.draft, parallel=1)
    plan = resolve(options, on_progress=lambda share, what: None)
    engine = build(replace(plan, n_ctx=2048, spec=AUTO_SPEC, unified=True), lambda progress: None)
    prompts = read_prompts(given.prompts) if given.prompts else builtin_prompts([], 4)
    show(measure(engine, WAYS[given.ways], spread(prompts, given.most), given.rounds, given.max_tokens))
    engine.close()
