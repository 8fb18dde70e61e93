"""Answers after a busy process, beside the same answers of an engine that never met one:

    python tests/measures/slow_answers.py [--target REF] [--times N] [--seconds S]

Two engines answer the same questions in turn. While one of them writes every sixth answer, two processes compute for
some seconds; the other writes that answer on the quiet machine. Prints the tokens a second of the first with a 95%
interval, relative to the other's, by how many answers ago it was: of the first 64 tokens and of all; and the tokens per
check (a decode of the target that makes at least one token) of both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from guide.evaluate import SIX_KINDS

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts
from eaglelocal.bench.results import bound_mean
from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Spec, fixed_spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve
from eaglelocal.speculation.policy.step_report import Change, StepReport

BUSY_EVERY, RECOVERY, LEAST_CHECKS = 6, 64, 8  # answers; tokens; of an answer that counts


class Pace(NamedTuple):
    first: float  # tokens a second, of the first RECOVERY tokens
    whole: float
    per_check: float


def compute(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sum(n * n for n in range(1000))


class Counter:
    """Counts the checks and tokens that a controller learns from, and when each was made."""

    def __init__(self, engine: Engine) -> None:
        self.num_checks = 0
        self.made: list[tuple[int, float]] = []  # tokens of a check, and its time
        self._learn = engine.controller.learn
        engine.controller.learn = self._count  # type: ignore[method-assign]

    def _count(self, report: StepReport) -> list[Change]:
        if report.verdicts:
            self.num_checks += 1
            self.made.append((report.num_tokens, time.monotonic()))
        return self._learn(report)


def answer(engine: Engine, name: str, prompt: BenchPrompt, max_tokens: int, spec: Spec) -> Pace | None:
    """Return how fast it was written; None if it is too short."""
    counter = Counter(engine)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    engine.submit(ChatRequest(id=name, messages=prompt.messages, params=params, owner=name, spec=spec))
    while engine.has_work:
        engine.step()
    del engine.controller.learn
    if len(counter.made) < LEAST_CHECKS:
        return None
    begin_s, num, first = counter.made[0][1], 0, 0.0
    for tokens, at_s in counter.made[1:]:  # the first check ends the prompt
        num += tokens
        if num <= RECOVERY or not first:
            first = num / (at_s - begin_s)
    return Pace(first, num / (counter.made[-1][1] - begin_s), num / max(counter.num_checks - 1, 1))


def run(prompts: Sequence[BenchPrompt], asked: argparse.Namespace) -> list[tuple[int, Pace, Pace]]:
    """Return for each answer how many answers ago the busy time was (0: meanwhile), and both paces."""
    plan = resolve(RunOptions(target=asked.target), on_progress=lambda fraction, what: None)
    disturbed, calm = (build(plan, lambda _: None) for _ in range(2))
    found = []
    for at, prompt in enumerate(prompts):
        ago = at % BUSY_EVERY
        order = (disturbed, calm) if at % 2 else (calm, disturbed)
        paces = {}
        for engine in order:
            is_busy = engine is disturbed and ago == 0 and at > 0
            busy = [multiprocessing.Process(target=compute, args=(asked.seconds,)) for _ in range(2 * is_busy)]
            for process in busy:
                process.start()
            end_s = time.monotonic() + asked.seconds * is_busy
            paces[engine] = answer(engine, str(at), prompt, asked.max_tokens, asked.spec)
            while time.monotonic() < end_s:  # the busy time is full of answers
                answer(engine, f"{at}+", prompt, asked.max_tokens, asked.spec)
            for process in busy:
                process.join()
        ours, theirs = paces[disturbed], paces[calm]
        if at >= BUSY_EVERY and ours is not None and theirs is not None:
            found.append((ago, ours, theirs))
    disturbed.close()
    calm.close()
    return found


def show(title: str, pairs: Sequence[tuple[Pace, Pace]]) -> None:
    first, whole = ([[getattr(a, name) / getattr(b, name) for a, b in pairs]] for name in ("first", "whole"))
    checks = [statistics.mean(pace.per_check for pace in side) for side in zip(*pairs, strict=True)]
    cells = [f"{b.mean:.2f} ({b.low:.2f} to {b.high:.2f})" for b in (bound_mean(first), bound_mean(whole))]
    print(f"{title:<22}{cells[0]:<24}{cells[1]:<24}{checks[0]:.2f} {checks[1]:.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="demo@300m:bf16")
    parser.add_argument("--times", type=int, default=12, help="busy times")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--spec", default="auto")
    asked = parser.parse_args()
    asked.spec = AUTO_SPEC if asked.spec == "auto" else fixed_spec(int(asked.spec))
    multiprocessing.set_start_method("spawn")
    num = (asked.times + 1) * BUSY_EVERY
    by_kind = builtin_prompts(SIX_KINDS, -(-num // len(SIX_KINDS)))
    each = len(by_kind) // len(SIX_KINDS)
    prompts = [prompt for at in range(each) for prompt in by_kind[at::each]][:num]
    # so that each kind of question comes at each distance from a busy time
    turned = [prompts[i - i % 6 + (i + i // 6) % 6] for i in range(len(prompts))]
    found = run(turned, asked)
    print(f"{'':<22}{'first 64 tokens':<24}{'whole answer':<24}tokens a check, both")
    for ago in range(BUSY_EVERY):
        pairs = [(a, b) for distance, a, b in found if distance == ago]
        show("meanwhile" if ago == 0 else f"{ago} answers after", pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
