"""Draft from the target's own hidden states, by EAGLE-3 and EAGLE-3.1 heads and MTP layers.

A slot that sleeps keeps its newest rows and nothing else; it wakes from them alone, in one encode call.

The head's cache holds at position P the pair (token[P+1], g[P]), where g[P] is the fused feature of the target at P.
The pair of the newest row waits until the token after it is known; it is then written in the same call that drafts from
it, so a cycle costs one encode, and one decode per drafted token.

    target rows   0   1   2   3          g[3] waits for token 4
    pairs         (t1,g0) (t2,g1) (t3,g2)
    draft root   (t4,g3) -> s3 -> child c5;   draft c5: (c5, s3) -> s4 -> c6 ...

A head that was trained with a sliding window sees no further back: pairs that have left it are removed before each
draft. The window does not move within a draft, so the later rows of a draft see a few cells more.

The two norms that EAGLE-3.1 adds to EAGLE-3 are applied in backend/head_context.py, where an MTP layer gets the
target's final state as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.drafters.drafter import Committed, ContextDrafter, Continuation, DraftTraits, Node, Swapped
from eaglelocal.drafters.head_rows import HeadRows, decode_rows
from eaglelocal.drafters.row_buffer import RowBuffer
from eaglelocal.errors import EngineError

MAX_WAITING_PAIRS = 24  # more are written without waiting for a draft


@dataclass(slots=True)
class EagleSlot:
    """The draft state of a slot; positions are the target's.

    The cache holds pairs start..num_written-1: it may begin anywhere, without holes.
    """

    start: int = 0
    num_written: int = 0  # position after the last pair of committed tokens in the head's cache
    waiting_tokens: list[int] = field(default_factory=list)
    waiting_states: list[State] = field(default_factory=list)
    tail: State | None = None  # g of the newest committed row, whose next token is not known yet
    state: State = b""  # of the last row drafted
    remembered: RowBuffer | None = None  # while the slot sleeps

    @property
    def num_pairs(self) -> int:
        """Position after the last pair, written or waiting."""
        return self.num_written + len(self.waiting_tokens)

    def goes_on_with(self, rows: Committed) -> bool:
        """Return whether these rows follow the pairs without a hole; the pair before them needs the tail's state."""
        reached = self.num_pairs + (self.tail is not None)
        return not self.is_empty and rows.first_position <= reached

    @property
    def is_empty(self) -> bool:
        return self.num_pairs == self.start

    @property
    def num_bytes(self) -> int:
        """Bytes of states and features; for a target of 8 B 3 to 6 MB, as much as the cells of 20 to 40 rows."""
        remembered = 0 if self.remembered is None else self.remembered.num_bytes
        return sum(map(len, self.waiting_states)) + remembered

    def copy(self) -> EagleSlot:
        return replace(
            self,
            waiting_tokens=list(self.waiting_tokens),
            waiting_states=list(self.waiting_states),
            remembered=None if self.remembered is None else RowBuffer(self.remembered),
        )


