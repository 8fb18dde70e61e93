"""How many levels a drafter is asked for at a time: few calls, and hardly any token drafted for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from doubles.simulated_machine import BF16, GPU, SimulatedMachine
from doubles.simulation import Profile, Simulation, plain_text
from doubles.tiers import some_of

from eaglelocal.speculation.policy import step_policy
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.step_report import Change, StepReport

pytestmark = pytest.mark.full

HEADS = {"sure": Profile((0.998,), spread=0.8), "mixed": Profile((0.9,), spread=2.5), "unsure": Profile((0.7, 0.65))}
NUM_TOKENS = 4000


class Counted:
    """A controller whose drafters' calls are counted."""

    def __init__(self, controller: Controller) -> None:
        self._controller, self.num_calls, self.num_steps = controller, 0, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._controller, name)

    def learn(self, report: StepReport) -> list[Change]:
        self.num_calls += len(report.draft_calls)
        self.num_steps += 1
        return self._controller.learn(report)


def run(curve: Sequence[float], head: Profile) -> tuple[float, float]:
    """Tokens a second, and draft calls a step."""
    num_tokens = seconds = calls = steps = 0.0
    for seed in range(4):
        simulation = Simulation(SimulatedMachine(seed, curve), {0: plain_text(head)}, seed=seed)
        counted = Counted(simulation.controller)
        simulation.controller = counted  # type: ignore[assignment]
        for step in simulation.run(NUM_TOKENS):
            num_tokens += step.num_tokens
            seconds += step.seconds
        calls += counted.num_calls
        steps += counted.num_steps
    return num_tokens / seconds, calls / steps


@pytest.mark.parametrize("curve", some_of([(GPU,), (BF16,)], rest=pytest.mark.slow), ids=["gpu", "bf16"])
@pytest.mark.parametrize(("head", "calls"), [("sure", 0.7), ("mixed", 1.0), ("unsure", 1.02)])
def test_a_sure_head_goes_on_by_itself(
    curve: Sequence[float], head: str, calls: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`calls`: at most so many of those that it takes without."""
    speed, num_calls = run(curve, HEADS[head])
    monkeypatch.setattr(step_policy, "SURE", 1.1)
    old_speed, old_calls = run(curve, HEADS[head])
    assert num_calls < calls * old_calls
    assert speed > 0.98 * old_speed  # a call is no dearer than its levels here
