"""The newest rows of a sleeping slot, in order and without holes, as owned copies from which a head can wake.

Older rows are dropped, although a head drafts somewhat better with them: a step with a sleeping drafter should cost no
more than a plain one. For the same reason the methods touch only the ends of the buffer.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np

from eaglelocal.core.batch import NO_EXTRA_LEVELS, Bytes, ExtraLevels, Floats, PairBatch, State
from eaglelocal.core.ports import BlockContext, HeadContext, NativeContext
from eaglelocal.core.records import dataclass
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

StateT = TypeVar("StateT")

MAX_BUFFERED = 64  # rows


class CommittedRows(NamedTuple):
    """Rows that were committed together."""

    first_position: int
    tokens: Sequence[int]
    features: Floats  # [rows, taps, n_embd]

    def cut(self, first: int, last: int) -> CommittedRows:
        return CommittedRows(self.first_position + first, self.tokens[first:last], self.features[first:last].copy())


class RowBuffer:
    """The buffered rows of one slot. It is false while it is empty."""

    __slots__ = ("_num_rows", "_pieces")

    def __init__(self, other: RowBuffer | None = None) -> None:
        self._pieces: deque[CommittedRows] = deque() if other is None else other._pieces.copy()
        self._num_rows: int = 0 if other is None else other._num_rows

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def num_bytes(self) -> int:
        """Bytes of the features."""
        return sum([piece.features.nbytes for piece in self._pieces])

    @property
    def end(self) -> int:
        """Position after the last token; -1 if the buffer is empty."""
        if not self._pieces:
            return -1
        last = self._pieces[-1]
        return last.first_position + len(last.tokens)

    def add(self, rows: Committed) -> None:
        """Append rows. Older rows stay if the new ones follow them or replace the last of them."""
        if rows.features is None:
            self.forget(0)
            return
        if self.end != rows.first_position:
            self.forget(rows.first_position)
            if self.end != rows.first_position:
                self.forget(0)
        features = rows.features if isinstance(rows.features, np.ndarray) else rows.features.copied()
        self._append(CommittedRows(rows.first_position, rows.tokens, features))
        self._drop_older(MAX_BUFFERED)  # cutting a prompt's rows takes a copy, so allow many first

    def forget(self, position: int) -> None:
        """Forget the rows from a position on."""
        while self.end > position:
            last = self._pieces.pop()
            self._num_rows -= len(last.tokens)
            if last.first_position < position:
                self._append(last.cut(0, position - last.first_position))

    def join(self, slot: int) -> Committed:
        """Return all rows as if they had been committed together; there must be some."""
        self._drop_older(0)
        tokens = [token for piece in self._pieces for token in piece.tokens]
        features = np.concatenate([piece.features for piece in self._pieces])
        return Committed(slot, self._pieces[0].first_position, tokens, features)

    def _append(self, piece: CommittedRows) -> None:
        self._pieces.append(piece)
        self._num_rows += len(piece.tokens)

    def _drop_older(self, slack: int) -> None:
        """Drop whole old pieces, and a part of the oldest where that has more than `slack` rows too many."""
        pieces = self._pieces
        while self._num_rows - len(pieces[0].tokens) >= MAX_BUFFERED:
            self._num_rows -= len(pieces.popleft().tokens)
        excess = self._num_rows - MAX_BUFFERED
        if excess > slack:
            oldest = pieces[0]
            pieces[0] = oldest.cut(excess, len(oldest.tokens))
            self._num_rows = MAX_BUFFERED


# ---- head rows: collect the rows of a head's decode, and draft after them
class HeadDraft(NamedTuple):
    """A head's proposal after a node, and the state of the last row, which the next one reads."""

    continuation: Continuation
    state: State = b""