class Eagle3(ContextDrafter):
    """A drafter (drafters.drafter.Drafter) over one head context, which holds a chain.

    branches  children of a node that are proposed; drafting goes on after the best
    window    positions that attention reaches back, its own included; None: all of them
    """

    def __init__(
        self,
        head: HeadContext,
        taps: tuple[int, ...],
        *,
        branches: int = 1,
        window: int | None = None,
        name: str = "eagle3",
    ) -> None:
        # margin 1: the pair at the border of a reused prefix needs a feature that no cache holds
        super().__init__(head, DraftTraits(name=name, taps=taps, reuse_margin=1))
        self._head, self._branches, self._window = head, branches, window
        self._slots: defaultdict[int, EagleSlot] = defaultdict(EagleSlot)

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        self._wake([node.slot for node in nodes if node.is_root])
        rows = HeadRows()
        for node in nodes:
            self._add_rows(node, rows)
        return decode_rows(
            self._head, rows, nodes, self._slots, branches=self._branches, depth=depth, extra_levels=extra_levels
        )

    def _add_rows(self, node: Node, rows: HeadRows) -> None:
        """Queue the rows whose last one proposes the node's children; none if the state for it is missing."""
        slot = self._slots[node.slot]
        if not node.is_root:
            rows.add(node.slot, node.position - 1, node.token, slot.state)
            rows.mark_output()
            return
        if slot.tail is None or node.position != slot.num_pairs + 1:
            return
        self._forget(node.slot, slot, node.position)
        self._take_waiting(node.slot, slot, rows)
        rows.add(node.slot, node.position - 1, node.token, slot.tail)
        rows.mark_output()
        slot.num_written = node.position

    def _forget(self, index: int, slot: EagleSlot, position: int) -> None:
        """Remove pairs, written or waiting, that the row at position - 1 must not see: those before the window."""
        first = slot.start if self._window is None else position - self._window
        if first <= slot.start:
            return
        self._head.forget(index, first)
        unwritten = max(first - slot.num_written, 0)
        del slot.waiting_tokens[:unwritten], slot.waiting_states[:unwritten]
        slot.start, slot.num_written = first, max(first, slot.num_written)

    def _take_waiting(self, index: int, slot: EagleSlot, rows: HeadRows) -> None:
        """Move the waiting pairs into the batch, over cells that a rejected draft left."""
        for token, state in zip(slot.waiting_tokens, slot.waiting_states, strict=True):
            rows.add(index, slot.num_written, token, state)
            slot.num_written += 1
        slot.waiting_tokens, slot.waiting_states = [], []

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            slot = self._slots.get(rows.slot)
            if slot is not None and slot.remembered and slot.remembered.end < rows.first_position:
                self._begin_at(rows.slot, rows.first_position)
        self._wake([rows.slot for rows in committed])
        self._take(committed)

    def _take(self, committed: Sequence[Committed]) -> None:
        fused = self._head.encode([c.features for c in committed if c.features is not None])
        start = 0
        for rows in committed:
            self._queue_pairs(rows, fused[start : start + len(rows.tokens)])
            start += len(rows.tokens)
        self._write_long_queues()

    def buffer(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            slot = self._slots[rows.slot]
            if slot.remembered is None:
                slot.remembered = RowBuffer()
            slot.remembered.add(rows)

    def _wake(self, slots: Sequence[int]) -> None:
        """Catch up with what was remembered; start over from it where rows before it were forgotten."""
        woken = []
        for index in slots:
            slot = self._slots.get(index)
            if slot is not None and slot.remembered:
                rows, slot.remembered = slot.remembered.joined(index), None
                woken.append(rows)
                if not slot.goes_on_with(rows):
                    self._begin_at(index, rows.first_position)
        if woken:
            self._take(woken)

    def _begin_at(self, index: int, position: int) -> None:
        self._head.remove(index, 0)
        self._slots[index] = EagleSlot(start=position, num_written=position)

    def _queue_pairs(self, rows: Committed, fused: list[State]) -> None:
        """Pair token i with the state before it; pairs that the cache already holds are skipped."""
        slot = self._slots[rows.slot]
        for i, token in enumerate(rows.tokens):
            position = rows.first_position + i - 1
            if position < slot.num_pairs:
                continue
            state = slot.tail if i == 0 else fused[i - 1]
            if state is None and slot.is_empty:  # the first row of a text has no state before it
                slot.start = slot.num_written = position + 1
                continue
            if state is None or position != slot.num_pairs:
                raise EngineError(f"hole in the draft cache of slot {rows.slot} at position {slot.num_pairs}")
            slot.waiting_tokens.append(token)
            slot.waiting_states.append(state)
        slot.tail = fused[-1]

    def _write_long_queues(self) -> None:
        """Write long queues of pairs, so that the next drafts of all slots fit one batch together."""
        most = min(MAX_WAITING_PAIRS, self._head.n_batch // len(self._slots) - 1)
        for index, slot in self._slots.items():
            if len(slot.waiting_tokens) <= most:
                continue
            rows = HeadRows()
            self._take_waiting(index, slot, rows)
            for batch in rows.batches(self._head.n_batch):
                self._head.decode(batch, 1, confident=False)

    def skip(self, image: Committed) -> None:
        """Forget the slot: drafting starts over after the image."""
        self.rollback(image.slot, 0)

    def rollback(self, slot: int, position: int) -> None:
        """Keep the pairs of tokens before `position`: the last of them pairs token position - 1."""
        state = self._slots[slot]
        if state.remembered is not None:
            state.remembered.forget(position)
        keep = max(position - 1, 0)
        has_hole = state.num_pairs < keep and not state.remembered  # it slept too long
        if keep <= state.start or has_hole:
            self._head.remove(slot, 0)
            self._slots[slot] = EagleSlot(remembered=state.remembered)
            return
        if state.num_pairs >= keep:  # otherwise the cut is in the remembered rows, and the tail stays
            state.tail = None
        state.waiting_tokens = state.waiting_tokens[: max(keep - state.num_written, 0)]
        state.waiting_states = state.waiting_states[: len(state.waiting_tokens)]
        state.num_written = min(state.num_written, keep)
        self._head.remove(slot, state.num_written)

    def copy_slot(self, source: int, target: int, position: int) -> None:
        """Share cells, which are never written again: what is drafted or committed later comes after them."""
        self._head.remove(target, 0)
        theirs = self._slots[source]
        if theirs.start < theirs.num_written:
            self._head.share(source, target, theirs.start, theirs.num_written)
        self._slots[target] = theirs.copy()
        self.rollback(target, position)

    def swapped_bytes(self, slot: int) -> int:
        return self._head.swapped_bytes(slot) + self._slots[slot].num_bytes

    def swap_out(self, slot: int) -> Swapped[EagleSlot]:
        state = self._slots[slot]
        has_cells = state.start < state.num_written
        return Swapped(state.copy(), self._head.swap_out(slot) if has_cells else None)

    def swap_in(self, slot: int, swapped: Swapped[EagleSlot], tokens: Sequence[int]) -> None:
        self._head.remove(slot, 0)
        if swapped.cells is not None:
            self._head.swap_in(slot, swapped.cells)
        self._slots[slot] = swapped.state.copy()
