"""The newest rows of a sleeping slot, in order and without holes, as owned copies from which a head can wake.

Older rows are dropped, although a head drafts somewhat better with them: a step that sleeps should cost no more than a
plain one. For the same reason the methods touch only the ends of the buffer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from eaglelocal.core.batch import Floats
from eaglelocal.drafters.drafter import Committed

MAX_BUFFERED = 64  # rows


class CommittedRows(NamedTuple):
    """Rows that were committed together."""

    first_position: int
    tokens: Sequence[int]
    features: Floats  # [rows, taps, n_embd]

    def cut(self, first: int, last: int) -> CommittedRows:
        return CommittedRows(self.first_position + first, self.tokens[first:last], self.features[first:last].copy())


class RowBuffer:
    """The buffered rows of one slot; false while there are none."""

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
    """Keep the committed rows of sleeping slots. `slots` makes the state of a slot that it does not have."""
    for rows in committed:
        slot = slots[rows.slot]
        if slot.buffered is None:
            slot.buffered = RowBuffer()
        slot.buffered.add(rows)