class HeadRows:
    """The rows of one head decode while they are collected."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.states: list[State] = []
        self.positions: list[int] = []
        self.sequences: list[int] = []
        self.outputs: list[int] = []
        self.nodes: list[Node] = []  # of the output rows

    def add(self, sequence: int, position: int, token: int, state: State) -> None:
        self.tokens.append(token)
        self.states.append(state)
        self.positions.append(position)
        self.sequences.append(sequence)

    def mark_output(self, node: Node) -> None:
        """Make the last row an output row: its proposal is returned as this node's."""
        self.outputs.append(len(self.tokens) - 1)
        self.nodes.append(node)

    def batch(self) -> PairBatch:
        return PairBatch(self.tokens, self.states, self.positions, self.sequences, self.outputs)

    def batches(self, size: int) -> list[PairBatch]:
        """Return the rows in batches of at most `size`, without output rows."""
        cuts = [slice(i, i + size) for i in range(0, len(self.tokens), size)]
        return [PairBatch(self.tokens[c], self.states[c], self.positions[c], self.sequences[c], []) for c in cuts]


def decode_rows(
    head: HeadContext,
    rows: HeadRows,
    nodes: Sequence[Node],
    *,
    num_choices: int,
    depth: int,
    extra_levels: ExtraLevels = NO_EXTRA_LEVELS,
) -> list[HeadDraft]:
    """Decode the rows, and return what the head proposes after each node; NOTHING where it has no output row."""
    if not rows.outputs:
        return [HeadDraft(NOTHING) for _ in nodes]
    proposals = head.decode(rows.batch(), num_choices, confident=True, depth=depth, extra_levels=extra_levels)
    proposed = map(HeadDraft, split_proposals(proposals, len(rows.outputs)), proposals.states)
    by_node = dict(zip(rows.nodes, proposed, strict=True))
    return [by_node.get(node, HeadDraft(NOTHING)) for node in nodes]


# ---- head drafters: the common part of drafters over a head with a cache, whose slots sleep and wake
@dataclass(slots=True)
class HeadSlot:
    """The draft state of a slot: the head's cache holds positions start..num_written-1, without holes."""

    start: int = 0
    num_written: int = 0
    buffered: RowBuffer | None = None  # while the slot sleeps

    @property
    def end(self) -> int:
        """Position after all that is written, or waits to be."""
        return self.num_written

    @property
    def is_empty(self) -> bool:
        return self.start == self.end

    @property
    def num_bytes(self) -> int:
        """Bytes of buffered features."""
        return 0 if self.buffered is None else self.buffered.num_bytes

    def continues_with(self, rows: Committed) -> bool:
        """Return whether these rows follow without a hole."""
        return not self.is_empty and rows.first_position <= self.end

    def cut(self, end: int) -> None:
        """Forget everything from position `end` on."""
        self.num_written = min(self.num_written, end)

    def copy(self) -> Self:
        return replace(self, buffered=RowBuffer(self.buffered) if self.buffered else None)


SlotT = TypeVar("SlotT", bound=HeadSlot)


