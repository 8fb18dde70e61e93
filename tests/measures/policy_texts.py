"""`auto` on real texts, drafts and acceptance, with the seconds of simulated machines beside the best fixed length:

    python tests/measures/policy_texts.py [CURVE ...] [--prompts N]

The embedded model answers held-out tasks of the six kinds in random order, each way of drafting as an owner of its
own, so that no lookup knows the answers of another. What steps cost is said by curves (doubles/simulated_machine.py),
so that a busy machine distorts nothing. `kept`: a new controller that knows the acceptance of the run before it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.simulated_machine import BF16, CLIFF, GPU, Q4_0, Q8_0, SimulatedMachine
from doubles.simulation import LOOKUP, DraftCosts, curve

from eaglelocal.assembly import build
from eaglelocal.bench.prompts import Prompt, built_in
from eaglelocal.core.request import AUTO, ChatRequest, Spec, fixed
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.demo.evaluate import SIX_KINDS
from eaglelocal.engine.engine import Engine
from eaglelocal.hub.resolve import resolve
from eaglelocal.hub.wish import Wish
from eaglelocal.speculation.choice import Drafters
from eaglelocal.speculation.controller import Change, Controller, StepReport
from eaglelocal.speculation.costs import StepCosts

CURVES = {"bf16": BF16, "q8_0": Q8_0, "q4_0": Q4_0, "cliff": CLIFF, "gpu": GPU}
COSTS = {"cheap": DraftCosts(), "dear": DraftCosts(step_s=0.0035, row_s=0.0003, drafted_overhead_s=0.002)}
LENGTHS = (3, 7, 8, 11, 15)


class Simulated(Controller):
    """Is told what a simulated machine would have taken, and counts true seconds."""

    def __init__(self, spec: Spec, machine: SimulatedMachine, drafting: DraftCosts) -> None:
        costs = StepCosts()
        costs.calibrate({rows: [machine.decode(rows) for _ in range(3)] for rows in range(1, 18)})
        super().__init__(spec, Drafters("eagle3", (LOOKUP,)), costs)
        self._machine, self._drafting = machine, drafting
        self.true_s, self.num_tokens = 0.0, 0

    @property
    def speed(self) -> float:
        """Relative to plain decoding."""
        return self.num_tokens * (self._machine.true_seconds(1) + self._drafting.plain_overhead_s) / self.true_s

    def learn(self, report: StepReport) -> list[Change]:
        if report.num_prefill_rows:
            return super().learn(report)
        steps = [(name, rows, self._drafting.draft_s(name, rows)) for name, rows, _ in report.draft_steps]
        other_s = self._drafting.other_s(any(map(self.is_awake, report.verdicts)))
        true_s = self._machine.true_seconds(report.num_rows)
        self.true_s += true_s + other_s + sum(seconds for _, _, seconds in steps)
        self.num_tokens += report.num_tokens
        decode_s = self._machine.decode(report.num_rows)
        return super().learn(replace(report, decode_s=decode_s, draft_steps=steps, other_s=other_s))


class Trial:
    """One engine, many controllers."""

    def __init__(self, engine: Engine, prompts: Sequence[Prompt]) -> None:
        self._engine, self._prompts, self._num_owners = engine, prompts, 0

    def run(
        self, spec: Spec, ratios: Sequence[float], costs: DraftCosts, *, kept: object = None, noise: float = 0.05
    ) -> Simulated:
        controller = Simulated(spec, SimulatedMachine(ratios=curve(ratios), hiccups=0.02, noise=noise), costs)
        if kept is not None:
            assert controller.acceptance.restore(kept)
        self._engine._controller = controller
        self._num_owners += 1
        for at, prompt in enumerate(self._prompts):
            params = SamplingParams(temperature=0.0, max_tokens=128)
            owner = f"owner {self._num_owners}"
            self._engine.submit(ChatRequest(id=str(at), messages=prompt.messages, params=params, owner=owner))
            while self._engine.has_work:
                self._engine.step()
        return controller


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("curves", nargs="*", help=", ".join(CURVES))
    parser.add_argument("--prompts", type=int, default=3, help="of each kind")
    asked = parser.parse_args()
    prompts = built_in(SIX_KINDS, asked.prompts)
    random.Random(1).shuffle(prompts)
    plan = resolve(Wish(target="demo@native", threads=1), on_progress=lambda fraction, what: None)
    engine = build(plan, lambda _: None)
    trial = Trial(engine, prompts)
    sys.stdout.write(f"{'':<14}{'fixed':>10}{'auto':>8}{'share':>8}{'noisy':>8}{'kept':>8}\n")
    for name in asked.curves or CURVES:
        for of, costs in COSTS.items():
            ratios = CURVES[name]
            best, length = max((trial.run(fixed(n), ratios, costs).speed, n) for n in LENGTHS)
            auto, noisy = trial.run(AUTO, ratios, costs), trial.run(AUTO, ratios, costs, noise=0.2)
            kept = trial.run(AUTO, ratios, costs, kept=auto.acceptance.state())
            shares = "".join(f"{one.speed / best:8.2f}" for one in (auto, noisy, kept))
            sys.stdout.write(f"{name + ', ' + of:<14}{length:4}{best:6.2f}{auto.speed:8.2f}{shares}\n")
            sys.stdout.flush()
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
