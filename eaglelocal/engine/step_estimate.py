"""Estimates the seconds of the next step for the scheduler, from measured costs, rows per slot and likely drafts.

Knows the cost curve and how llama.cpp splits rows into passes; decides nothing. The curve was measured over short
contexts without prompts, so the factor by which prompt rows cost more is learned from each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from eaglelocal.core.draft import Draft
from eaglelocal.scheduler.prefill import PrefillPace
from eaglelocal.scheduler.scheduler import Chunk
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.costs.ubatch_split import split_rows

MEMORY = 8.0  # steps over which the length of a slot's drafts is averaged
PROMPT_MEMORY = 4.0  # the same for the cost of prompt rows, which rises with every chunk
MAX_PROMPT_FACTOR = 32.0  # bound of the factor and of its inverse, against a single slow step


class StepEstimate:
    """The average draft length of each slot, and the cost factor of prompt rows."""

    def __init__(
        self, costs: StepCosts, num_cached: Callable[[int], int], *, is_unified: bool, undivided: int = 0
    ) -> None:
        """Take the measured costs.

        num_cached  gives the positions in a slot's cache
        undivided   see speculation.costs.ubatch_split.split_rows
        """
        self._costs, self._num_cached = costs, num_cached
        self._is_unified, self._undivided = is_unified, undivided
        self._lengths: dict[int, float] = {}  # by slot
        self._log_factor = 0.0  # logarithm of PrefillPace.dearer

    @property
    def pace(self) -> PrefillPace:
        lengths = {slot: round(length) for slot, length in self._lengths.items()}
        return PrefillPace(self.seconds, lengths, math.exp(self._log_factor))

    def seconds(self, rows: Mapping[int, int]) -> float:
        """Return the estimated seconds of a decode, given the rows of each slot; 0.0 before anything was measured."""
        num_cached = {slot: self._num_cached(slot) for slot in rows}
        if self._is_unified:
            return self._costs.seconds(sum(rows.values()), sum(num_cached.values()))
        attended = sum(rows[slot] * num_cached[slot] for slot in rows) // max(sum(rows.values()), 1)  # on average
        return sum(self._costs.seconds(num_rows, attended) for num_rows in split_rows(rows, self._undivided))

    def learn(self, drafts: Mapping[int, Draft], chunks: tuple[Chunk, ...], decode_s: float) -> None:
        """Learn from a step: drafts of the decoding slots, prompt chunks, and seconds of the target's decode."""
        if drafts and chunks:
            self._learn_prompts(drafts, chunks, decode_s)
        lengths = {}
        for slot, draft in drafts.items():
            before = self._lengths.get(slot, float(len(draft)))
            is_quiet = not chunks  # with a prompt in the step less may be drafted, so it does not count
            lengths[slot] = before + (len(draft) - before) / MEMORY if is_quiet else before
        self._lengths = lengths

    def _learn_prompts(self, drafts: Mapping[int, Draft], chunks: tuple[Chunk, ...], decode_s: float) -> None:
        decoding = {slot: 1 + len(draft) for slot, draft in drafts.items()}
        quiet_s = self.seconds(decoding)
        expected_s = self.seconds({**decoding, **{chunk.sequence.slot: chunk.count for chunk in chunks}}) - quiet_s
        if expected_s <= 0.0:
            return
        factor = max(decode_s - quiet_s, 0.0) / expected_s
        log_factor = math.log(min(max(factor, 1 / MAX_PROMPT_FACTOR), MAX_PROMPT_FACTOR))
        self._log_factor += (log_factor - self._log_factor) / PROMPT_MEMORY
