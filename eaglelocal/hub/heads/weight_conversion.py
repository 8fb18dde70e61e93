"""Conversion of a published head's tensors to those of a GGUF, a few rows at a time, so that any size fits in memory.

Rows of queries and keys are reordered (transformers rotate pairs i and i + d/2 of a head, llama.cpp's eagle3 graph
pairs 2i and 2i + 1), columns of fc take in the gains of fc_norm, and all of it is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from eaglelocal.errors import ModelFileError
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME, GgmlType
from eaglelocal.gguf.writer import StreamedTensor
from eaglelocal.hub.heads.safetensors_files import Floats, Ints, StoredTensor

if TYPE_CHECKING:
    from eaglelocal.gguf.writer import Bytes

PIECE_BYTES = 16 << 20  # of float32
TYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
MAX_F16 = 65504.0
F32 = GGML_TYPES_BY_NAME["F32"]

Rows = Callable[[int, int], Floats]  # first, end -> [end - first, columns]


def convert_matrix(name: str, rows: Rows, shape: tuple[int, int], kind: str, *, block: int = 1) -> StreamedTensor:
    """Return a matrix [rows, columns] of the type `kind`, read in pieces of whole blocks of rows.

    Where a row does not divide into the type's blocks, F16 stands in.
    """
    num_rows, columns = shape
    wanted = GGML_TYPES_BY_NAME[TYPES[kind]]
    encoded = wanted if columns % wanted.block_elements == 0 else GGML_TYPES_BY_NAME["F16"]
    step = max(1, PIECE_BYTES // (4 * columns * block)) * block

    def pieces() -> Iterator[Bytes]:
        for first in range(0, num_rows, step):
            yield encode(rows(first, min(first + step, num_rows)), encoded, name)

    return StreamedTensor(name, (columns, num_rows), encoded, pieces)


def convert_vector(name: str, values: Floats) -> StreamedTensor:
    """Return a norm, or factors, in F32, as llama.cpp needs them."""
    flat = np.ascontiguousarray(values.reshape(-1), np.float32)
    return StreamedTensor(name, flat.shape, F32, lambda: iter([flat.view(np.uint8)]))


def convert_indices(name: str, values: Ints) -> StreamedTensor:
    flat = np.ascontiguousarray(values, np.int64)
    return StreamedTensor(name, flat.shape, GGML_TYPES_BY_NAME["I64"], lambda: iter([flat.view(np.uint8)]))


def encode(values: Floats, kind: GgmlType, name: str) -> Bytes:
    """Encode floats. Raises ModelFileError where a number does not fit the type."""
    from gguf.constants import GGMLQuantizationType  # slow to import
    from gguf.quants import quantize

    if kind.name == "F16" and float(np.abs(values).max(initial=0.0)) > MAX_F16:
        raise ModelFileError(f"{name} has numbers that f16 cannot hold", hint="`--type bf16`")
    encoded = quantize(np.ascontiguousarray(values), GGMLQuantizationType(kind.id))
    return np.ascontiguousarray(encoded).reshape(-1).view(np.uint8)


def interleave_rows(source: StoredTensor, head_dim: int) -> Rows:
    """Return a reader of rows of queries or keys in llama.cpp's order.

    Within each head, row i and row i + d/2 become 2i and 2i + 1.
    """
    order = np.arange(head_dim).reshape(2, -1).T.reshape(-1)

    def rows(first: int, end: int) -> Floats:
        heads = source.rows(first, end).reshape((end - first) // head_dim, head_dim, -1)
        return heads[:, order].reshape(end - first, -1)

    return rows


def scale_columns(source: StoredTensor, gains: Floats | None, *, num_columns: int) -> Rows:
    """Return a reader of fc with each tap's gains in its columns, and columns of zeros up to `num_columns`."""

    def rows(first: int, end: int) -> Floats:
        values = source.rows(first, end)
        if gains is not None:
            values = values * gains
        return np.pad(values, ((0, 0), (0, num_columns - values.shape[1])))

    return rows
