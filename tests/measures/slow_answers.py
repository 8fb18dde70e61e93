"""Answers before, beside and after a busy process: python tests/measures/slow_answers.py [--target REF] [--answers N]

One engine answers questions in turn. While it writes the third one, and every sixth after it, two processes compute
for some seconds. Prints tokens per check (a decode of the target that makes at least one token) and tokens a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.demo.evaluate import SIX_KINDS
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.engine_builder import build
from eaglelocal.planning.resolve import resolve
from eaglelocal.speculation.policy.step_report import Change, StepReport

BUSY_EVERY, BUSY_AT = 6, 2  # answers


def compute(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sum(n * n for n in range(1000))


class Counter:
    """Counts the checks and tokens that a controller learns from."""

    def __init__(self, engine: Engine) -> None:
        self.num_checks = self.num_tokens = 0
        self._learn = engine._controller.learn
        engine._controller.learn = self._count  # type: ignore[method-assign]

    def _count(self, report: StepReport) -> list[Change]:
        if report.verdicts:
            self.num_checks += 1
            self.num_tokens += report.num_tokens
        return self._learn(report)


def answer(engine: Engine, at: int, prompt: BenchPrompt, max_tokens: int) -> str:
    """Return a line on the answer."""
    counter = Counter(engine)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    engine.submit(ChatRequest(id=str(at), messages=prompt.messages, params=params, owner=str(at)))
    begin_s = time.monotonic()
    while engine.has_work:
        engine.step()
    seconds = time.monotonic() - begin_s
    del engine._controller.learn
    per_check = counter.num_tokens / max(counter.num_checks, 1)
    return f"{counter.num_tokens:4} tokens, {per_check:5.2f} a check, {counter.num_tokens / seconds:6.1f} a second"


def run(prompts: Sequence[BenchPrompt], asked: argparse.Namespace) -> None:
    plan = resolve(RunOptions(target=asked.target), on_progress=lambda fraction, what: None)
    engine = build(plan, lambda _: None)
    for at, prompt in enumerate(prompts):
        is_busy = at % BUSY_EVERY == BUSY_AT
        busy = [multiprocessing.Process(target=compute, args=(asked.seconds,)) for _ in range(2 * is_busy)]
        for process in busy:
            process.start()
        line = answer(engine, at, prompt, asked.max_tokens)
        for process in busy:
            process.join()
        sys.stdout.write(f"{at + 1:3} {'busy' if is_busy else '':<5}{prompt.category:<12}{line}\n")
        sys.stdout.flush()
    engine.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="demo@300m:bf16")
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--max-tokens", type=int, default=128)
    asked = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    by_kind = builtin_prompts(SIX_KINDS, -(-asked.answers // len(SIX_KINDS)))
    num = len(by_kind) // len(SIX_KINDS)
    run([prompt for at in range(num) for prompt in by_kind[at::num]][: asked.answers], asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
