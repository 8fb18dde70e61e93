"""Every drafter on one target: every_drafter.py TARGET DRAFT ... [--prompts FILE] [--most N] [--rounds N]

A DRAFT is a value of `--draft`. For each, an engine in this process with one slot answers prompts of all kinds with
`auto` and plainly in turns. A row of the table has the tokens of a check, the share of time that draft steps take and
their milliseconds for each draft that was sent, the share of steps whose rows each drafter proposed, and the gain over
plain decoding, in all and by kind.

    python tests/measures/every_drafter.py demo@1b:bf16 auto ngram ngram,lookahead HEAD.gguf
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from in_turns import answer, spread

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts, read_prompts
from eaglelocal.bench.results import bound_mean, geometric_mean
from eaglelocal.core.request import AUTO_SPEC, OFF
from eaglelocal.core.run_options import RunOptions, parse_draft
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import EagleLocalError
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.step_report import StepReport

WARM_UP = 3  # prompts


@dataclass
class Watch:
    """What the engine's steps were made of, while `is_on`."""

    is_on: bool = False
    steps: Counter[str] = field(default_factory=Counter)  # by the drafter that proposed their rows; empty: none
    seconds: float = 0.0
    draft_s: float = 0.0
    num_drafts: int = 0
    num_accepted: int = 0

    def attach(self, controller: Controller) -> None:
        learn, learn_plain = controller.learn, controller.learn_plain

        def watched(report: StepReport) -> object:
            self.add(report)
            return learn(report)

        def watched_plain(report: StepReport) -> object:
            self.add(report)
            return learn_plain(report)

        controller.learn, controller.learn_plain = watched, watched_plain  # type: ignore[assignment, method-assign]

    def add(self, report: StepReport) -> None:
        if not self.is_on or report.num_prefill_rows:
            return
        self.seconds += report.seconds
        self.draft_s += report.draft_s
        for draft, verdict in report.verdicts.values():
            self.steps[draft.drafter if len(draft) else ""] += 1
            self.num_drafts += bool(len(draft))
            self.num_accepted += verdict.num_accepted if len(draft) else 0

    def __str__(self) -> str:
        length = 1 + self.num_accepted / max(self.num_drafts, 1)
        total = max(self.steps.total(), 1)
        shares = ", ".join(f"{name} {count / total:.0%}" for name, count in self.steps.most_common() if name)
        share, draft_s = self.draft_s / max(self.seconds, 1e-9), self.draft_s / max(self.num_drafts, 1)
        return f"{length:.2f} | {share:.0%}, {1000 * draft_s:.1f} ms | {shares or 'none'}"


def measure(
    engine: Engine, prompts: Sequence[BenchPrompt], num_rounds: int, max_tokens: int
) -> tuple[Watch, dict[str, list[float]]]:
    """Return what the drafted steps were made of, and the gains of all prompts by kind."""
    watch, gains = Watch(), dict[str, list[float]]()
    watch.attach(engine.controller)
    for round_ in range(num_rounds + 1):
        for number, prompt in enumerate(prompts if round_ else prompts[:WARM_UP]):
            speeds = {}
            for spec in (AUTO_SPEC, OFF) if (number + round_) % 2 else (OFF, AUTO_SPEC):
                watch.is_on = round_ > 0 and spec is AUTO_SPEC
                name = f"{spec}-{round_}-{number}"
                speeds[spec], _ = answer(engine, prompt, name, spec, max_tokens)
            if round_:
                gains.setdefault(prompt.category, []).append(speeds[AUTO_SPEC] / speeds[OFF])
    return watch, gains


def show(target: str, draft: str, prompts: Sequence[BenchPrompt], num_rounds: int, max_tokens: int) -> None:
    try:
        sources = parse_draft(draft)
        options = RunOptions(target=target, draft=sources.model, lookups=sources.lookups, parallel=1)
        plan = resolve(options, on_progress=lambda share, what: None)
        engine = build(replace(plan, n_ctx=2048, spec=AUTO_SPEC), lambda progress: None)
    except EagleLocalError as error:
        sys.stdout.write(f"| {draft} | {error.message} |\n")
        return
    watch, gains = measure(engine, prompts, num_rounds, max_tokens)
    engine.close()
    said = bound_mean(list(gains.values()))
    by_kind = " | ".join(f"{geometric_mean(each):.2f}" for _, each in sorted(gains.items()))
    gain = f"{said.mean:.2f} ({said.low:.2f} to {said.high:.2f})"
    sys.stdout.write(f"| {draft} | {watch} | {gain} | {by_kind} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("drafts", nargs="+")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--most", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=48)
    given = parser.parse_args()
    prompts = spread(read_prompts(given.prompts) if given.prompts else builtin_prompts([], 8), given.most)
    kinds = " | ".join(sorted({prompt.category for prompt in prompts}))
    sys.stdout.write(f"| draft | tokens of a check | drafting | steps by drafter | gain | {kinds} |\n")
    for draft in given.drafts:
        show(given.target, draft, prompts, given.rounds, given.max_tokens)
