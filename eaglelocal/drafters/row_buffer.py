"""The newest rows of a sleeping slot, in order and without holes, as owned copies from which a head can wake.

Older rows are dropped, although a head drafts somewhat better with them: a step with a sleeping drafter should cost no
more than a plain one. For the same reason the methods touch only the ends of the buffer.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, Protocol

import numpy as np

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, Floats, PairBatch, State
from eaglelocal.core.ports import HeadContext, NativeContext
from eaglelocal.core.records import dataclass
from eaglelocal.drafters.drafter import (
    NOTHING,
    Committed,
    ContextDrafter,
    Continuation,
    DraftTraits,
    Node,
    StateT,
    Swapped,
    split_proposals,
)

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


class BufferingSlot(Protocol):
    """A drafter's state of a slot that can sleep."""

    buffered: RowBuffer | None


def buffer_rows(slots: Mapping[int, BufferingSlot], committed: Sequence[Committed]) -> None:
    """Keep the committed rows of sleeping slots. `slots` creates the state of a slot that it lacks."""
    for rows in committed:
        slot = slots[rows.slot]
        if slot.buffered is None:
            slot.buffered = RowBuffer()
        slot.buffered.add(rows)


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


# ---- newest state: the common part of drafters that keep only the target's state at a slot's newest row, asleep or
# awake
@dataclass(slots=True)
class NewestState(Generic[StateT]):
    """`state` is the target's state at the newest committed row, position end - 1; None if it is not known."""

    state: StateT | None = None
    end: int = 0


class NewestStateDrafter(ContextDrafter, Generic[StateT]):
    """A drafter (drafters.drafter.Drafter) without `draft`. Subclasses read the states of committed rows."""

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

    buffer = commit  # the newest state is all that it needs to wake

    def skip(self, image: Committed) -> None:
        """Forget the slot: drafting starts over after the image."""
        self.rollback(image.slot, 0)

    def rollback(self, slot: int, position: int) -> None:
        if position < self._slots[slot].end:
            self._slots[slot] = NewestState()

    def copy_slot(self, source: int, target: int, position: int) -> None:
        self._slots[target] = replace(self._slots[source])
        self.rollback(target, position)

    def swapped_bytes(self, slot: int) -> int:
        return 0

    def swap_out(self, slot: int) -> Swapped[NewestState[StateT]]:
        return Swapped(replace(self._slots[slot]))

    def swap_in(self, slot: int, swapped: Swapped[NewestState[StateT]], tokens: Sequence[int]) -> None:
        self._slots[slot] = replace(swapped.state)
