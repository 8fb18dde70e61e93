"""What looking for drafts that never come costs: idle_lookups.py TARGET [--answers N] [--prompts FILE]

Answers are written with lookup alone, on `auto` and plainly in turn, a block of steps each, in one engine. Printed is
the ratio of the speeds, auto / plain, over pairs of neighbouring blocks in which nothing was drafted, with its 95 %
interval; then how much longer a step takes outside llama.cpp. Exits 1 where `auto` loses more than BOUND for certain.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from eaglelocal.bench.bench_prompts import builtin_prompts, read_prompts
from eaglelocal.bench.results import bound_mean
from eaglelocal.core.events import Tokens
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest, Spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve

SETTLING = 16  # steps before a block, in which costs and finds of the new policy settle
BLOCK = 48  # steps
BLOCKS_PER_ANSWER = 4
BOUND = 0.995
OUTLIER = 1.5  # times the median of a block
TEMPERATURE = 0.8  # so that no answer falls into a loop, which lookup would be glad of


@dataclass(frozen=True)
class Block:
    """Steps with one spec. Seconds are means, without steps that took far longer than most."""

    step_s: float
    host_s: float
    num_drafted: int


def run_block(engine: Engine, spec: Spec) -> Block | None:
    """Run a block of steps; None if the answer ends in it."""
    engine.set_spec(spec)
    for _ in range(SETTLING):
        engine.step()
        if not engine.has_work:
            return None
    steps, hosts, drafted = [], [], engine._timing.counter.draft_tokens
    for _ in range(BLOCK):
        host_s, started_at = engine._timing.totals.host_s, time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - started_at)
        hosts.append(engine._timing.totals.host_s - host_s)
        if not engine.has_work:
            return None
    usual = [n for n, seconds in enumerate(steps) if seconds < OUTLIER * statistics.median(steps)]
    step_s, host_s = (statistics.fmean(each[n] for n in usual) for each in (steps, hosts))
    return Block(step_s, host_s, engine._timing.counter.draft_tokens - drafted)


def answer(engine: Engine, request: ChatRequest) -> Iterator[tuple[Block, Block]]:
    """Yield pairs of neighbouring blocks (auto, plain) of one answer."""
    engine.submit(request)
    while not any(isinstance(event, Tokens) for event in engine.step()):
        pass
    for number in range(BLOCKS_PER_ANSWER // 2):
        order = (AUTO_SPEC, OFF) if number % 2 == 0 else (OFF, AUTO_SPEC)
        blocks = {spec: run_block(engine, spec) for spec in order}
        auto, plain = blocks[AUTO_SPEC], blocks[OFF]
        if auto is None or plain is None:
            break
        yield auto, plain
    engine.cancel(request.id)
    while engine.has_work:
        engine.step()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--prompts", type=Path)
    given = parser.parse_args()
    plan = resolve(RunOptions(target=given.target, draft="ngram"), on_progress=lambda share, what: None)
    engine = build(replace(plan, n_ctx=2048, num_slots=1), lambda progress: None)
    params = SamplingParams(
        temperature=TEMPERATURE, seed=1, ignore_eos=True, max_tokens=(SETTLING + BLOCK) * (BLOCKS_PER_ANSWER + 1)
    )
    prompts = read_prompts(given.prompts) if given.prompts else builtin_prompts(["chat"], given.answers)
    pairs: list[tuple[Block, Block]] = []
    num_drafted = 0
    for number, prompt in enumerate(prompts[: given.answers]):
        request = ChatRequest(
            id=str(number), messages=prompt.messages, tokens=prompt.tokens, params=params, owner=str(number)
        )
        for auto, plain in answer(engine, request):
            num_drafted += auto.num_drafted > 0
            if not auto.num_drafted:
                pairs.append((auto, plain))
    engine.close()
    bound = bound_mean([[plain.step_s / auto.step_s for auto, plain in pairs]])
    host_us = statistics.median(auto.host_s - plain.host_s for auto, plain in pairs) * 1e6
    step_ms = statistics.median(plain.step_s for _, plain in pairs) * 1e3
    print(
        f"{given.target}: auto / plain {bound.mean:.4f} ({bound.low:.4f} to {bound.high:.4f}) over {len(pairs)} pairs "
        f"of {BLOCK} steps of {step_ms:.2f} ms ({num_drafted} more had drafts); outside llama.cpp {host_us:+.0f} µs"
    )
    return 0 if bound.high >= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
