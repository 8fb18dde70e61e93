"""Schedule the rows of a step: slots, prefix reuse within and across them, chunked prefill. Pure bookkeeping.

Works on token ids and counts: no model, no clock. Waiting requests are served in the order of queue.py; decoding slots
go first, and prompts get the rows that prefill.py allows beside them.

The part of a prompt that another slot holds, or is about to read, is not computed again: the prompt's slot gets a copy
of those cells, and until they are there it waits without rows. The texts are equal, so it does not matter whose they
are. A conversation whose slot another request needs is swapped out, and in again when a prompt goes on with it
(host_swap.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from eaglelocal.core.image import PlacedImage
from eaglelocal.core.request import Request
from eaglelocal.core.sequence import Sequence
from eaglelocal.errors import ResourceError
from eaglelocal.scheduler.checkpoints import BEFORE_END, Checkpoints
from eaglelocal.scheduler.common_prefix import common_prefix
from eaglelocal.scheduler.host_swap import HostSwap, SwappedText
from eaglelocal.scheduler.prefill import MIN_ROWS, UNKNOWN, PrefillPace, prompt_rows
from eaglelocal.scheduler.queue import FairQueue

PREFILL_SHARE = 4  # in a small batch drafts leave prompts one row in this many


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt rows first..first+count-1 of a sequence; `is_last` if the answer begins after them.

    is_saved  the state after them is to be saved, see checkpoints.py
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
    """The prompt chunks and decoding sequences of a step; max_draft: most drafted rows of each of the latter."""

    prefill: tuple[Chunk, ...]
    decode: tuple[Sequence, ...]
    max_draft: int = 0


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """A decision that a request gets a slot, or that one which has it need not wait for another slot's prefix any more.

    is_cut        cells of the slot from sequence.num_reused on are void
    num_unchanged tokens of the slot that a drafter may rely on (num_reused and its margin)
    source        the slot from which these cells and tokens are to be copied; None: they are the slot's own
    is_waiting    it gets no rows until `resume` returns what it starts from
    swapped_out   key under which to swap out what the slot held, before all else
    swapped_in    key of the conversation to swap in; None: none
    """

    sequence: Sequence
    is_cut: bool
    num_unchanged: int
    source: int | None = None
    is_waiting: bool = False
    swapped_out: int | None = None
    swapped_in: int | None = None

    @property
    def swaps(self) -> bool:
        return self.swapped_out is not None or self.swapped_in is not None


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """A slot that holds the first tokens of another slot's prompt, or will when its own prompt has been read."""

    slot: int
    reader: Sequence | None  # the sequence that reads that prompt; None: the cells are there
    num_tokens: int


