"""The newest rows of a slot that sleeps, in order and without holes, as owned copies: a head wakes from them alone.

A head that wakes from 64 rows drafts as well as from all; what is older is forgotten. Plain data in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eaglelocal.core.batch import Floats
from eaglelocal.drafters.base import Committed

MAX_REMEMBERED = 64  # rows


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that were committed together."""

    first_position: int
    tokens: Sequence[int]
    features: Floats  # [rows, taps, n_embd]

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.first_position + len(self.tokens)


def with_newest(pieces: list[Piece], rows: Committed) -> list[Piece]:
    """The rows behind the old ones; without these, where they do not follow them or replace the last of them."""
    if rows.features is None:
        return []
    kept = before(pieces, rows.first_position)
    if kept and kept[-1].end != rows.first_position:
        kept = []
    features = rows.features if isinstance(rows.features, np.ndarray) else rows.features.copied()
    return newest([*kept, Piece(rows.first_position, rows.tokens, features)])


def before(pieces: list[Piece], position: int) -> list[Piece]:
    """The rows before a position."""
    whole = [piece for piece in pieces if piece.end <= position]
    cut_off = [piece for piece in pieces if piece.first_position < position < piece.end]
    return [*whole, *(cut(piece, 0, position - piece.first_position) for piece in cut_off)]


def newest(pieces: list[Piece]) -> list[Piece]:
    """At most MAX_REMEMBERED rows."""
    first = pieces[-1].end - MAX_REMEMBERED
    if pieces[0].first_position >= first:
        return pieces
    kept = [piece for piece in pieces if piece.end > first]
    kept[0] = cut(kept[0], max(first - kept[0].first_position, 0), len(kept[0].tokens))
    return kept


def joined(slot: int, pieces: list[Piece]) -> Committed:
    tokens = [token for piece in pieces for token in piece.tokens]
    return Committed(slot, pieces[0].first_position, tokens, np.concatenate([piece.features for piece in pieces]))


def cut(piece: Piece, first: int, last: int) -> Piece:
    return Piece(piece.first_position + first, piece.tokens[first:last], piece.features[first:last].copy())
