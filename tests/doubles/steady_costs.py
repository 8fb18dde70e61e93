"""Controllers that get invented times instead of measured ones, so that a busy machine does not affect decisions.

One gets the costs of a quiet machine. For the other, rows and draft steps are free, so that everything that can be
drafted is sent.
"""

from __future__ import annotations

import dataclasses

from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.step_report import Change, StepReport


class SteadyController(Controller):
    def learn(self, report: StepReport) -> list[Change]:
        calls = [call._replace(seconds=0.1 * call.num_levels) for call in report.draft_calls]
        decode_s = 1.0 + 0.05 * report.num_rows
        return super().learn(dataclasses.replace(report, draft_calls=calls, decode_s=decode_s, other_s=0.05))


class FreeRows(StepCosts):
    def seconds(self, num_rows: int, num_cells: int | None = None) -> float:
        return 1.0

    def optimistic_seconds(self, least: int, most: int, num_cells: int) -> list[float]:
        return [1.0] * (most + 1 - least)

    def draft_seconds(self, drafter: str, num_rows: int) -> float:
        return 0.0

    def untried_draft_seconds(self, drafter: str, num_rows: int) -> float:
        return 0.0

    def overhead(self, may_draft: bool, num_rows: int) -> float:
        return 0.0


class FreeController(Controller):
    """A controller that never puts a drafter to sleep: only decodes take time, and always the same."""

    def learn(self, report: StepReport) -> list[Change]:
        calls = [call._replace(seconds=0.0) for call in report.draft_calls]
        return super().learn(dataclasses.replace(report, draft_calls=calls, decode_s=1.0, other_s=0.0))
