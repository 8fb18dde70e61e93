"""The contents of the slots: the target's cells, the scheduler's records of them, and the drafters' states.

All three change together: only this module cuts, copies, commits and empties them. Does not know requests, texts or
times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np

from eaglelocal.core.batch import Bytes
from eaglelocal.core.draft import FORCED, Draft, Verdict
from eaglelocal.core.image import PlacedImage
from eaglelocal.core.ports import Context
from eaglelocal.core.records import dataclass
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.drafter import Committed, Drafter
from eaglelocal.engine.conversation_files import ConversationFiles
from eaglelocal.engine.runner import Decoded
from eaglelocal.engine.sequence_ids import SequenceIds
from eaglelocal.errors import ResourceError
from eaglelocal.scheduler.host_swap import SwappedText
from eaglelocal.scheduler.scheduler import Chunk, Scheduler, StepPlan
from eaglelocal.scheduler.slot import SlotAssignment


class SwappedSlot(NamedTuple):
    """The cells and states of a slot, copied to RAM."""

    cells: Bytes
    states: dict[int, bytearray]  # by position; decoding can resume there although cells cannot be cut
    drafters: list[object]  # what each drafter's `swap_out` returned; None, as after reading from disk: only the tokens


class SlotCaches:
    """The caches of all slots."""

    def __init__(
        self,
        context: Context,
        sequence_ids: SequenceIds,
        drafters: Several[Drafter],
        scheduler: Scheduler,
        files: ConversationFiles | None,
    ) -> None:
        self._context, self.sequence_ids, self._files = context, sequence_ids, files
        self._drafters, self._scheduler, self._prefixes = drafters, scheduler, scheduler.prefix_cache
        self._reads_refused = any(drafter.traits.reads_refused for drafter in drafters)
        self._saved: dict[tuple[int, int], bytearray] = {}  # states, by the scheduler's checkpoints
        self.swapped: dict[int, SwappedSlot] = {}  # by the scheduler's keys
        self.pending: PendingCopy | None = None

    def assign(self, assignment: SlotAssignment) -> None:
        """Prepare the slot and the drafters to hold exactly the prefix that the sequence reuses."""
        slot, source = assignment.sequence.slot, assignment.source
        swapped = None if assignment.swapped_in is None else self.swapped[assignment.swapped_in]
        if assignment.swapped_out is not None:  # may evict other conversations from RAM
            self._swap_out(slot, assignment.swapped_out)
        if self.pending is not None and self.pending.slot == slot:
            self.pending = None
        self._forget_swapped()
        if swapped is not None:
            self._swap_in(assignment, swapped)
        elif source is not None:
            self.sequence_ids.copy_slot(source, slot, assignment.sequence.num_reused)
            for drafter in self._drafters:
                drafter.copy_slot(source, slot, assignment.num_unchanged)
        elif assignment.is_cut:
            self._cut(assignment, self._saved.get((slot, assignment.sequence.num_reused)))

    def copy_ahead(self) -> bool:
        """Copy a piece of an idle slot's conversation to RAM. Return False if there is nothing to copy.

        Call it between steps. Most of the time is spent on touching new memory, which is done in pieces; llama.cpp
        copies a sequence at once.
        """
        slot = self._scheduler.slot_to_copy()
        if slot is None:
            return False
        if self.pending is None or self.pending.slot != slot:
            self.pending = self._begin_copy(slot)
        if self.pending is None:
            self._scheduler.stop_copying()
            return False
        if self.pending.is_prepared:
            key = self._prefixes.put_copy(slot)
            self._swap_out(slot, key)
            if key not in self._prefixes.swap:
                self._scheduler.stop_copying()
        else:
            self.pending.prepare()
        return True

    def _begin_copy(self, slot: int) -> PendingCopy | None:
        """Return memory for the slot's conversation; None if all of it is in use."""
        states = [state for (owner, _), state in self._saved.items() if owner == slot]
        num_bytes = self._swapped_bytes(slot) + sum(map(len, states))
        if not self._prefixes.swap.has_room(num_bytes, evicts=self._files is not None):
            return None
        try:
            return PendingCopy(slot, np.empty(self._context.swapped_bytes(slot), np.uint8))
        except MemoryError:
            return None

    def _swap_out(self, slot: int, key: int) -> None:
        """Copy the slot's conversation to RAM. Without memory for it, drop it: its prompt is then prefilled again."""
        pending, self.pending = self.pending, None  # the room reserved for another slot's copy is used here
        buffer = pending.buffer if pending is not None and pending.slot == slot else None
        swap = self._prefixes.swap
        try:
            if swap.make_room(key, self._swapped_bytes(slot)):
                self._forget_swapped()  # free evicted copies before allocating this one
                drafters = [drafter.swap_out(slot) for drafter in self._drafters]
                cells, states = self._context.swap_out(slot, buffer), self._copy_states(slot, swap[key])
                if swap.make_room(key, swap[key].num_bytes + sum(map(len, states.values()))):
                    self.swapped[key] = SwappedSlot(cells, states, drafters)
                    self._store(swap[key], cells, states)
        except ResourceError:
            swap.forget(key)
        self._forget_swapped()

    def _store(self, conversation: SwappedText, cells: Bytes, states: dict[int, bytearray]) -> None:
        if self._files is not None and not conversation.is_private and self._files.wants(conversation):
            self._files.write_later(conversation, cells, states)

    def take_read(self) -> None:
        """Keep in RAM the texts that were read from disk. Call it between reading requests and assigning slots.

        Drafters start over after such a text, so it counts as seen by them.
        """
        swap = self._prefixes.swap
        for text, cells, states, owner, adapters in () if self._files is None else self._files.take_read():
            tokens = list(text.tokens)
            key = swap.put(SwappedText(tokens, is_seen=True, places=text.places, owner=owner, adapters=adapters))
            if swap.make_room(key, len(cells) + sum(map(len, states.values()))):
                self.swapped[key] = SwappedSlot(cells, states, [None] * len(self._drafters))
        self._forget_swapped()

    def _swapped_bytes(self, slot: int) -> int:
        """Return the bytes of the slot's cells in RAM, including the drafters'."""
        return self._context.swapped_bytes(slot) + sum([drafter.swapped_bytes(slot) for drafter in self._drafters])

    def _copy_states(self, slot: int, conversation: SwappedText) -> dict[int, bytearray]:
        """Return the state at each position where the conversation can resume.

        With a sliding window, cut and save now, last position first: the cells after it are no longer needed.
        """
        positions = sorted(conversation.places or (), reverse=True)
        if not self._prefixes.can_cut:
            return {position: self._saved[slot, position] for position in positions}
        states = {}
        for position in positions:
            self.sequence_ids.cut(slot, position)
            states[position] = self._context.save(slot)
        return states

    def _swap_in(self, assignment: SlotAssignment, swapped: SwappedSlot) -> None:
        """Restore the slot from RAM; if that fails, restart the sequence so that its prompt is prefilled again."""
        sequence, slot = assignment.sequence, assignment.sequence.slot
        tokens = sequence.tokens[: assignment.num_unchanged]
        self.sequence_ids.cut(slot, 0)
        try:
            self._context.swap_in(slot, swapped.cells)
            for drafter, state in zip(self._drafters, swapped.drafters, strict=True):
                drafter.swap_in(slot, state, tokens)
        except ResourceError:
            self.forget(slot)
            self._scheduler.restart(sequence)
        else:
            self._saved |= {(slot, position): state for position, state in swapped.states.items()}
            self._drop_states()
            if assignment.is_cut:
                self._cut(assignment, swapped.states.get(sequence.num_reused))
        self._forget_swapped()

    def _cut(self, assignment: SlotAssignment, state: bytearray | None) -> None:
        """Cut the slot and the drafters back to the reused prefix.

        state  the recurrent state at that position; None if cells can be cut there
        """
        slot, position = assignment.sequence.slot, assignment.sequence.num_reused
        if state is not None:
            self._context.restore(slot, state)
        self._drop_states()
        self.sequence_ids.cut(slot, position)
        for drafter in self._drafters:
            drafter.rollback(slot, assignment.num_unchanged)

    def _forget_swapped(self) -> None:
        host_swap = self._prefixes.swap
        self.swapped = {key: swapped for key, swapped in self.swapped.items() if key in host_swap}

    def _drop_states(self) -> None:
        checkpoints = self._prefixes.checkpoints
        self._saved = {key: state for key, state in self._saved.items() if key in checkpoints}

    def _save(self, slot: int, position: int) -> None:
        """Save the state at the end of the prompt rows that were just decoded."""
        self._prefixes.checkpoints.use(slot, position)
        self._drop_states()  # free dropped states before allocating this one
        self._saved[slot, position] = self._context.save(slot)

    def commit(
        self,
        plan: StepPlan,
        drafts: Mapping[int, Draft],
        decoded: Decoded,
        verdicts: Mapping[int, Verdict],
        is_awake: Callable[[int], bool],
    ) -> None:
        """Remove rejected cells, and commit the rows that stay; sleeping drafters only buffer them."""
        committed = [self._commit_prompt(chunk, decoded) for chunk in plan.prefill]
        for sequence in plan.decode:
            committed.append(self._commit_draft(sequence, drafts[sequence.slot], decoded, verdicts[sequence.slot]))
        awake: list[Committed] = []
        asleep: list[Committed] = []
        for rows in committed:
            (awake if is_awake(rows.slot) else asleep).append(rows)
        for drafter in self._drafters:
            if awake:
                drafter.commit(awake)
            if asleep:
                drafter.buffer(asleep)

    def decode_image(self, sequence: Sequence, image: PlacedImage) -> None:
        """Decode an image of the prompt into the slot. Raises ResourceError."""
        self._context.use_adapters(sequence.request.adapters)
        self._context.decode_image(sequence.slot, image.first, image.rows)
        if self._prefixes.checkpoints.position_to_save(sequence) == image.end:
            self._save(sequence.slot, image.end)
        tokens = sequence.tokens[image.first : image.end]
        self._scheduler.commit(sequence, tokens)
        for drafter in self._drafters:
            drafter.skip(Committed(sequence.slot, image.first, tokens, None))

    def _commit_prompt(self, chunk: Chunk, decoded: Decoded) -> Committed:
        slot, tokens = chunk.sequence.slot, chunk.tokens
        if chunk.is_saved:
            self._save(slot, chunk.first + chunk.count)
        self._scheduler.commit(chunk.sequence, tokens)
        return Committed(slot, chunk.first, tokens, decoded.features(decoded.rows[slot]))

    def _commit_draft(self, sequence: Sequence, draft: Draft, decoded: Decoded, verdict: Verdict) -> Committed:
        slot, first = sequence.slot, len(sequence.tokens) - 1
        tokens = [sequence.tokens[-1], *(draft.tokens[node] for node in verdict.path)]
        rows = [decoded.rows[slot][node + 1] for node in (-1, *verdict.path)]
        self.sequence_ids.keep(slot, draft, verdict.path, first)
        self._scheduler.commit(sequence, tokens)
        reads = self._reads_refused and draft.drafter != FORCED
        refused = self._read_refused(draft, verdict, decoded.rows[slot]) if reads else ()
        return Committed(slot, first, tokens, decoded.features(rows), refused)

    def _read_refused(self, draft: Draft, verdict: Verdict, rows: Several[int]) -> Several[tuple[int, int]]:
        """Return the rejected tokens of the draft's trunk, each with the target's likeliest next token."""
        trunk = draft.path_to(draft.leaves[0]) if len(draft) else []
        nodes = trunk[verdict.num_accepted :]
        if not nodes:
            return ()
        likeliest = self._context.propose([rows[node + 1] for node in nodes], 1, confident=False).tokens
        return [(draft.tokens[node], next_token) for node, (next_token,) in zip(nodes, likeliest, strict=True)]

    def forget(self, slot: int) -> None:
        """Empty the slot after a failed decode: its contents are unknown."""
        self.sequence_ids.cut(slot, 0)
        for drafter in self._drafters:
            drafter.rollback(slot, 0)
        self._prefixes.forget(slot)
        self._drop_states()

    def find_miscounted(self) -> list[int]:
        """Return the slots whose cells, or a branch's, disagree with the scheduler's count. Call it between steps."""
        return [slot.index for slot in self._prefixes.slots if self._is_miscounted(slot.index)]

    def _is_miscounted(self, slot: int) -> bool:
        tokens = self._prefixes.slots[slot].tokens
        if tokens and tokens[-1] < 0:  # all cells of an image may have its first position
            return False
        return self._context.last_position(slot) + 1 != len(tokens) or bool(
            self.sequence_ids.find_miscounted(slot, len(tokens))
        )


# ---- pending copy: memory for a conversation that is about to be copied to RAM
#
# The first write to new memory costs more than the copy, because the system provides each page on its first write. So
# the memory is written in pieces beforehand. Does not know the copied contents.
PIECE_BYTES = 4 * 2**20  # a few milliseconds


@dataclass(slots=True)
class PendingCopy:
    """The copy of a slot's cells that is being prepared."""

    slot: int
    buffer: Bytes
    num_prepared: int = 0  # bytes

    @property
    def is_prepared(self) -> bool:
        return self.num_prepared >= len(self.buffer)

    def prepare(self) -> None:
        """Write the next piece of the memory."""
        end = self.num_prepared + PIECE_BYTES
        self.buffer[self.num_prepared : end] = 0
        self.num_prepared = min(end, len(self.buffer))
