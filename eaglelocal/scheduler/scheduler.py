"""Who runs this step: queue, slots, prefix reuse within a slot, prefill in chunks. Pure bookkeeping.

Knows token ids and counts, no model, no clock. First come, first served; decoding slots go first and
the rest of the batch is given to prompts, so that a long prompt never stops running answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from eaglelocal.core.request import Request
from eaglelocal.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt rows first..first+count-1 of a sequence; `is_last` if the answer begins behind them."""

    sequence: Sequence
    first: int
    count: int

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens[self.first : self.first + self.count]

    @property
    def is_last(self) -> bool:
        return self.first + self.count == self.sequence.num_prompt


@dataclass(frozen=True, slots=True)
class StepPlan:
    prefill: tuple[Chunk, ...]
    decode: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request has got a slot.

    is_cut        cells of the slot from sequence.num_reused on are void
    num_unchanged tokens of the slot that a drafter may rely on (num_reused and its margin)
    """

    sequence: Sequence
    is_cut: bool
    num_unchanged: int


class Scheduler:
    """Slots and their queue. `reuse_margin` rows of a reused prefix are decoded again (see Drafter)."""

    def __init__(self, *, num_slots: int, n_ctx: int, n_batch: int, reuse_margin: int = 0) -> None:
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Sequence] = {}
        self._cached: list[list[int]] = [[] for _ in range(num_slots)]  # tokens in each slot's cache
        self._last_used = list(range(-num_slots, 0))
        self._clock = 0
        self._n_ctx, self._n_batch, self._reuse_margin = n_ctx, n_batch, reuse_margin

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running.values())

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def withdraw(self, request_id: str) -> bool:
        """Take a request out of the queue; False if it does not wait there."""
        for request in self._waiting:
            if request.id == request_id:
                self._waiting.remove(request)
                return True
        return False

    def admit(self) -> list[Admission]:
        """Give waiting requests the free slots that share most with them."""
        admissions = []
        while self._waiting and len(self._running) < len(self._cached):
            admissions.append(self._admit(self._waiting.popleft()))
        return admissions

    def _admit(self, request: Request) -> Admission:
        free = [slot for slot in range(len(self._cached)) if slot not in self._running]
        common = {slot: common_prefix(self._cached[slot], request.prompt) for slot in free}
        slot = max(free, key=lambda s: (common[s], -self._last_used[s]))  # the longest match, else the oldest cache
        sequence = Sequence(request, slot, self._n_ctx)
        unchanged = min(common[slot], len(request.prompt) - 1)  # the last prompt row gives the first logits
        is_cut = unchanged < len(self._cached[slot])
        reused = max(unchanged - self._reuse_margin, 0) if is_cut else unchanged
        sequence.num_cached = sequence.num_reused = reused
        del self._cached[slot][reused:]
        self._running[slot] = sequence
        self._clock += 1
        self._last_used[slot] = self._clock
        return Admission(sequence, is_cut, unchanged)

    def schedule(self, max_draft: int) -> StepPlan:
        """Rows of the next step. `max_draft` bounds the draft rows of a decoding slot."""
        decode = tuple(s for s in self._running.values() if not s.is_prefilling)
        room = self._n_batch - sum(1 + min(max_draft, s.draft_room) for s in decode)
        chunks = []
        for sequence in self._running.values():
            if sequence.is_prefilling and room > 0:
                count = min(room, sequence.num_prompt - sequence.num_cached)
                chunks.append(Chunk(sequence, sequence.num_cached, count))
                room -= count
        return StepPlan(tuple(chunks), decode)

    def cached(self, sequence: Sequence, tokens: list[int]) -> None:
        """These tokens of the sequence were decoded and stay in its slot's cache."""
        self._cached[sequence.slot].extend(tokens)
        sequence.num_cached += len(tokens)

    def release(self, sequence: Sequence) -> None:
        """The slot is free; its cache stays for reuse."""
        del self._running[sequence.slot]

    def forget(self, slot: int) -> None:
        """The slot's cache is void (a decode failed)."""
        self._cached[slot].clear()


def common_prefix(a: list[int], b: tuple[int, ...]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