class Scheduler:
    """The slots, and the queue of requests for them.

    reuse_margin  rows of a reused prefix that are decoded again (see Drafter)
    can_cut       a cache can drop its end; recurrent state cannot, and is continued, or taken back to a checkpoint
    checkpoints   of caches that cannot be cut; None: they are continued or discarded
    most_drafted  rows of a slot that can be taken back; None: any number
    min_fork      prompt rows that must be gained to copy cells between slots; None: they cannot be copied
    """

    def __init__(
        self,
        *,
        num_slots: int,
        n_ctx: int,
        n_batch: int,
        reuse_margin: int = 0,
        can_cut: bool = True,
        checkpoints: Checkpoints | None = None,
        most_drafted: int | None = None,
        min_fork: int | None = None,
    ) -> None:
        check_batch(num_slots, n_batch)
        self._queue = FairQueue()
        self._running: dict[int, Sequence] = {}  # by slot, in the order of admission
        self._leads: dict[int, PrefixSource] = {}  # by slot that waits
        self._cached: list[list[int]] = [[] for _ in range(num_slots)]  # tokens in each slot's cache
        self._is_seen = [True] * num_slots  # the drafters have seen exactly the rows that are cached
        self._with_images: set[int] = set()  # slots whose last prompt had some
        self._prompt_ends = [0] * num_slots  # positions where their next prompts may differ from the last ones
        self._floors = [0] * num_slots  # positions before which a window that was swapped in cannot be cut
        self._last_used = list(range(-num_slots, 0))
        self._clock = 0
        self.can_cut, self._min_fork = can_cut, min_fork if can_cut else None
        self.checkpoints, self._most_drafted = checkpoints or Checkpoints(0), most_drafted
        self.swap = HostSwap()  # holds nothing, until one with main memory is set
        self._n_ctx, self._n_batch, self._reuse_margin = n_ctx, n_batch, reuse_margin

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running.values())

    @property
    def has_work(self) -> bool:
        return bool(self._queue or self._running)

    def add(self, request: Request) -> None:
        self._queue.add(request)

    def withdraw(self, request_id: str) -> bool:
        """Take a request out of the queue; False if it does not wait there."""
        return self._queue.withdraw(request_id)

    # ---- who gets which slot, and what of its cache
    def admit(self) -> Iterator[SlotAssignment]:
        """Give waiting requests the free slots that suit them best; later ones may start from what earlier ones do."""
        while self._queue and len(self._running) < len(self._cached):
            yield self._admit(self._queue.pop())

    def _admit(self, request: Request) -> SlotAssignment:
        slot = self._best_slot(request)
        sequence = Sequence(request, slot, self._n_ctx)
        common = self._common(slot, request)
        unchanged = min(common, len(request.prompt) - 1)  # the last prompt row gives the first logits
        is_cut = unchanged < len(self._cached[slot]) or not self._is_seen[slot]
        places = self._places(slot)
        if is_cut:
            unchanged = self._go_back(slot, unchanged)
        reused = sequence.before_images(max(unchanged - self._reuse_margin, 0)) if is_cut else unchanged
        sequence.num_cached = sequence.num_reused = reused
        held = SwappedText(self._cached[slot], self._is_seen[slot], places)
        self._hold(sequence, held.tokens[:reused], floor=self._floors[slot])
        self._is_seen[slot] = not is_cut
        self._running[slot] = sequence
        (self._with_images.add if request.images else self._with_images.discard)(slot)
        self._clock += 1
        self._last_used[slot] = self._clock
        self._queue.charge(request.owner, sequence.num_prompt_rows - sequence.num_reused_rows)
        alone = SlotAssignment(sequence, is_cut, unchanged)
        admission = self._spare(alone)
        return self._swap_out(admission, held, common, is_left=admission is not alone)

    def _hold(self, sequence: Sequence, tokens: list[int], *, floor: int = 0) -> None:
        """Set what the sequence's slot holds while its prompt is read; for `floor` see `_floors`."""
        slot = sequence.slot
        self._cached[slot], self._floors[slot] = tokens, floor if tokens else 0
        self._prompt_ends[slot] = sequence.num_prompt - BEFORE_END

    def _places(self, slot: int) -> tuple[int, ...] | None:
        """Return the positions from which the slot's text can go on, beside its end; None: all."""
        if not self.can_cut:
            return self.checkpoints.places(slot)
        if not self.swap.of_windows:
            return None
        place = self._prompt_ends[slot]
        return (place,) if max(self._floors[slot], 1) <= place < len(self._cached[slot]) else ()

    def _swap_out(self, admission: SlotAssignment, held: SwappedText, common: int, *, is_left: bool) -> SlotAssignment:
        """Let the admission swap out what the slot held, if that is worth it.

        common   tokens of it with which the new text begins
        is_left  the new text starts from cells found elsewhere
        """
        if not self.swap.wants(held.tokens, common, is_left=is_left):
            return admission
        if self.swap.of_windows and not is_left:  # saving at a place cuts the slot there, and num_reused must stay
            held.places = tuple(place for place in held.places or () if place >= admission.sequence.num_reused)
        return replace(admission, swapped_out=self.swap.put(held))

    def _spare(self, alone: SlotAssignment) -> SlotAssignment:
        """Return how a sequence starts if main memory or another slot saves it work; else `alone`."""
        return self._swap_in(alone) or self._follow(alone)

    def _swap_in(self, alone: SlotAssignment) -> SlotAssignment | None:
        """Return how a sequence starts from a conversation in main memory; None if a slot's cells are as good."""
        sequence = alone.sequence
        request, slot = sequence.request, sequence.slot
        wanted = request.reuses_cache
        found = self.swap.best(request.prompt, margin=self._reuse_margin) if wanted else None
        if found is None or found.num_reused - sequence.num_reused < self.swap.least_rows:
            return None
        lead = self._lead(sequence)
        if lead is not None and lead.num_tokens >= found.num_unchanged:
            return None
        conversation, reused = self.swap.take(found), found.num_reused
        is_cut = reused < len(conversation.tokens) or not conversation.is_seen
        own, self._is_seen[slot] = sequence.num_reused, not is_cut
        self._hold(sequence, conversation.tokens[:reused], floor=reused if self.swap.of_windows else 0)
        if not self.can_cut:
            self.checkpoints.move_in(slot, [place for place in conversation.places or () if place <= reused])
        sequence.num_cached = sequence.num_reused = reused
        self._queue.charge(request.owner, own - reused)
        return replace(alone, is_cut=is_cut, num_unchanged=found.num_unchanged, swapped_in=found.key)

    def _go_back(self, slot: int, unchanged: int) -> int:
        """Return the tokens that a sequence may rely on; a cache that cannot be cut goes back to a checkpoint first."""
        if self.can_cut:
            return unchanged if unchanged - self._reuse_margin >= self._floors[slot] else 0
        place = self.checkpoints.best(slot, unchanged - self._reuse_margin)
        self.checkpoints.cut(slot, place)
        if not place:
            return 0
        self.checkpoints.use(slot, place)
        return place + self._reuse_margin

    def _best_slot(self, request: Request) -> int:
        """Return the free slot whose cache the request goes on with; else the least recently used one.

        A slot of which more would be discarded than kept holds another conversation: a shared system prompt alone is no
        reason to evict it.
        """

        def worth(slot: int) -> tuple[int, int]:
            common = self._common(slot, request)
            return (common if 2 * common >= len(self._cached[slot]) else 0, -self._last_used[slot])

        return max((slot for slot in range(len(self._cached)) if slot not in self._running), key=worth)

    def _common(self, slot: int, request: Request) -> int:
        """Return the number of tokens in the slot's cache with which the request begins, if it may reuse any."""
        return common_prefix(self._cached[slot], request.prompt) if request.reuses_cache else 0

    # ---- what another slot's cache is good for
    def resume(self) -> list[SlotAssignment]:
        """Return admissions of slots that need not wait any longer: the prefix is there, or its reader is gone.

        Must be called before `admit`.
        """
        resumed = []
        for slot, lead in list(self._leads.items()):
            if self._is_coming(lead):
                continue
            del self._leads[slot]
            admission = self._spare(SlotAssignment(self._running[slot], is_cut=False, num_unchanged=0))
            if not admission.is_waiting:
                resumed.append(admission)
        return resumed

    def is_waiting(self, slot: int) -> bool:
        """Return whether the slot's sequence waits for another slot's prefix."""
        return slot in self._leads

    def _is_coming(self, lead: PrefixSource) -> bool:
        """Return whether the prefix's reader still runs, and has not read it all yet."""
        reader = self._running.get(lead.slot)
        return reader is lead.reader and reader is not None and reader.num_cached < lead.num_tokens

    def _follow(self, alone: SlotAssignment) -> SlotAssignment:
        """Return how a sequence starts if another slot saves it work; else `alone`."""
        sequence = alone.sequence
        lead = self._lead(sequence)
        if lead is None:
            return alone
        if self._is_coming(lead):
            self._leads[sequence.slot] = lead
            return replace(alone, is_waiting=True)
        return self._fork(sequence, lead)

    def _lead(self, sequence: Sequence) -> PrefixSource | None:
        """Return the slot that holds most of the prompt, or will hold so much more that waiting pays; or None."""
        if self._min_fork is None or not sequence.request.reuses_cache:
            return None
        prompt = sequence.request.prompt
        best = None
        least = sequence.num_reused_rows + self._reuse_margin + self._min_fork
        for lead in self._candidates(sequence):
            tokens = self._cached[lead.slot] if lead.reader is None else lead.reader.request.prompt
            common = min(common_prefix(tokens, prompt), len(prompt) - 1)
            more = 0 if lead.reader is None else self._min_fork  # to wait for a little more is no gain
            num_rows = sequence.rows_before(common)
            if num_rows >= (least if best is None else sequence.rows_before(best.num_tokens) + 1 + more):
                best = PrefixSource(lead.slot, lead.reader, common)
        return best

    def _candidates(self, sequence: Sequence) -> Iterable[PrefixSource]:
        """Return slots that hold cells, then prompts being read, older ones only: two could wait for each other."""
        order = list(self._running)
        older = order[: order.index(sequence.slot)]
        readers = [slot for slot in older if self._running[slot].is_prefilling]
        others = [slot for slot in range(len(self._cached)) if slot != sequence.slot and slot not in readers]
        return [
            *(PrefixSource(slot, None, 0) for slot in others),
            *(PrefixSource(slot, self._running[slot], 0) for slot in readers),
        ]

    def _fork(self, sequence: Sequence, lead: PrefixSource) -> SlotAssignment:
        slot, num_own_rows = sequence.slot, sequence.num_reused_rows
        reused = sequence.before_images(lead.num_tokens - self._reuse_margin)
        self._cached[slot] = self._cached[lead.slot][:reused]
        self._is_seen[slot] = False
        sequence.num_cached = sequence.num_reused = reused
        self._queue.charge(sequence.request.owner, num_own_rows - sequence.num_reused_rows)
        return SlotAssignment(sequence, is_cut=True, num_unchanged=lead.num_tokens, source=lead.slot)

    # ---- steps
    def schedule(self, max_draft: int, pace: PrefillPace = UNKNOWN) -> StepPlan:
        """Return the rows of the next step. `max_draft` bounds drafted rows per decoding slot, as does the batch."""
        decode = tuple(s for s in self._running.values() if not s.is_prefilling)
        max_draft = min(max_draft, self._draft_rows(len(decode)))
        if self._most_drafted is not None:
            max_draft = min(max_draft, self._most_drafted)
        left = {s.slot: s.num_readable for s in self._running.values() if self._may_read(s)}
        if not left:
            return StepPlan((), decode, max_draft)
        most = {s.slot: min(max_draft, s.draft_room) for s in decode}
        counts = prompt_rows(
            left,
            {slot: 1 + min(pace.drafted.get(slot, 0), drafts) for slot, drafts in most.items()},
            room=self._n_batch - len(decode) - sum(most.values()),
            pace=pace,
        )
        chunks = [self._chunk(self._running[slot], count) for slot, count in counts.items()]
        return StepPlan(tuple(chunks), decode, max_draft)

    def _chunk(self, sequence: Sequence, count: int) -> Chunk:
        """Return the next rows of a prompt, no further than a place whose state is to be saved."""
        first = sequence.num_cached
        place = self.checkpoints.wanted(sequence)
        if place is None or not first < place <= first + count:
            return Chunk(sequence, first, count)
        return Chunk(sequence, first, place - first, is_saved=True)

    def _may_read(self, sequence: Sequence) -> bool:
        return sequence.is_prefilling and sequence.slot not in self._leads and sequence.num_readable > 0

    def image_due(self) -> tuple[Sequence, PlacedImage] | None:
        """Return the image to read next: the oldest prompt's, among those whose text before it is cached; or None."""
        for sequence in self._running.values():
            image = sequence.next_image
            if image is not None and not sequence.num_readable and sequence.slot not in self._leads:
                return sequence, image
        return None

    def may_hold_images(self, slot: int) -> bool:
        """Return whether the slot's cache may have fewer positions than cells."""
        return slot in self._with_images

    def _draft_rows(self, num_decoding: int) -> int:
        """Return how many drafted rows the batch has room for after each root."""
        if num_decoding == 0:
            return 0
        is_shared = num_decoding < len(self._running)
        least = max(min(self._n_batch // PREFILL_SHARE, MIN_ROWS), 1)
        rows = self._n_batch - (least if is_shared else 0)
        return max(rows // num_decoding - 1, 0)

    def cached(self, sequence: Sequence, tokens: list[int]) -> None:
        """Record that these tokens of the sequence were decoded and stay in its slot's cache."""
        if not sequence.is_prefilling:  # a prompt was charged when it was admitted
            self._queue.charge(sequence.request.owner, len(tokens))
        self._cached[sequence.slot].extend(tokens)
        self._is_seen[sequence.slot] = True
        sequence.num_cached += len(tokens)

    def ends_with_image(self, slot: int) -> bool:
        return bool(self._cached[slot]) and self._cached[slot][-1] < 0

    def num_cached(self, slot: int) -> int:
        """Return the number of positions in the slot's cache, whether it runs or not."""
        return len(self._cached[slot])

    def release(self, sequence: Sequence) -> None:
        """Free the sequence's slot; its cache stays for reuse."""
        del self._running[sequence.slot]
        self._leads.pop(sequence.slot, None)
        self._queue.end(sequence.request.owner)

    def restart(self, sequence: Sequence) -> None:
        """Let the sequence start from nothing, as what it was to start from is not there after all."""
        self._queue.charge(sequence.request.owner, sequence.num_reused_rows)
        sequence.num_cached = sequence.num_reused = 0
        self.forget(sequence.slot)

    def forget(self, slot: int) -> None:
        """Forget the slot's cache, which is void (a decode failed)."""
        self._cached[slot], self._floors[slot] = [], 0
        self.checkpoints.cut(slot, 0)


def check_batch(num_slots: int, n_batch: int) -> None:
    """Check that the batch has a row for every slot in each step. Raises ResourceError."""
    if num_slots > n_batch:
        raise ResourceError(f"{num_slots} slots need as many rows in a batch of {n_batch}", hint="a smaller --parallel")