class HeadDrafter(ContextDrafter, Generic[SlotT]):
    """A drafter over a head with a cache. Subclasses draft, and write committed rows into the cache.

    sequences  of the cache, for chains besides the trunk; None: there are none
    """

    def __init__(
        self,
        cache: HeadContext | BlockContext,
        traits: DraftTraits,
        new_slot: type[SlotT],
        sequences: BranchSequences | None = None,
    ) -> None:
        super().__init__(cache, traits)
        self._cache, self._new_slot = cache, new_slot
        self._sequences = sequences or BranchSequences(cache)
        self._slots: defaultdict[int, SlotT] = defaultdict(new_slot)

    def _encode_rows(self, committed: Sequence[Committed]) -> None:
        """Encode rows of awake slots, and write them or let them wait."""
        raise NotImplementedError

    def catch_up(self, slots: Sequence[int]) -> int:
        return self._wake(slots)

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            slot = self._slots.get(rows.slot)
            if slot is not None and slot.buffered and slot.buffered.end < rows.first_position:
                self._restart_at(rows.slot, rows.first_position)
        self._wake([rows.slot for rows in committed])
        self._encode_rows(committed)

    def buffer(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            slot = self._slots[rows.slot]
            if slot.buffered is None:
                slot.buffered = RowBuffer()
            slot.buffered.add(rows)

    def _wake(self, slots: Sequence[int]) -> int:
        """Encode the buffered rows of sleeping slots; return their number. A slot that lacks older rows restarts."""
        waking = []
        for index in slots:
            slot = self._slots.get(index)
            if slot is not None and slot.buffered:
                rows, slot.buffered = slot.buffered.join(index), None
                waking.append(rows)
                if not slot.continues_with(rows):
                    self._restart_at(index, rows.first_position)
        if waking:
            self._encode_rows(waking)
        return sum([len(rows.tokens) for rows in waking])

    def _restart_at(self, index: int, position: int) -> None:
        self._empty(index)
        self._slots[index] = self._new_slot(start=position, num_written=position)

    def _empty(self, index: int) -> None:
        self._sequences.clear(index)
        self._cache.remove(index, 0)

    def rollback(self, slot: int, position: int) -> None:
        state = self._slots[slot]
        if state.buffered is not None:
            state.buffered.forget(position)
        end = max(position - self.traits.reuse_margin, 0)  # of what stays
        has_hole = state.end < end and not state.buffered  # it slept too long
        if end <= state.start or has_hole:
            self._empty(slot)
            self._slots[slot] = self._new_slot(buffered=state.buffered)
            return
        state.cut(end)
        self._sequences.cut(slot, state.num_written)
        self._cache.remove(slot, state.num_written)

    def copy_slot(self, source: int, target: int, position: int) -> None:
        """Share the cells: they are never overwritten, because later drafts and commits come after them."""
        self._empty(target)
        state = self._slots[source]
        if state.start < state.num_written:
            self._cache.share(source, target, state.start, state.num_written)
        self._slots[target] = state.copy()
        self.rollback(target, position)

    def swapped_bytes(self, slot: int) -> int:
        return self._cache.swapped_bytes(slot) + self._slots[slot].num_bytes

    def swap_out(self, slot: int) -> tuple[SlotT, Bytes | None]:
        state = self._slots[slot]
        return state.copy(), self._cache.swap_out(slot) if state.start < state.num_written else None

    def swap_in(self, slot: int, swapped: tuple[SlotT, Bytes | None] | None, tokens: Sequence[int]) -> None:
        self.rollback(slot, 0)
        if swapped is None:
            return
        state, cells = swapped
        if cells is not None:
            self._cache.swap_in(slot, cells)
        self._slots[slot] = state.copy()


# ---- newest state: the common part of drafters that keep only the target's state at a slot's newest row, asleep or
# awake
@dataclass(slots=True)
class NewestState(Generic[StateT]):
    """`state` is the target's state at the newest committed row, position end - 1; None if it is not known."""

    state: StateT | None = None
    end: int = 0


class NewestStateDrafter(ContextDrafter, Generic[StateT]):
    """A drafter without `draft`. Subclasses read the states of committed rows."""

    def __init__(self, context: NativeContext, traits: DraftTraits) -> None:
        super().__init__(context, traits)
        self._slots: defaultdict[int, NewestState[StateT]] = defaultdict(NewestState)

    def read_states(self, committed: Sequence[Committed]) -> Sequence[StateT | None]:
        """Return an owned copy of the state at the last of each of these rows."""
        raise NotImplementedError

    def find_state(self, root: Node) -> StateT | None:
        """Return the state of the row from which the root was sampled; None if it is not known."""
        slot = self._slots[root.slot]
        return slot.state if root.position == slot.end else None

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows, state in zip(committed, self.read_states(committed), strict=True):
            self._slots[rows.slot] = NewestState(state, rows.first_position + len(rows.tokens))

    def rollback(self, slot: int, position: int) -> None:
        if position < self._slots[slot].end:
            self._slots[slot] = NewestState()

    def copy_slot(self, source: int, target: int, position: int) -> None:
        self._slots[target] = replace(self._slots[source])
        self.rollback(target, position)

    def swap_out(self, slot: int) -> NewestState[StateT]:
        return replace(self._slots[slot])

    def swap_in(self, slot: int, swapped: NewestState[StateT] | None, tokens: Sequence[int]) -> None:
        self._slots[slot] = NewestState() if swapped is None else replace(swapped)
