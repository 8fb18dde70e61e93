"""`auto` on real texts, drafts and acceptance, with the seconds of simulated machines beside the best fixed length:

    python tests/measures/policy_texts.py [CURVE ...] [--prompts N]

The embedded model answers held-out tasks of the six kinds in random order, each way of drafting as an owner of its
own, so that no lookup knows the answers of another. What steps cost is said by curves (doubles/simulated_machine.py),
so that a busy machine distorts nothing. Below each line the same by kind, beside the length that is best for that
kind. `kept`: a new controller that knows the acceptance of the run before it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.real_engine import use_controller
from doubles.simulated_machine import BF16, CLIFF, GPU, Q4_0, Q8_0, SimulatedMachine
from doubles.simulation import LOOKUP, DraftCosts, curve
from guide.evaluate import SIX_KINDS

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts
from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Spec, fixed_spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DraftCall, DrafterSet
from eaglelocal.speculation.policy.step_report import Change, StepReport

HERE = (1.0, 1.0, 1.01, 1.03, 1.09, 1.16, 1.4, 1.5, 1.54, 1.66, 1.75, 1.82, 2.02, 2.15, 2.23, 2.44, 2.44)
CURVES = {"here": HERE, "bf16": BF16, "q8_0": Q8_0, "q4_0": Q4_0, "cliff": CLIFF, "gpu": GPU}
COSTS = {"cheap": DraftCosts(), "expensive": DraftCosts(step_s=0.0035, row_s=0.0003, drafted_overhead_s=0.002)}
LENGTHS = (3, 5, 7, 8, 11, 15)


class Simulated(Controller):
    """Gets the times of a simulated machine, and counts true seconds."""

    def __init__(self, spec: Spec, machine: SimulatedMachine, drafting: DraftCosts) -> None:
        costs = StepCosts()
        costs.calibrate({rows: [machine.decode(rows) for _ in range(3)] for rows in range(1, 18)})
        super().__init__(spec, DrafterSet("eagle3", (LOOKUP,)), costs)
        self._machine, self._drafting = machine, drafting
        self.kind = ""
        self.true_s: dict[str, float] = defaultdict(float)  # by kind of work
        self.num_tokens: dict[str, int] = defaultdict(int)

    @property
    def speed(self) -> float:
        """Relative to plain decoding."""
        return sum(self.num_tokens.values()) * self._plain_s / sum(self.true_s.values())

    def speed_of(self, kind: str) -> float:
        return self.num_tokens[kind] * self._plain_s / self.true_s[kind]

    @property
    def _plain_s(self) -> float:
        return self._machine.true_seconds(1) + self._drafting.plain_overhead_s

    def learn(self, report: StepReport) -> list[Change]:
        if report.num_prefill_rows:
            return super().learn(report)
        calls = [self._simulated(call) for call in report.draft_calls]
        other_s = self._drafting.other_s(any(map(self.is_awake, report.verdicts)))
        true_s = self._machine.true_seconds(report.num_rows)
        self.true_s[self.kind] += true_s + other_s + sum(call.seconds for call in calls)
        self.num_tokens[self.kind] += report.num_tokens
        decode_s = self._machine.decode(report.num_rows)
        return super().learn(replace(report, decode_s=decode_s, draft_calls=calls, other_s=other_s))

    def _simulated(self, call: DraftCall) -> DraftCall:
        return call._replace(seconds=call.num_levels * self._drafting.draft_s(call.drafter, call.num_rows))


class Trial:
    """One engine, many controllers."""

    def __init__(self, engine: Engine, prompts: Sequence[BenchPrompt], max_tokens: int) -> None:
        self._engine, self._prompts, self._num_owners = engine, prompts, 0
        self._params = SamplingParams(temperature=0.0, max_tokens=max_tokens)

    def run(
        self, spec: Spec, ratios: Sequence[float], costs: DraftCosts, *, kept: object = None, noise: float = 0.05
    ) -> Simulated:
        controller = Simulated(spec, SimulatedMachine(ratios=curve(ratios), hiccups=0.02, noise=noise), costs)
        if kept is not None:
            assert controller.acceptance.restore(kept)
        engine = self._engine
        use_controller(engine, controller)
        self._num_owners += 1
        for at, prompt in enumerate(self._prompts):
            owner = f"owner {self._num_owners}"
            controller.kind = prompt.category
            self._engine.submit(ChatRequest(id=str(at), messages=prompt.messages, params=self._params, owner=owner))
            while self._engine.has_work:
                self._engine.step()
        return controller


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("curves", nargs="*", help=", ".join(CURVES))
    parser.add_argument("--prompts", type=int, default=3, help="of each kind")
    parser.add_argument("--max-tokens", type=int, default=128)
    asked = parser.parse_args()
    prompts = builtin_prompts(SIX_KINDS, asked.prompts)
    random.Random(1).shuffle(prompts)
    plan = resolve(RunOptions(target="demo@native", threads=1), on_progress=lambda fraction, what: None)
    engine = build(plan, lambda _: None)
    trial = Trial(engine, prompts, asked.max_tokens)
    sys.stdout.write(f"{'':<14}{'fixed_spec':>10}{'auto':>8}{'share':>8}{'noisy':>8}{'kept':>8}\n")
    for name in asked.curves or CURVES:
        for of, costs in COSTS.items():
            ratios = CURVES[name]
            fixeds = {n: trial.run(fixed_spec(n), ratios, costs) for n in LENGTHS}
            best, length = max((run.speed, n) for n, run in fixeds.items())
            auto, noisy = trial.run(AUTO_SPEC, ratios, costs), trial.run(AUTO_SPEC, ratios, costs, noise=0.2)
            kept = trial.run(AUTO_SPEC, ratios, costs, kept=auto.acceptance.state())
            shares = "".join(f"{one.speed / best:8.2f}" for one in (auto, noisy, kept))
            sys.stdout.write(f"{name + ', ' + of:<14}{length:4}{best:6.2f}{auto.speed:8.2f}{shares}\n")
            for kind in SIX_KINDS:
                best, length = max((run.speed_of(kind), n) for n, run in fixeds.items())
                shares = "".join(f"{one.speed_of(kind) / best:8.2f}" for one in (auto, noisy, kept))
                sys.stdout.write(f"  {kind:<12}{length:4}{best:6.2f}{auto.speed_of(kind):8.2f}{shares}\n")
            sys.stdout.flush()
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
