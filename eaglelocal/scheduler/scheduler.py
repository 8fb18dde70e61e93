"""Schedule the rows of a step: slots for requests, chunked prefill, decodes. Pure bookkeeping.

Works on token ids and counts: no model, no clock. FairQueue decides who waits; decoding slots go first, and prompts get
the rows that prefill.py allows beside them. All rows of a decode have the same LoRA adapters: the mixes that requests
chose take turns. prefix_cache.py decides what a prompt can reuse. If another slot is about to prefill the same prefix,
the prompt waits for it and gets no rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import takewhile

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.image import PlacedImage
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Request
from eaglelocal.core.sequence import Sequence
from eaglelocal.errors import ResourceError
from eaglelocal.scheduler.prefill import MIN_PROMPT_ROWS, UNKNOWN, PrefillPace, allot_prompt_rows
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.slot import PrefixSource, SlotAssignment

TURN_S = 0.02  # of a mix of adapters: a change makes llama.cpp plan its graphs again, which takes some milliseconds
PREFILL_SHARE = 4  # in a small batch drafts leave one row in this many to prompts


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt rows first..first+count-1 of a sequence; `is_last` if the answer begins after them.

    is_saved  save the state after them (see slot.py)
    """

    sequence: Sequence
    first: int
    count: int
    is_saved: bool = False

    @property
    def slot(self) -> int:
        return self.sequence.slot

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens[self.first : self.first + self.count]

    @property
    def is_last(self) -> bool:
        return self.first + self.count == self.sequence.num_prompt


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The prompt chunks and decoding sequences of a step.

    max_draft  most drafted rows of each decoding sequence
    adapters   of all its rows
    """

    prefill: tuple[Chunk, ...]
    decode: tuple[Sequence, ...]
    max_draft: int = 0
    adapters: AdapterMix = NO_ADAPTERS

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences that have rows in the step."""
        return [*self.decode, *(chunk.sequence for chunk in self.prefill)]


