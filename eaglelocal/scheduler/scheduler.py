"""Who runs this step: queue, slots, prefix reuse within a slot, prefill in chunks. Pure bookkeeping.

Knows token ids and counts, no model, no clock. First come, first served; decoding slots go first and
the rest of the batch is given to prompts, so that a long prompt never stops running answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from eaglelocal.core.request import Request
from eaglelocal.core.sequence import Sequence
from eaglelocal.errors import ResourceError

PREFILL_SHARE = 4  # while a prompt waits for rows, drafts leave it one row in four


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
    """Who runs, and how many drafted rows each decoding sequence may have."""

    prefill: tuple[Chunk, ...]
    decode: tuple[Sequence, ...]
    max_draft: int = 0


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
    """Slots and their queue.

    reuse_margin  rows of a reused prefix that are decoded again (see Drafter)
    can_cut       a cache can forget its end; recurrent state cannot, and is continued or thrown away
    """

    def __init__(
        self, *, num_slots: int, n_ctx: int, n_batch: int, reuse_margin: int = 0, can_cut: bool = True
    ) -> None:
        check_batch(num_slots, n_batch)
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Sequence] = {}
        self._cached: list[list[int]] = [[] for _ in range(num_slots)]  # tokens in each slot's cache
        self._is_seen = [True] * num_slots  # the drafter has seen just the rows that are cached
        self._last_used = list(range(-num_slots, 0))
        self._clock = 0
        self._can_cut = can_cut
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
        """Give waiting requests the free slots that suit them best, in the order in which they came."""
        admissions = []
        while self._waiting and len(self._running) < len(self._cached):
            admissions.append(self._admit(self._waiting.popleft()))
        return admissions

    def _admit(self, request: Request) -> Admission:
        slot = self._best_slot(request)
        sequence = Sequence(request, slot, self._n_ctx)
        common = common_prefix(self._cached[slot], request.prompt)
        unchanged = min(common, len(request.prompt) - 1)  # the last prompt row gives the first logits
        is_cut = unchanged < len(self._cached[slot]) or not self._is_seen[slot]
        if is_cut and not self._can_cut:
            unchanged = 0
        reused = max(unchanged - self._reuse_margin, 0) if is_cut else unchanged
        sequence.num_cached = sequence.num_reused = reused
        del self._cached[slot][reused:]
        self._is_seen[slot] = not is_cut
        self._running[slot] = sequence
        self._clock += 1
        self._last_used[slot] = self._clock
        return Admission(sequence, is_cut, unchanged)

    def _best_slot(self, request: Request) -> int:
        """The free slot that goes on with its cache; else the one unused for longest.

        A slot of which more would be thrown away than kept holds another conversation: a shared system
        prompt alone is no reason to evict it.
        """

        def worth(slot: int) -> tuple[int, int]:
            common = common_prefix(self._cached[slot], request.prompt)
            return (common if 2 * common >= len(self._cached[slot]) else 0, -self._last_used[slot])

        return max((slot for slot in range(len(self._cached)) if slot not in self._running), key=worth)

    def schedule(self, max_draft: int) -> StepPlan:
        """Rows of the next step. `max_draft` bounds a decoding slot's drafted rows; the batch may bound them more."""
        decode = tuple(s for s in self._running.values() if not s.is_prefilling)
        max_draft = min(max_draft, self._draft_rows(len(decode)))
        room = self._n_batch - sum(1 + min(max_draft, s.draft_room) for s in decode)
        chunks = []
        for sequence in self._running.values():
            if sequence.is_prefilling and room > 0:
                count = min(room, sequence.num_prompt - sequence.num_cached)
                chunks.append(Chunk(sequence, sequence.num_cached, count))
                room -= count
        return StepPlan(tuple(chunks), decode, max_draft)

    def _draft_rows(self, num_decoding: int) -> int:
        """Drafted rows for which the batch has room behind each root."""
        if num_decoding == 0:
            return 0
        is_shared = num_decoding < len(self._running)
        rows = self._n_batch - (max(self._n_batch // PREFILL_SHARE, 1) if is_shared else 0)
        return max(rows // num_decoding - 1, 0)

    def cached(self, sequence: Sequence, tokens: list[int]) -> None:
        """These tokens of the sequence were decoded and stay in its slot's cache."""
        self._cached[sequence.slot].extend(tokens)
        self._is_seen[sequence.slot] = True
        sequence.num_cached += len(tokens)

    def num_cached(self, slot: int) -> int:
        """Positions in the slot's cache, running or not."""
        return len(self._cached[slot])

    def release(self, sequence: Sequence) -> None:
        """The slot is free; its cache stays for reuse."""
        del self._running[sequence.slot]

    def forget(self, slot: int) -> None:
        """The slot's cache is void (a decode failed)."""
        self._cached[slot].clear()


def check_batch(num_slots: int, n_batch: int) -> None:
    """Every slot needs a row in each step. Raises ResourceError."""
    if num_slots > n_batch:
        raise ResourceError(f"{num_slots} slots need as many rows in a batch of {n_batch}", hint="a smaller --parallel")


def common_prefix(a: list[int], b: tuple[int, ...]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
