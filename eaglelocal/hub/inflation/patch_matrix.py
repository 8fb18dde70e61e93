"""A matrix that is random but for rectangular patches, produced a few rows at a time.

Patches hold given numbers or zeros; later ones cover earlier ones. Works on encoded rows, so that a patch is copied,
never computed with; its columns must therefore begin and end at blocks of the type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eaglelocal.gguf.writer import StreamedTensor
from eaglelocal.hub.inflation.ggml_blocks import Bytes, Floats, RandomPool, encode, ggml_type

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Patch:
    """A rectangle of `values` (zeros, when None), `rows` x `columns` from (row, column) on."""

    row: int
    column: int
    rows: int
    columns: int
    values: Floats | None = None  # [rows, columns]


def make_zero_patch(row: int, column: int, rows: int, columns: int) -> Patch:
    return Patch(row, column, max(rows, 0), max(columns, 0))


def make_patch(row: int, column: int, values: Floats) -> Patch:
    return Patch(row, column, values.shape[0], values.shape[1], values)


@dataclass(frozen=True, slots=True)
class Patchwork:
    """A matrix [rows, columns] in numpy's order, to be written as the pool's type."""

    name: str
    rows: int
    columns: int
    patches: Sequence[Patch]

    def tensor(self, pool: RandomPool) -> StreamedTensor:
        return StreamedTensor(self.name, (self.columns, self.rows), pool.type, lambda: self.pieces(pool))

    def pieces(self, pool: RandomPool) -> Iterator[Bytes]:
        row_bytes = pool.type.row_bytes(self.columns)
        step = max(1, PIECE_BYTES // row_bytes)
        stamps = [_Stamp.of(patch, pool) for patch in self.patches if patch.rows and patch.columns]
        for first in range(0, self.rows, step):
            piece = np.empty((min(step, self.rows - first), row_bytes), np.uint8)
            pool.fill(piece.reshape(-1), self.name, first * row_bytes)
            for stamp in stamps:
                stamp.press(piece, first)
            yield piece.reshape(-1)


@dataclass(frozen=True, slots=True)
class _Stamp:
    """A patch in encoded form: bytes [rows or 1, bytes] from byte `start` of each row on."""

    row: int
    rows: int
    start: int
    encoded: Bytes

    @classmethod
    def of(cls, patch: Patch, pool: RandomPool) -> _Stamp:
        if patch.column % pool.type.block_elements or patch.columns % pool.type.block_elements:
            raise ValueError(f"a patch of columns {patch.column} + {patch.columns} cuts blocks of {pool.type.name}")
        values = np.zeros((1, patch.columns), np.float32) if patch.values is None else patch.values
        return cls(patch.row, patch.rows, pool.type.row_bytes(patch.column), encode(values, pool.type.name.lower()))

    def press(self, piece: Bytes, first: int) -> None:
        """Write the patch over a piece of the matrix whose first row is `first`."""
        top, bottom = max(self.row, first), min(self.row + self.rows, first + len(piece))
        if top >= bottom:
            return
        rows = slice(0, 1) if len(self.encoded) == 1 else slice(top - self.row, bottom - self.row)
        piece[top - first : bottom - first, self.start : self.start + self.encoded.shape[1]] = self.encoded[rows]


def make_vector(name: str, values: Floats) -> StreamedTensor:
    """Return a one-dimensional tensor, such as a norm, in F32."""
    raw = encode(values.reshape(1, -1), "f32").reshape(-1)
    return StreamedTensor(name, (values.size,), ggml_type("f32"), lambda: iter((raw,)))
