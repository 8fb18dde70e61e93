"""Find the prefix of a prompt that need not be computed, because its slot, RAM or another slot holds it.

    own slot      the conversation goes on where it stopped, or is cut back to where the prompt differs
    RAM           the conversation was evicted from its slot, and is swapped in (host_swap.py)
    another slot  holds the prefix, or is about to prefill it: the cells are copied as soon as they are there

Equal tokens have equal cells if the same LoRA adapters computed them. But the amount of reuse tells a prompt's sender
what the cached text says. So a prompt reuses texts of its own owner, and of other owners only a beginning that the
operator shares (Request.count_reusable). Pure bookkeeping: tokens and positions, no cells. It knows neither queue nor
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several
from dataclasses import replace

from eaglelocal.core.request import Request
from eaglelocal.core.sequence import Sequence
from eaglelocal.scheduler.host_swap import HostSwap, SwappedText
from eaglelocal.scheduler.slot import BEFORE_END, Checkpoints, PrefixSource, Slot, SlotAssignment

MAX_COPIED_AHEAD = 2  # idle slots whose conversations are copied to RAM before another conversation takes the slot


class PrefixCache:
    """The texts in the slots' caches.

    reuse_margin  rows of a reused prefix that are decoded again (see Drafter)
    can_cut       a cache can drop its end; recurrent state cannot, and is continued, or taken back to a checkpoint
    checkpoints   of caches that cannot be cut; None: they are continued or discarded
    min_fork      prompt rows that must be gained to copy cells between slots; None: they cannot be copied
    swap          the conversations in RAM; None: nothing is swapped
    may_store     returns whether a text is worth a place on disk: then it is copied to RAM although its slot may go on;
                  None: there is no place
    """

    def __init__(
        self,
        num_slots: int,
        *,
        reuse_margin: int = 0,
        can_cut: bool = True,
        checkpoints: Checkpoints | None = None,
        min_fork: int | None = None,
        swap: HostSwap | None = None,
        may_store: Callable[[Slot], bool] | None = None,
    ) -> None:
        self.slots = [Slot(index, last_used=index - num_slots) for index in range(num_slots)]
        self.can_cut, self.checkpoints, self.swap = can_cut, checkpoints or Checkpoints(0), swap or HostSwap()
        self._reuse_margin, self._min_fork = reuse_margin, min_fork if can_cut else None
        self._may_store = may_store
        self._num_admitted = 0
        self._has_evicted = False  # the last admission evicted a conversation

    def best_slot(self, request: Request, free: Iterable[int]) -> int:
        """Return the free slot whose text the request continues, or else the least recently used one.

        A slot where more would be discarded than kept holds another conversation, and so does another owner's slot: a
        shared system prompt alone is no reason to evict it.
        """

        def worth(index: int) -> tuple[int, int]:
            slot = self.slots[index]
            num_common = self._num_common(slot, request)
            goes_on = slot.owner == request.owner and 2 * num_common >= len(slot.tokens)
            return (num_common if goes_on else 0, -slot.last_used)

        return max(free, key=worth)

    def _num_common(self, slot: Slot, request: Request) -> int:
        may_reuse = request.reuses_cache and request.adapters == slot.adapters
        return request.count_reusable(slot.tokens, slot.owner) if may_reuse else 0

    def admit(self, sequence: Sequence, readers: Several[Sequence]) -> tuple[SlotAssignment, PrefixSource | None]:
        """Decide where the sequence starts from, and what happens to its slot's old text.

        readers  older sequences that are prefilling

        Also return the slot to wait for, if the sequence has to wait.
        """
        slot = self.slots[sequence.slot]
        num_common = self._num_common(slot, sequence.request)
        old = self._describe(slot)
        request = sequence.request
        slot.owner, slot.is_private, slot.adapters = request.owner, request.is_private, request.adapters
        own = self._reuse_own(slot, sequence, num_common)
        assignment, source = self.reuse(own, readers)
        return self._swap_out(assignment, old, num_common, starts_elsewhere=assignment is not own), source

    def _reuse_own(self, slot: Slot, sequence: Sequence, num_common: int) -> SlotAssignment:
        """Cut the slot's text back to the beginning that the sequence continues."""
        unchanged = min(num_common, len(sequence.request.prompt) - 1)  # the last prompt row gives the first logits
        is_cut = unchanged < len(slot.tokens) or not slot.is_seen
        if is_cut:
            unchanged = self._go_back(slot, unchanged)
        reused = sequence.align_before_image(max(unchanged - self._reuse_margin, 0)) if is_cut else unchanged
        self._fill(slot, sequence, slot.tokens[:reused], first_cut=slot.first_cut, is_seen=not is_cut)
        slot.has_images = bool(sequence.request.images)
        self._num_admitted += 1
        slot.last_used = self._num_admitted
        return SlotAssignment(sequence, is_cut, unchanged)

    def _go_back(self, slot: Slot, unchanged: int) -> int:
        """Return the tokens that a sequence may rely on; a cache that cannot be cut goes back to a checkpoint first."""
        if self.can_cut:
            return unchanged if unchanged - self._reuse_margin >= slot.first_cut else 0
        position = self.checkpoints.best(slot.index, unchanged - self._reuse_margin)
        self.checkpoints.cut(slot.index, position)
        if not position:
            return 0
        self.checkpoints.use(slot.index, position)
        return position + self._reuse_margin

    def _fill(self, slot: Slot, sequence: Sequence, tokens: list[int], *, first_cut: int, is_seen: bool) -> None:
        """Record that the sequence starts in the slot with these cached tokens."""
        slot.tokens, slot.is_seen = tokens, is_seen
        slot.first_cut = first_cut if tokens else 0
        slot.prompt_end = sequence.num_prompt - BEFORE_END
        sequence.start_from(len(tokens))

    # ---- from elsewhere
    def reuse(self, own: SlotAssignment, readers: Several[Sequence]) -> tuple[SlotAssignment, PrefixSource | None]:
        """Return how a sequence starts if RAM or another slot saves work, else `own`.

        Also return the slot to wait for, if the sequence has to wait.
        """
        source = self._best_source(own.sequence, readers)
        if swapped := self._swap_in(own, source):
            return swapped, None
        if source is None:
            return own, None
        if source.is_pending:
            return replace(own, is_waiting=True), source
        return self._fork(own.sequence, source), None

    def _swap_in(self, own: SlotAssignment, source: PrefixSource | None) -> SlotAssignment | None:
        """Return how a sequence starts from a conversation in RAM; None if a slot's cells are as good."""
        sequence, slot = own.sequence, self.slots[own.sequence.slot]
        request = sequence.request
        if not request.reuses_cache:
            return None
        match = self.swap.best(request, margin=self._reuse_margin)
        if match is None or match.num_reused - sequence.num_reused < self.swap.min_rows:
            return None
        if source is not None and source.num_tokens >= match.num_unchanged:
            return None
        text, reused = self.swap.take(match, request.owner), match.num_reused
        is_cut = reused < len(text.tokens) or not text.is_seen
        first_cut = reused if self.swap.has_windows else 0
        self._fill(slot, sequence, text.tokens[:reused], first_cut=first_cut, is_seen=not is_cut)
        if not self.can_cut:
            self.checkpoints.move_in(slot.index, [place for place in text.places or () if place <= reused])
        return replace(own, is_cut=is_cut, num_unchanged=match.num_unchanged, swapped_in=match.key)

    def _swap_out(
        self, assignment: SlotAssignment, old: SwappedText, num_common: int, *, starts_elsewhere: bool
    ) -> SlotAssignment:
        """Let the assignment swap out the slot's old text, if that is worth it.

        num_common        tokens of it with which the new text begins
        starts_elsewhere  the new text starts from cells found elsewhere
        """
        slot = self.slots[assignment.sequence.slot]
        copy_key, slot.copy_key = slot.copy_key, None
        is_other = starts_elsewhere or slot.owner != old.owner
        self._has_evicted = self.swap.is_left(old.tokens, num_common, is_other=is_other)
        if copy_key is not None and copy_key in self.swap:
            self.swap.settle(copy_key, is_left=self._has_evicted)
            return assignment
        if not self.swap.is_worth_keeping(old, num_common, is_other=is_other):
            return assignment
        if self.swap.has_windows and not starts_elsewhere:
            # saving the state at a position cuts the slot there, and num_reused must stay
            old.places = tuple(place for place in old.places or () if place >= assignment.sequence.num_reused)
        return replace(assignment, swapped_out=self.swap.put(old))

    def slot_to_copy(self, free: Iterable[int]) -> int | None:
        """Return the free slot whose conversation to copy to RAM, ahead of the request that takes the slot; or None.

        The least recently used are taken first. The conversation that was used last probably continues, unless
        conversations take turns. Copying a sliding window would cut it. While all slots are free, conversations for the
        disk are taken too, the newest first.
        """
        if self.swap.has_windows:
            return None
        oldest_first = sorted([self.slots[index] for index in free], key=lambda each: each.last_used)
        for slot in oldest_first[:MAX_COPIED_AHEAD]:
            is_current = slot.last_used == self._num_admitted and not self._has_evicted
            if not is_current and self._is_worth_keeping(slot):
                return slot.index
        if self._may_store is None or len(oldest_first) < len(self.slots):
            return None
        stored = (slot for slot in reversed(oldest_first) if not slot.is_private and self._may_store(slot))
        return next((slot.index for slot in stored if self._is_worth_keeping(slot)), None)

    def _is_worth_keeping(self, slot: Slot) -> bool:
        return self.swap.is_worth_keeping(self._describe(slot), 0, is_other=True)

    def num_held(self, request: Request) -> int:
        """Return how many prompt tokens slots and RAM would save. May be called from any thread."""
        return max(self.swap.num_held(request), *(self._num_common(slot, request) for slot in self.slots))

    def put_copy(self, index: int) -> int:
        """Note that the slot's conversation is being copied to RAM, and return its key."""
        slot = self.slots[index]
        text = self._describe(slot)
        slot.copy_key = self.swap.put(replace(text, tokens=list(slot.tokens), is_in_slot=True))
        return slot.copy_key

    def _describe(self, slot: Slot) -> SwappedText:
        return SwappedText(
            slot.tokens,
            slot.is_seen,
            self._resumable(slot),
            is_private=slot.is_private,
            owner=slot.owner,
            adapters=slot.adapters,
        )

    def _resumable(self, slot: Slot) -> tuple[int, ...] | None:
        """Return the positions at which the slot's text can resume, besides its end; None: all."""
        if not self.can_cut:
            return self.checkpoints.positions(slot.index)
        if not self.swap.has_windows:
            return None
        return (slot.prompt_end,) if max(slot.first_cut, 1) <= slot.prompt_end < len(slot.tokens) else ()

    def _best_source(self, sequence: Sequence, readers: Several[Sequence]) -> PrefixSource | None:
        """Return the slot that holds most of the prompt, or will hold so much more that waiting pays; or None."""
        request, best = sequence.request, None
        if self._min_fork is None or not request.reuses_cache:
            return None
        least = sequence.num_reused_rows + self._reuse_margin + self._min_fork
        for slot, reader in self._candidates(sequence, readers):
            tokens = self.slots[slot].tokens if reader is None else reader.request.prompt
            num_common = min(request.count_reusable(tokens, self.slots[slot].owner), len(request.prompt) - 1)
            more = 0 if reader is None else self._min_fork  # waiting for a little more is no gain
            num_rows = sequence.rows_before(num_common)
            if num_rows >= (least if best is None else sequence.rows_before(best.num_tokens) + 1 + more):
                best = PrefixSource(slot, reader, num_common)
        return best

    def _candidates(self, sequence: Sequence, readers: Several[Sequence]) -> list[tuple[int, Sequence | None]]:
        """Return the other slots that hold cells, then the slots that are prefilling, with their sequences."""
        reading = [(reader.slot, reader) for reader in readers]
        skipped, adapters = {sequence.slot, *dict(reading)}, sequence.request.adapters
        others = [slot for slot in self.slots if slot.index not in skipped and slot.adapters == adapters]
        alike = [(slot, reader) for slot, reader in reading if reader.request.adapters == adapters]
        return [*((slot.index, None) for slot in others), *alike]

    def _fork(self, sequence: Sequence, source: PrefixSource) -> SlotAssignment:
        slot = self.slots[sequence.slot]
        reused = sequence.align_before_image(source.num_tokens - self._reuse_margin)
        slot.tokens, slot.is_seen = self.slots[source.slot].tokens[:reused], False
        sequence.start_from(reused)
        return SlotAssignment(sequence, is_cut=True, num_unchanged=source.num_tokens, source=source.slot)

    # ---- as tokens come
    def append(self, sequence: Sequence, tokens: list[int]) -> None:
        """Record that these tokens of the sequence were decoded into its slot's cache."""
        slot = self.slots[sequence.slot]
        slot.tokens.extend(tokens)
        slot.is_seen = True
        sequence.advance(len(tokens))

    def num_cached(self, index: int) -> int:
        """Return the number of positions in the slot's cache, whether it runs or not."""
        return len(self.slots[index].tokens)

    def forget(self, index: int) -> None:
        """Forget the slot's cache: its contents are unknown after a failed decode."""
        slot = self.slots[index]
        slot.tokens, slot.first_cut = [], 0
        self.checkpoints.cut(index, 0)
