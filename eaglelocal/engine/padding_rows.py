"""Padding rows, added where a row costs less than another pass over the weights (speculation/costs/ubatch_split.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eaglelocal.core.draft import Draft
from eaglelocal.core.ports import Context
from eaglelocal.core.records import dataclass
from eaglelocal.scheduler.scheduler import Scheduler, StepPlan

CountRows = Callable[[Mapping[int, int], Sequence[int], int], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class PaddingRow:
    """Padding rows of one slot."""

    slot: int
    first: int  # position
    count: int
    token: int


class Padding:
    """Finds slots with free cells for padding rows."""

    def __init__(self, context: Context, scheduler: Scheduler, num_slots: int) -> None:
        self._context, self._scheduler, self._num_slots = context, scheduler, num_slots

    def rows(self, plan: StepPlan, drafts: Mapping[int, Draft], count_rows: CountRows) -> list[PaddingRow]:
        """Return the padding rows of a step; none with prompt rows or in a single slot, where they would save no pass.

        count_rows  how many rows of which slots pay off: Controller.choose_padding_rows
        """
        if plan.prefill or self._context.is_unified or self._num_slots == 1:  # one cache is one pass
            return []
        decoding = {s.slot: 1 + len(drafts[s.slot]) for s in plan.decode}
        # padding is removed again: decoding slots can always do that, idle ones only if caches can be cut anywhere
        slots = range(self._num_slots) if self._scheduler.can_cut else ()
        idle = [slot for slot in slots if not self._scheduler.is_running(slot)]
        counts = count_rows(decoding, idle, self._context.undivided)
        if sum(decoding.values()) + sum(counts.values()) > self._context.n_batch:
            return []
        first = {slot: self._scheduler.num_cached(slot) + decoding.get(slot, 0) for slot in counts}
        n_ctx = self._context.n_ctx
        if any(first[s] + num > n_ctx or self._scheduler.may_hold_images(s) for s, num in counts.items()):
            return []  # fewer padding rows would save no pass
        return [PaddingRow(slot, first[slot], count, token=0) for slot, count in counts.items()]
