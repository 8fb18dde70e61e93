"""Draft by greedy decoding with a smaller model of the same vocabulary, the classic speculative setup.

The model's cache follows the target's: committed tokens that it has not seen wait until the next draft, and drafted
cells that were accepted stay.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field

from eaglelocal.core.batch import NO_EXTRA_LEVELS, Batch, Bytes, ExtraLevels
from eaglelocal.core.ports import Context
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import common_prefix
from eaglelocal.drafters.branch_sequences import BranchSequences
from eaglelocal.drafters.drafter import (
    NOTHING,
    Committed,
    ContextDrafter,
    Continuation,
    DraftTraits,
    Node,
    split_proposals,
)
from eaglelocal.errors import EngineError, ResourceError

MAX_WAITING_TOKENS = 24  # beyond this, tokens are decoded without waiting for a draft


@dataclass(slots=True)
class DraftModelSlot:
    num_written: int = 0  # committed tokens in the cache
    waiting: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)  # tokens in the cells after the committed ones, root first
    image: int | None = None  # position of the first image: this model cannot read what follows

    @property
    def num_tokens(self) -> int:
        return self.num_written + len(self.waiting)

    def copy_committed(self) -> DraftModelSlot:
        return DraftModelSlot(self.num_written, list(self.waiting))


class DraftModel(ContextDrafter):
    """A drafter over a plain context, which holds a tree for each slot.

    num_choices  children of a node that are proposed
    sequences    of the context, for chains besides the trunk; None: drafts are combs
    """

    def __init__(self, context: Context, *, num_choices: int = 1, sequences: BranchSequences | None = None) -> None:
        self._sequences = sequences or BranchSequences(context)
        num_branches = self._sequences.num_branches
        traits = DraftTraits(name="draft_model", num_branches=num_branches, max_unread=sys.maxsize)
        super().__init__(context, traits)
        self._context, self._num_choices = context, num_choices
        self._slots: defaultdict[int, DraftModelSlot] = defaultdict(DraftModelSlot)

    def end(self, slot: int) -> None:
        self._sequences.drop_drafted(slot)

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        self.catch_up([node.slot for node in nodes])  # usually none is left by `catch_up`
        rows = Batch([], [], [], [])
        draftable = [node for node in nodes if self._slots[node.slot].image is None]
        output_rows = [row for node in draftable for row in self._add_rows(node, rows)]
        if not output_rows:
            return [NOTHING for _ in nodes]
        self._context.decode(rows)
        proposed = split_proposals(
            self._context.propose(output_rows, self._num_choices, confident=True), len(output_rows)
        )
        by_node = dict(zip(draftable, proposed, strict=True))
        return [by_node.get(node, NOTHING) for node in nodes]

    def _add_rows(self, node: Node, rows: Batch) -> list[int]:
        slot = self._slots[node.slot]
        if node.is_root:
            if node.position != slot.num_tokens:
                raise EngineError(f"hole in the draft cache of slot {node.slot} at position {slot.num_tokens}")
            self._sequences.drop_drafted(node.slot)
            self._flush_waiting(node.slot, slot, rows)
        elif node.chain and node.place == 0:
            self._sequences.open(node, start=0, root_end=slot.num_written, end=node.position)
        add_row(rows, self._sequences.id_of(node), node.position, node.token)
        if node.chain == 0:  # what is accepted of a branch is decoded again, with the next root
            slot.drafted.append(node.token)
        rows.outputs[-1] = True
        return [len(rows) - 1]

    def _flush_waiting(self, index: int, slot: DraftModelSlot, rows: Batch) -> None:
        self._context.remove(index, slot.num_written)
        slot.drafted = []
        for token in slot.waiting:
            add_row(rows, index, slot.num_written, token)
            slot.num_written += 1
        slot.waiting = []

    def commit(self, committed: Sequence[Committed]) -> None:
        """Learn what was committed, and decode long texts along with the target.

        Tokens that were committed during sleep are left to `catch_up`, where their time is measured separately.
        """
        awake = [rows.slot for rows in committed if len(self._slots[rows.slot].waiting) <= MAX_WAITING_TOKENS]
        self.buffer(committed)
        self.catch_up(awake)

    def buffer(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            slot = self._slots[rows.slot]
            if slot.image is not None:
                continue
            if rows.first_position > slot.num_tokens:
                raise EngineError(f"hole in the draft cache of slot {rows.slot} at position {slot.num_tokens}")
            new = list(rows.tokens)[slot.num_tokens - rows.first_position :]
            num_kept = common_prefix(slot.drafted, new)
            slot.num_written += num_kept
            slot.drafted = []
            slot.waiting.extend(new[num_kept:])

    def catch_up(self, slots: Sequence[int]) -> int:
        """Decode the long queues of these slots, and return how many tokens that was.

        Sleeping slots are left out: they may never draft again, and other slots would pay for their rows.
        """
        most = min(MAX_WAITING_TOKENS, self._context.n_batch // max(len(self._slots), 1) - 1)
        num_written = 0
        for index in slots:
            if len(self._slots[index].waiting) > most:  # the next drafts of all slots must fit in one batch
                num_written += len(self._slots[index].waiting)
                self._write(index, self._slots[index])
        return num_written

    def _write(self, index: int, slot: DraftModelSlot) -> None:
        rows = Batch([], [], [], [])
        self._flush_waiting(index, slot, rows)
        for i in range(0, len(rows), self._context.n_batch):
            cut = slice(i, i + self._context.n_batch)
            self._context.decode(Batch(rows.tokens[cut], rows.positions[cut], rows.sequences[cut], rows.outputs[cut]))

    def skip(self, image: Committed) -> None:
        """Stop drafting for the slot: drafts after a text with holes would not be worth their cost."""
        slot = self._slots[image.slot]
        slot.drafted = []
        if slot.image is None:
            slot.image = image.first_position

    def rollback(self, slot: int, position: int) -> None:
        state = self._slots[slot]
        if state.image is not None and position <= state.image:
            state.image = None
        state.waiting = state.waiting[: max(position - state.num_written, 0)]
        state.num_written = min(state.num_written, position)
        state.drafted = []
        self._sequences.cut(slot, state.num_written)
        self._context.remove(slot, state.num_written)

    def copy_slot(self, source: int, target: int, position: int) -> None:
        self._empty(target)
        source_slot = self._slots[source]
        num_kept = min(source_slot.num_written, position)
        if num_kept:
            self._context.share(source, target, 0, num_kept)
        image = source_slot.image if source_slot.image is not None and source_slot.image < position else None
        self._slots[target] = DraftModelSlot(num_kept, source_slot.waiting[: position - num_kept], image=image)

    def swapped_bytes(self, slot: int) -> int:
        return self._context.swapped_bytes(slot)

    def swap_out(self, slot: int) -> tuple[DraftModelSlot, Bytes | None]:
        state, cells = self._slots[slot], None
        if state.num_written:
            with suppress(ResourceError):  # llama.cpp copies at the next decode: late, if the slot sleeps
                cells = self._context.swap_out(slot)
        return state.copy_committed(), cells

    def swap_in(self, slot: int, swapped: tuple[DraftModelSlot, Bytes | None] | None, tokens: Sequence[int]) -> None:
        """Restore the slot; without its cells, the text is decoded again at the next draft."""
        self._empty(slot)
        self._slots[slot] = DraftModelSlot(waiting=list(tokens))
        if swapped is not None and (cells := swapped[1]) is not None:
            with suppress(ResourceError):
                self._context.swap_in(slot, cells)
                self._slots[slot] = swapped[0].copy_committed()

    def _empty(self, slot: int) -> None:
        self._sequences.clear(slot)
        self._context.remove(slot, 0)


def add_row(rows: Batch, sequence: int, position: int, token: int) -> None:
    rows.tokens.append(token)
    rows.positions.append(position)
    rows.sequences.append((sequence,))
    rows.outputs.append(False)
