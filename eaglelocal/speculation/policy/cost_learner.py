"""Learn costs from finished steps, several steps at a time.

Right after a decode the processor's caches are cold, and the first update is the most expensive: hence several at a
time. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.slot_policy import DraftCall, DrafterSet
from eaglelocal.speculation.policy.step_report import StepReport

AT_ONCE, LATER_AT_ONCE, MOST_AT_ONCE = 2, 8, 16  # steps learned together: early, later, if no draft depends on costs
EARLY_STEPS = 64  # by number of decoding slots; costs move most in them, as sizes run for the first time
SURPRISES, SURPRISING = 3, 1.5  # decodes in a row that take so many times as long as expected are learned at once
OUTLIER = 5.0  # times what was expected, more than which drafting is not charged for a single step
LONG_READING = 64  # tokens prefilled at once, from which on the cost of one is learned
ALIKE_CELLS = 128  # cached positions within which decodes are learned together


class CostLearner:
    """The finished steps whose costs are not learned yet, and the costs that learn from them."""

    def __init__(self, costs: StepCosts, drafters: DrafterSet) -> None:
        self._costs, self._drafters = costs, drafters
        self._pending: list[StepReport] = []
        self._num_surprising = 0  # the last steps in a row
        self._num_priced: Counter[int] = Counter()  # steps whose drafts depend on costs, by number of decoding slots

    def add(self, report: StepReport, *, is_priced: bool) -> None:
        """Add a finished step, and learn if enough are pending; is_priced: drafts depend on costs."""
        self._pending.append(report)
        self._num_surprising = self._num_surprising + 1 if is_priced and self._is_surprising(report) else 0
        calls = [call for call in report.draft_calls if call.num_levels and call.drafter == self._drafters.primary]
        is_new = any([not self._expected_s(call) for call in calls])
        enough = 1 if is_new else self._num_at_once(len(report.verdicts), is_priced=is_priced)
        if len(self._pending) >= enough or self._num_surprising >= (1 if self._costs.is_raised else SURPRISES):
            self.learn()

    def _is_surprising(self, report: StepReport) -> bool:
        """Return whether the decode, or drafting, took clearly more or less than was expected."""
        calls = [call for call in report.draft_calls if call.num_levels]
        pairs = [(sum([call.seconds for call in calls]), sum(map(self._expected_s, calls)))]
        if report.num_passes == 1 and not report.num_prefill_rows:
            pairs.append((report.decode_s, self._costs.seconds(report.num_rows, report.num_cells)))
        return not all([SURPRISING * took >= expected >= took / SURPRISING for took, expected in pairs])

    def _num_at_once(self, num_slots: int, *, is_priced: bool) -> int:
        """Return for how many steps, this one included, costs are learned together."""
        if not is_priced:
            return MOST_AT_ONCE
        self._num_priced[num_slots] += 1
        return AT_ONCE if self._num_priced[num_slots] <= EARLY_STEPS else LATER_AT_ONCE

    def learn(self) -> None:
        """Learn the costs of the pending steps, all at once."""
        pending, self._pending = self._pending, []
        self._num_surprising = 0
        self._learn_decodes(pending)
        drafts: dict[tuple[str, int], list[float]] = {}
        overheads: dict[bool, list[tuple[int, float]]] = {}
        for report in pending:
            for drafter, num_rows, seconds, num_levels in report.draft_calls:
                if num_levels:
                    num_steps = self._drafters.num_steps(drafter, num_levels)
                    drafts.setdefault((drafter, num_rows), []).append(seconds / num_steps)
                elif num_rows >= LONG_READING:
                    self._costs.learn_reading(drafter, num_rows, seconds)
            if not report.num_prefill_rows:
                overheads.setdefault(report.policy is not None, []).append((report.num_rows, report.other_s))
        for (drafter, num_rows), samples in drafts.items():
            self._costs.learn_drafts(drafter, num_rows, samples)
        for may_draft, measured in overheads.items():
            self._costs.learn_overheads(may_draft, measured)

    def _learn_decodes(self, reports: Sequence[StepReport]) -> None:
        alike: dict[tuple[int, int, bool], list[StepReport]] = {}  # by rows, context, and whether without drafts
        for report in reports:
            if report.num_passes == 1 and not report.num_prefill_rows:  # prompt rows have no logits
                is_plain = not report.num_drafted
                alike.setdefault((report.num_rows, report.num_cells // ALIKE_CELLS, is_plain), []).append(report)
        for (num_rows, _, is_plain), same in alike.items():
            seconds = [report.decode_s for report in same]
            self._costs.learn_many(num_rows, seconds, num_cells=same[-1].num_cells, is_plain=is_plain)

    def plain_tokens(self, report: StepReport) -> float:
        """Return how many tokens plain decoding would have made in the seconds of the step."""
        num_plain_rows = report.num_rows - report.num_drafted - report.num_padding_rows
        plain_s = self._costs.plain_seconds(report.decode_s, num_rows=report.num_rows, num_plain_rows=num_plain_rows)
        draft_s = sum([self._draft_s(call) if call.num_levels else call.seconds for call in report.draft_calls])
        num_slots = max(len(report.verdicts), 1)
        expected_s = self._costs.overhead(True, report.num_rows - report.num_prefill_rows)
        other_s = limit_outlier(report.other_s, expected_s)
        token_s = (plain_s + self._costs.overhead(False, num_slots)) / num_slots
        return (report.decode_s + other_s + draft_s) / token_s

    def _draft_s(self, call: DraftCall) -> float:
        return limit_outlier(call.seconds, self._expected_s(call))

    def _expected_s(self, call: DraftCall) -> float:
        num_steps = self._drafters.num_steps(call.drafter, call.num_levels)
        return num_steps * self._costs.draft_seconds(call.drafter, call.num_rows)


def limit_outlier(seconds: float, expected_s: float) -> float:
    """Return the seconds, at most OUTLIER times the expected ones: the machine may have been suspended meanwhile."""
    return min(seconds, OUTLIER * expected_s) if expected_s > 0.0 else seconds
