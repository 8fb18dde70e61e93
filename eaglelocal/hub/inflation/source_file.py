"""The file that an inflated model is made of: its matrices as rows of floats that are read when they are written.

So a source of any size needs little memory. Does not know how the rows are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.tensor_bytes import find_tensor
from eaglelocal.gguf.tensors import read_span, read_tensor
from eaglelocal.hub.inflation.ggml_blocks import Floats

ReadRows = Callable[[int, int], Floats]  # first, end -> [end - first, columns]


@dataclass(frozen=True, slots=True)
class Rows:
    """A matrix [num_rows, columns] in numpy's order, read a few rows at a time."""

    num_rows: int
    columns: int
    read: ReadRows

    def part(self, row: int, num_rows: int, column: int, columns: int) -> Rows:
        """Return the rectangle of `num_rows` x `columns` that begins at (row, column)."""
        return Rows(
            num_rows, columns, lambda first, end: self.read(row + first, row + end)[:, column : column + columns]
        )

    def scale(self, factor: float) -> Rows:
        import numpy as np

        return replace(self, read=lambda first, end: self.read(first, end) * np.float32(factor))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A GGUF file whose tensors are read as floats, whatever type they are stored in."""

    header: Header
    read_span: Callable[[str, int, int], Floats]  # name, first row, end

    @classmethod
    def of(cls, header: Header) -> SourceFile:
        @lru_cache(maxsize=1)  # the patches of one matrix need the same rows in turn
        def read(name: str, first: int, end: int) -> Floats:
            return read_span(header, name, first, end)

        return cls(header, read)

    def rows(self, name: str) -> Rows:
        """Return a matrix. Raises ModelFileError if it is missing; reading it raises the same if the
        file is cut short.
        """
        tensor = find_tensor(self.header.path, self.header, name)
        return Rows(tensor.shape[1], tensor.shape[0], lambda first, end: self.read_span(name, first, end))

    def vector(self, name: str) -> Floats:
        """Return a norm, or factors. Raises ModelFileError if it is missing or the file is cut short."""
        return read_tensor(self.header.path, self.header, name)