class Scheduler:
    """The queue of requests, and the requests that run in slots.

    prefix_cache  the slots, and the parts of their caches that requests can reuse
    most_drafted  rows of a slot that can be taken back; None: any number
    """

    def __init__(self, *, n_ctx: int, n_batch: int, prefix_cache: PrefixCache, most_drafted: int | None = None) -> None:
        check_batch(len(prefix_cache.slots), n_batch)
        self._queue = FairQueue()
        self._running: dict[int, Sequence] = {}  # by slot, in the order of admission
        self._sources: dict[int, PrefixSource] = {}  # what sequences wait for, by slot
        self.prefix_cache = prefix_cache
        self._n_ctx, self._n_batch, self._most_drafted = n_ctx, n_batch, most_drafted
        self._last_mix, self._turn_s = NO_ADAPTERS, 0.0  # the mix whose turn it is, and for how long
        self._may_copy = False  # an idle slot may hold a conversation to copy to RAM

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running.values())

    @property
    def num_expected(self) -> int:
        """The number of slots that run soon: those that do, and free ones for which requests wait."""
        return min(len(self._running) + len(self._queue), len(self.prefix_cache.slots))

    @property
    def has_work(self) -> bool:
        return bool(self._queue or self._running)

    def add(self, request: Request) -> None:
        self._queue.add(request)

    def withdraw(self, request_id: str) -> bool:
        """Remove a request from the queue; return False if it does not wait there."""
        return self._queue.withdraw(request_id)

    # ---- slots
    def admit(self) -> Iterator[SlotAssignment]:
        """Give waiting requests the free slots that suit them best; later ones may reuse what earlier ones prefill."""
        while self._queue and len(self._running) < len(self.prefix_cache.slots):
            yield self._admit(self._queue.pop())

    def _admit(self, request: Request) -> SlotAssignment:
        sequence = Sequence(request, self.prefix_cache.best_slot(request, self._free), self._n_ctx)
        assignment, source = self.prefix_cache.admit(sequence, self._older_readers(sequence))
        self._running[sequence.slot] = sequence
        self._may_copy = True
        if source is not None:
            self._sources[sequence.slot] = source
        self._queue.charge(request.owner, sequence.num_prompt_rows - sequence.num_reused_rows)
        return assignment

    @property
    def _free(self) -> list[int]:
        return [slot for slot in range(len(self.prefix_cache.slots)) if not self.is_running(slot)]

    def is_running(self, slot: int) -> bool:
        return slot in self._running

    def slot_to_copy(self) -> int | None:
        """Return the idle slot whose conversation to copy to RAM now (see PrefixCache); None while a prompt waits."""
        if not self._may_copy or self._queue or any(s.is_prefilling for s in self._running.values()):
            return None
        slot = self.prefix_cache.slot_to_copy(self._free)
        self._may_copy = slot is not None
        return slot

    def stop_copying(self) -> None:
        """Make `slot_to_copy` return None until an answer starts or ends."""
        self._may_copy = False

    def resume(self) -> list[SlotAssignment]:
        """Return the assignments of slots that stopped waiting: their prefix is cached, or its reader has ended.

        Call it before `admit`.
        """
        resumed = []
        for slot, source in list(self._sources.items()):
            if source.is_pending and self._running.get(source.slot) is source.reader:
                continue
            del self._sources[slot]
            sequence = self._running[slot]
            num_own_rows = sequence.num_reused_rows
            own = SlotAssignment(sequence, is_cut=False, num_unchanged=0)
            assignment, new_source = self.prefix_cache.reuse(own, self._older_readers(sequence))
            if new_source is not None:
                self._sources[slot] = new_source
                continue
            self._queue.charge(sequence.request.owner, num_own_rows - sequence.num_reused_rows)
            resumed.append(assignment)
        return resumed

    def _older_readers(self, sequence: Sequence) -> list[Sequence]:
        """Return the prefilling sequences admitted before this one; with later ones, two could wait for each other."""
        older = takewhile(lambda other: other is not sequence, self._running.values())
        return [other for other in older if other.is_prefilling]

    def is_waiting(self, slot: int) -> bool:
        """Return whether the slot's sequence waits for another slot's prefix."""
        return slot in self._sources

    # ---- steps
    def schedule(self, max_draft: int, pace: PrefillPace = UNKNOWN) -> StepPlan:
        """Return the rows of the next step; `max_draft` limits the drafted rows of each decoding slot."""
        plan = self._plan_rows(self._next_group(), max_draft, pace)
        self._end_turn(plan, pace)
        return plan

    def _plan_rows(self, group: list[Sequence], max_draft: int, pace: PrefillPace) -> StepPlan:
        """Return the rows of sequences that have the same adapters."""
        mix = group[0].request.adapters if group else NO_ADAPTERS
        decode = tuple(s for s in group if not s.is_prefilling)
        max_draft = min(max_draft, self._max_draft_rows(len(decode), is_shared=len(decode) < len(group)))
        if self._most_drafted is not None:
            max_draft = min(max_draft, self._most_drafted)
        remaining = {s.slot: s.num_readable for s in group if s.is_prefilling}
        if not remaining:
            return StepPlan((), decode, max_draft, mix)
        most = {s.slot: min(max_draft, s.draft_room) for s in decode}
        likely = {slot: 1 + min(pace.drafted.get(slot, 0), drafts) for slot, drafts in most.items()}
        num_drafting = sum(drafts > 0 for drafts in most.values())
        equal = len(decode) + num_drafting * (max(likely.values(), default=1) - 1)  # rows, if all draft as far
        kept = min(len(decode) + sum(most.values()), max(equal, self._n_batch // 2))  # from prompts
        counts = allot_prompt_rows(remaining, likely, max_rows=self._n_batch - kept, pace=pace)
        chunks = [self._next_chunk(self._running[slot], count) for slot, count in counts.items()]
        if num_drafting:
            max_draft = min(max_draft, (self._n_batch - sum(counts.values()) - len(decode)) // num_drafting)
        return StepPlan(tuple(chunks), decode, max_draft, mix)

    def _next_group(self) -> list[Sequence]:
        """Return the sequences that can have rows in the next step: all with the adapters whose turn it is."""
        running = self._running.values()
        ready = [s for s in running if not s.is_prefilling or (s.num_readable > 0 and s.slot not in self._sources)]
        mixes = list(dict.fromkeys(s.request.adapters for s in ready))  # in the order of admission: each once a round
        if not mixes:
            return []
        if self._last_mix not in mixes or self._turn_s <= 0.0:
            next_one = mixes.index(self._last_mix) + 1 if self._last_mix in mixes else 0
            self._last_mix, self._turn_s = mixes[next_one % len(mixes)], TURN_S
        return [s for s in ready if s.request.adapters == self._last_mix]

    def _end_turn(self, plan: StepPlan, pace: PrefillPace) -> None:
        """Shorten the turn by the step's predicted seconds; a step of unknown cost ends it."""
        if len({s.request.adapters for s in self._running.values()}) <= 1:
            self._turn_s = 0.0
            return
        rows = {s.slot: 1 + min(pace.drafted.get(s.slot, 0), plan.max_draft) for s in plan.decode}
        self._turn_s -= pace.seconds(rows | {chunk.slot: chunk.count for chunk in plan.prefill}) or TURN_S

    def _next_chunk(self, sequence: Sequence, count: int) -> Chunk:
        """Return the next rows of a prompt, up to the position at which the state is to be saved."""
        first = sequence.num_cached
        position = self.prefix_cache.checkpoints.position_to_save(sequence)
        if position is None or not first < position <= first + count:
            return Chunk(sequence, first, count)
        return Chunk(sequence, first, position - first, is_saved=True)

    def image_due(self) -> tuple[Sequence, PlacedImage] | None:
        """Return the next image to decode and its sequence, the oldest whose preceding text is cached; or None."""
        for sequence in self._running.values():
            image = sequence.next_image
            if image is not None and not sequence.num_readable and sequence.slot not in self._sources:
                return sequence, image
        return None

    def _max_draft_rows(self, num_decoding: int, *, is_shared: bool) -> int:
        """Return how many drafted rows the batch has room for after each root; `is_shared`: beside prompts."""
        if num_decoding == 0:
            return 0
        least = max(min(self._n_batch // PREFILL_SHARE, MIN_PROMPT_ROWS), 1)
        rows = self._n_batch - (least if is_shared else 0)
        return max(rows // num_decoding - 1, 0)

    def commit(self, sequence: Sequence, tokens: list[int]) -> None:
        """Record that these tokens of the sequence were decoded into its slot's cache.

        Their owner is charged, except for a prompt, which was charged at admission, and for an answer that ended before
        they were decoded.
        """
        if not sequence.is_prefilling and self._running.get(sequence.slot) is sequence:
            self._queue.charge(sequence.request.owner, len(tokens))
        self.prefix_cache.append(sequence, tokens)

    def release(self, sequence: Sequence) -> None:
        """Free the sequence's slot; its cache stays for reuse."""
        del self._running[sequence.slot]
        self._may_copy = True
        self._sources.pop(sequence.slot, None)
        self._queue.end(sequence.request.owner)

    def restart(self, sequence: Sequence) -> None:
        """Let the sequence prefill its whole prompt, because the cells that it was to reuse could not be restored."""
        self._queue.charge(sequence.request.owner, sequence.num_reused_rows)
        sequence.start_from(0)
        self.prefix_cache.forget(sequence.slot)


def check_batch(num_slots: int, n_batch: int) -> None:
    """Check that the batch has a row for every slot in each step. Raises ResourceError."""
    if num_slots > n_batch:
        message = f"{num_slots} slots need as many rows in a batch of {n_batch}"
        raise ResourceError(message, hint=f"--parallel {n_batch}")


# ---- queue: queue waiting requests fairly: the owner who was served least recently is next, and their oldest request
#
# Start-time fair queueing over tokens (Goyal, Vin, Cheng, SIGCOMM 1996; for language models "virtual token counters",
# Sheng et al., OSDI 2024): an owner's account counts the tokens computed for them, the lowest account is served next,
# and the account of the last one served is the virtual time. An owner who returns starts at that time at least, so
# being idle earns no credit; when all are idle, accounts are reset. Pure bookkeeping: no clock, no slots.
#
# a has eight requests queued, one of 100 tokens runs, b arrives accounts a 100, b 0 b is next only a was served for
# an hour, then b returns accounts a 5 000, b 4 900 b is next, then a again
class FairQueue:
    """A queue with one line per owner; "" is an owner like any other."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[tuple[int, Request]]] = {}  # by owner: (number of arrival, request); never empty
        self._accounts: dict[str, int] = {}  # tokens, by owner
        self._running: Counter[str] = Counter()
        self._now = 0  # virtual time: the account of the owner served last, when they were served
        self._num_arrived = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, request: Request) -> None:
        if request.owner not in self._lines:
            self._lines[request.owner] = deque()
            self._accounts[request.owner] = max(self._accounts.get(request.owner, 0), self._now)
        self._lines[request.owner].append((self._num_arrived, request))
        self._num_arrived += 1

    def withdraw(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        for owner, line in self._lines.items():
            for entry in line:
                if entry[1].id == request_id:
                    line.remove(entry)
                    self._forget_idle(owner)
                    return True
        return False

    def pop(self) -> Request:
        """Return the next request. Call `end` when it is finished."""
        owner = min(self._lines, key=lambda name: (self._accounts[name], self._lines[name][0][0]))
        _, request = self._lines[owner].popleft()
        self._now = max(self._now, self._accounts[owner])
        self._running[owner] += 1
        self._forget_idle(owner)
        return request

    def charge(self, owner: str, num_tokens: int) -> None:
        """Charge the owner of a running request for computed tokens; a negative number corrects an earlier charge."""
        self._accounts[owner] += num_tokens

    def end(self, owner: str) -> None:
        """Record that a request of the owner is finished."""
        self._running[owner] -= 1
        if not self._lines and not self._running.total():
            self._now = max(self._accounts.values())  # no request waits: earlier work no longer counts
        self._forget_idle(owner)

    def _forget_idle(self, owner: str) -> None:
        """Forget owners without requests whose account is not higher than a new owner's."""
        if owner in self._lines and not self._lines[owner]:
            del self._lines[owner]
        for name in [name for name, account in self._accounts.items() if account <= self._now]:
            if name not in self._lines and not self._running[name]:
                del self._accounts[name], self._running[name]
