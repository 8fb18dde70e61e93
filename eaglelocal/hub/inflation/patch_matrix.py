"""A matrix that is random but for rectangular patches, produced a few rows at a time.

Patches hold given numbers or zeros; later ones cover earlier ones. A patch is encoded on its own and copied in, so
its columns must begin and end at blocks of the type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.writer import StreamedTensor
from eaglelocal.hub.inflation.ggml_blocks import Bytes, Floats, RandomPool, encode, ggml_type, make_pool
from eaglelocal.hub.inflation.source_file import Rows

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Patch:
    """A rectangle of `values` (zeros, when None), `rows` x `columns` from (row, column) on."""

    row: int
    column: int
    rows: int
    columns: int
    values: Rows | None = None


def make_zero_patch(row: int, column: int, rows: int, columns: int) -> Patch:
    return Patch(row, column, max(rows, 0), max(columns, 0))


def make_patch(row: int, column: int, values: Rows) -> Patch:
    return Patch(row, column, values.num_rows, values.columns, values)


@dataclass(frozen=True, slots=True)
class Patchwork:
    """A matrix [rows, columns] in numpy's order."""

    name: str
    rows: int
    columns: int
    patches: Sequence[Patch]

    def tensor(self, type_name: str) -> StreamedTensor:
        """Return the matrix to be written as this type."""
        kind = ggml_type(type_name)
        return StreamedTensor(self.name, (self.columns, self.rows), kind, lambda: self.pieces(make_pool(type_name)))

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
    """A patch and where its bytes go: from byte `start` of each row on."""

    patch: Patch
    type_name: str
    start: int
    zeros: Bytes  # [1, bytes]: an encoded row of zeros

    @classmethod
    def of(cls, patch: Patch, pool: RandomPool) -> _Stamp:
        if patch.column % pool.type.block_elements or patch.columns % pool.type.block_elements:
            raise ValueError(f"a patch of columns {patch.column} + {patch.columns} cuts blocks of {pool.type.name}")
        name = pool.type.name.lower()
        zeros = encode(np.zeros((1, patch.columns), np.float32), name)
        return cls(patch, name, pool.type.row_bytes(patch.column), zeros)

    def press(self, piece: Bytes, first: int) -> None:
        """Write the patch over a piece of the matrix whose first row is `first`."""
        patch = self.patch
        top, bottom = max(patch.row, first), min(patch.row + patch.rows, first + len(piece))
        if top >= bottom:
            return
        encoded = self.zeros
        if patch.values is not None:
            encoded = encode(patch.values.read(top - patch.row, bottom - patch.row), self.type_name)
        piece[top - first : bottom - first, self.start : self.start + self.zeros.shape[1]] = encoded


def make_vector(name: str, values: Floats) -> StreamedTensor:
    """Return a one-dimensional tensor, such as a norm, in F32."""
    raw = encode(values.reshape(1, -1), "f32").reshape(-1)
    return StreamedTensor(name, (values.size,), ggml_type("f32"), lambda: iter((raw,)))
