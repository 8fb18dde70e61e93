"""Check two beliefs that no ordinary step would contradict: the cost of plain steps, and sizes that became expensive.

The gain of drafting is computed against a plain step. Where drafting seems to gain, no step would be plain, and a wrong
cost of plain steps would persist: `auto` could stay slower than plain while it reports a gain.

Some sizes may become expensive for a while, for example beside another program. Then they no longer run, so nothing
would show that they are cheap again. So now and then a step, a retry, assumes their usual cost. One decode of an
expensive size that took its usual time, in a retry or not, shows that the slow phase is over: then all sizes are reset
to their usual cost.

Pure. Plain steps are compared with those next to them; see cost_probe.py.
"""

from __future__ import annotations

from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.cost_probe import CostProbe
from eaglelocal.speculation.policy.level_difference import TimedDecode
from eaglelocal.speculation.policy.step_report import StepReport

RETRY_GAP = 8  # steps; less than those in which nothing pays until a drafter sleeps


class CostChecks:
    """The probes of plain steps, by number of decoding slots, and the retries."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._plain: dict[int, CostProbe] = {}
        self._num_untried = 0  # steps since the last retry

    def is_plain_due(self, num_slots: int) -> bool:
        """Return whether the next step should draft nothing."""
        return self._plain_probe(num_slots).is_due

    @property
    def is_retry_due(self) -> bool:
        """Return whether the next step should draft as if all sizes had their usual cost."""
        return self._costs.is_raised and self._num_untried >= RETRY_GAP

    def record(self, report: StepReport, *, is_retry: bool) -> bool:
        """Compare a finished step with the predicted costs, unless it took several passes. Return whether costs
        changed.

        A plain step may have padding rows.
        """
        num_slots, is_plain = len(report.verdicts), not report.num_drafted
        decode = TimedDecode(report.num_rows, report.decode_s, report.num_cells)
        compared = decode if report.num_passes == 1 and self._costs.is_comparable(report.decode_s) else None
        correction = self._plain_probe(num_slots).record(is_plain, compared, self._level)
        self._num_untried = 0 if is_retry and not is_plain else self._num_untried + 1
        if compared and self._costs.is_dear(report.num_rows) and self._costs.is_as_usual(*compared):
            self._costs.restore_usual()
        elif correction:
            num_plain_rows = report.num_rows if is_plain else num_slots
            self._costs.correct(num_plain_rows, correction.error, level=correction.level)
        else:
            return False
        for probe in self._plain.values():
            probe.begin_again()
        return True

    def interrupt(self) -> None:
        """Record a step that is not compared with any other."""
        for probe in self._plain.values():
            probe.difference.interrupt()

    def _level(self, decode: TimedDecode) -> float:
        return self._costs.implied_level(*decode)

    def _plain_probe(self, num_slots: int) -> CostProbe:
        return self._plain.setdefault(num_slots, CostProbe())
