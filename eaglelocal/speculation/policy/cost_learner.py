"""Learn costs from finished steps, several steps at a time, and divide a step's seconds by their cause.

Right after a decode the processor's caches are cold, and the first update is the most expensive: hence several at a
time. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from eaglelocal.core.records import dataclass
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.slot_policy import DraftCall, DrafterSet
from eaglelocal.speculation.policy.step_report import StepReport

AT_ONCE, LATER_AT_ONCE, MOST_AT_ONCE = 2, 8, 16  # steps learned together: early, later, if no draft depends on costs
EARLY_STEPS = 64  # by number of decoding slots; costs move most in them, as sizes run for the first time
OUTLIER = 5.0  # times what was expected, more than which drafting is not charged for a single step
LONG_READING = 64  # tokens prefilled at once, from which on the cost of one is learned
ALIKE_CELLS = 128  # cached positions within which decodes are learned together


@dataclass(frozen=True, slots=True)
class Charge:
    """Seconds of a step, by what they were spent on."""

    step_s: float  # the whole step
    token_s: float  # per token of plain decoding
    row_s: float  # added by each drafted row
    awake_s: float  # drafting and encoding, per slot that was awake


class CostLearner:
    """The finished steps whose costs are not learned yet, and the costs that learn from them."""

    def __init__(self, costs: StepCosts, drafters: DrafterSet) -> None:
        self._costs, self._drafters = costs, drafters
        self._pending: list[tuple[StepReport, bool]] = []  # with whether drafters were awake
        self._num_priced: Counter[int] = Counter()  # steps whose drafts depend on costs, by number of decoding slots

    def add(self, report: StepReport, *, is_awake: bool, is_priced: bool) -> None:
        """Add a finished step, and learn if enough are pending.

        is_awake   drafters were awake for some slot
        is_priced  drafts depend on costs
        """
        self._pending.append((report, is_awake))
        if len(self._pending) >= self._num_at_once(len(report.verdicts), is_priced=is_priced):
            self.learn()

    def _num_at_once(self, num_slots: int, *, is_priced: bool) -> int:
        """Return for how many steps, this one included, costs are learned together."""
        if not is_priced:
            return MOST_AT_ONCE
        self._num_priced[num_slots] += 1
        return AT_ONCE if self._num_priced[num_slots] <= EARLY_STEPS else LATER_AT_ONCE

    def learn(self) -> None:
        """Learn the costs of the pending steps, all at once."""
        pending, self._pending = self._pending, []
        self._learn_decodes([report for report, _ in pending])
        for report, was_awake in pending:
            for drafter, num_rows, seconds, num_levels in report.draft_calls:
                if num_levels:
                    num_steps = self._drafters.num_steps(drafter, num_levels)
                    self._costs.learn_draft(drafter, num_rows, seconds / num_steps)
                elif self._drafters.reads_texts and num_rows >= LONG_READING:
                    self._costs.learn_reading(drafter, num_rows, seconds)
            if not report.num_prefill_rows:
                self._costs.learn_overhead(was_awake, report.other_s, encode_s=report.encode_s)

    def _learn_decodes(self, reports: Sequence[StepReport]) -> None:
        alike: dict[tuple[int, int], list[StepReport]] = {}  # by rows and context
        for report in reports:
            if report.num_passes == 1 and not report.num_prefill_rows:  # prompt rows have no logits
                alike.setdefault((report.num_rows, report.num_cells // ALIKE_CELLS), []).append(report)
        for (num_rows, _), same in alike.items():
            self._costs.learn_many(num_rows, [report.decode_s for report in same], num_cells=same[-1].num_cells)

    def charge(self, report: StepReport, *, num_awake: int) -> Charge:
        """Divide the seconds of the step into plain decoding, drafted rows and drafting.

        num_awake  slots whose drafters were awake
        """
        num_plain_rows = report.num_rows - report.num_drafted - report.num_padding_rows
        plain_s = self._costs.plain_seconds(report.decode_s, num_rows=report.num_rows, num_plain_rows=num_plain_rows)
        overhead_s = self._costs.overhead(drafted=False)
        draft_s = {call.drafter: 0.0 for call in report.draft_calls}
        for call in report.draft_calls:
            draft_s[call.drafter] += self._draft_s(call)
        reading_s = sum([call.seconds for call in report.draft_calls if not call.num_levels])
        other_s = limit_outlier(report.other_s, self._costs.overhead(drafted=num_awake > 0))
        awake_s = draft_s.get(self._drafters.primary or "", 0.0) + max(other_s - overhead_s, 0.0)
        return Charge(
            step_s=report.decode_s + other_s + sum(draft_s.values()) + reading_s,
            token_s=(plain_s + overhead_s) / max(len(report.verdicts), 1),
            row_s=(report.decode_s - plain_s) / max(report.num_drafted, 1),
            awake_s=awake_s / max(num_awake, 1),
        )

    def _draft_s(self, call: DraftCall) -> float:
        if not call.num_levels:  # deferred work, done now: it is no cost of staying awake
            return 0.0
        num_steps = self._drafters.num_steps(call.drafter, call.num_levels)
        return limit_outlier(call.seconds, num_steps * self._costs.draft_seconds(call.drafter, call.num_rows))


def limit_outlier(seconds: float, expected_s: float) -> float:
    """Return the seconds, at most OUTLIER times the expected ones: the machine may have been suspended meanwhile."""
    return min(seconds, OUTLIER * expected_s) if expected_s > 0.0 else seconds
