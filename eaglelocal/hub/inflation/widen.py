"""Growth of a layer without a change of its results.

The residual stream of width d becomes D: the first d channels stay, the others hold exact zeros. So columns that read
the others may be random, and rows that write them must give zero. Appended attention heads read zero values (v
ignores the first d channels) and appended feed-forward channels are gated by zero (up ignores them), so that o_proj
and down may be random as well: an inflated model moves and multiplies real-looking weights, and few of them are zeros.

Norms: the mean square over D falls by d/D, so eps falls with it and the gains by sqrt(d/D).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME, GgmlType
from eaglelocal.gguf.header import Header, find_tensor
from eaglelocal.gguf.tensors import Bytes, Floats, encode_rows, read_span, read_tensor, stream_vector
from eaglelocal.gguf.writer import StreamedTensor
from eaglelocal.hub.inflation.inflated_sizes import LlamaShape

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
        """Return a matrix. Raises ModelFileError where it is missing, and when it is read and cut short."""
        tensor = find_tensor(self.header, name)
        return Rows(tensor.shape[1], tensor.shape[0], lambda first, end: self.read_span(name, first, end))

    def vector(self, name: str) -> Floats:
        """Return a norm, or factors. Raises ModelFileError where it is missing or cut short."""
        return read_tensor(self.header, name)


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """A range of columns in use: `width` of them, from `old` on in the source and `new` on in the result."""

    old: int
    new: int
    width: int


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a model of shape `old` to shape `new`."""

    old: LlamaShape
    new: LlamaShape

    @property
    def norm_gain(self) -> float:
        return math.sqrt(self.old.width / self.new.width)

    @property
    def eps_factor(self) -> float:
        return self.old.width / self.new.width

    @property
    def stream(self) -> tuple[ColumnRange, ...]:
        """The residual stream as a layer's input."""
        return (ColumnRange(0, 0, self.old.width),)

    @property
    def pair(self) -> tuple[ColumnRange, ...]:
        """The two streams side by side that a draft head's attention reads."""
        return (ColumnRange(0, 0, self.old.width), ColumnRange(self.old.width, self.new.width, self.old.width))

    def head_row(self, head: int) -> int:
        """Return the first row of a source head, which keeps its KV head; that head's group may have grown."""
        key_head, within = divmod(head, self.old.group)
        return (key_head * self.new.group + within) * self.new.head_dim

    def norm(self, name: str, values: Floats | None) -> StreamedTensor:
        gains = np.ones(self.new.width, np.float32)
        if values is not None:
            gains[: values.size] = values
        return stream_vector(name, gains * np.float32(self.norm_gain))

    def embeddings(self, name: str, values: Rows) -> Patchwork:
        """Return the embeddings, a row for each token; the appended channels start at zero and stay there."""
        rows, width = values.num_rows, values.columns
        patches = [Patch(0, width, rows, self.new.width - width), make_patch(0, 0, values)]
        return Patchwork(name, rows, self.new.width, patches)

    def output(self, name: str, values: Rows) -> Patchwork:
        return Patchwork(name, values.num_rows, self.new.width, [make_patch(0, 0, values)])


def widen_attention(
    prefix: str, growth: Growth, inputs: Sequence[ColumnRange], source: SourceFile | None
) -> Iterator[Patchwork]:
    """Yield q, k, v and output of a layer; without a source, of an appended layer that adds nothing."""
    new, old = growth.new, growth.old
    kept_keys = old.kv_heads * old.head_dim if source else 0
    queries, keys = new.heads * new.head_dim, new.kv_heads * new.head_dim
    columns = inputs[-1].new + new.width
    silent = [Patch(kept_keys, span.new, keys - kept_keys, span.width) for span in inputs]
    query_patches: list[Patch] = []
    key_patches: list[Patch] = []
    output_patches: list[Patch] = []
    if source:
        query_patches = _query_patches(growth, inputs, source.rows(f"{prefix}.attn_q.weight"))
        key_patches = _rows_from(source.rows(f"{prefix}.attn_k.weight"), inputs)
        silent += _rows_from(source.rows(f"{prefix}.attn_v.weight"), inputs)
        output_patches = _output_patches(growth, source.rows(f"{prefix}.attn_output.weight"))
    yield Patchwork(f"{prefix}.attn_q.weight", queries, columns, query_patches)
    yield Patchwork(f"{prefix}.attn_k.weight", keys, columns, key_patches)
    yield Patchwork(f"{prefix}.attn_v.weight", keys, columns, silent)
    yield Patchwork(f"{prefix}.attn_output.weight", new.width, queries, output_patches)


def widen_feed_forward(prefix: str, growth: Growth, source: SourceFile | None) -> Iterator[Patchwork]:
    """Yield gate, up and down of a layer; without a source, of an appended layer that adds nothing."""
    new, old = growth.new, growth.old
    kept = old.ffn if source else 0
    silent = [Patch(kept, 0, new.ffn - kept, old.width)]
    gate_patches: list[Patch] = []
    down_patches: list[Patch] = []
    if source:
        gate_patches = [make_patch(0, 0, source.rows(f"{prefix}.ffn_gate.weight"))]
        silent.append(make_patch(0, 0, source.rows(f"{prefix}.ffn_up.weight")))
        down = source.rows(f"{prefix}.ffn_down.weight")
        down_patches = [Patch(old.width, 0, new.width - old.width, kept), make_patch(0, 0, down)]
    yield Patchwork(f"{prefix}.ffn_gate.weight", new.ffn, new.width, gate_patches)
    yield Patchwork(f"{prefix}.ffn_up.weight", new.ffn, new.width, silent)
    yield Patchwork(f"{prefix}.ffn_down.weight", new.width, new.ffn, down_patches)


def _query_patches(growth: Growth, inputs: Sequence[ColumnRange], values: Rows) -> list[Patch]:
    dim = growth.old.head_dim
    return [
        make_patch(growth.head_row(head), span.new, values.part(head * dim, dim, span.old, span.width))
        for head in range(growth.old.heads)
        for span in inputs
    ]


def _rows_from(values: Rows, inputs: Sequence[ColumnRange]) -> list[Patch]:
    return [make_patch(0, span.new, values.part(0, values.num_rows, span.old, span.width)) for span in inputs]


def _output_patches(growth: Growth, values: Rows) -> list[Patch]:
    """Return the output's patches: zeros for appended heads of a source head's group, which see real values."""
    dim = growth.old.head_dim
    patches = [Patch(0, 0, growth.new.width, growth.old.kv_heads * growth.new.group * dim)]
    for head in range(growth.old.heads):
        columns = values.part(0, values.num_rows, head * dim, dim)
        patches.append(make_patch(0, growth.head_row(head), columns))
    return patches


# ---- patch matrix: a random matrix with rectangular patches, produced a few rows at a time
#
# Patches hold given numbers or zeros; later ones cover earlier ones. A patch is encoded on its own and copied in, so
# its columns must begin and end at blocks of the type.
PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Patch:
    """A rectangle of `values` (None: zeros), `rows` x `columns` from (row, column) on; nothing if one is below 1."""

    row: int
    column: int
    rows: int
    columns: int
    values: Rows | None = None

    def press(self, piece: Bytes, first: int, kind: GgmlType) -> None:
        """Write the patch over a piece of the encoded matrix whose first row is `first`."""
        top, bottom = max(self.row, first), min(self.row + self.rows, first + len(piece))
        if top >= bottom or self.columns <= 0:
            return
        if self.column % kind.block_elements or self.columns % kind.block_elements:
            raise ValueError(f"a patch of columns {self.column} + {self.columns} cuts blocks of {kind.name}")
        encoded = _encode_zeros(self.columns, kind)
        if self.values is not None:
            encoded = encode_rows(self.values.read(top - self.row, bottom - self.row), kind)
        start = kind.row_bytes(self.column)
        piece[top - first : bottom - first, start : start + encoded.shape[1]] = encoded


def make_patch(row: int, column: int, values: Rows) -> Patch:
    return Patch(row, column, values.num_rows, values.columns, values)


@lru_cache(maxsize=8)
def _encode_zeros(columns: int, kind: GgmlType) -> Bytes:
    return encode_rows(np.zeros((1, columns), np.float32), kind)


@dataclass(frozen=True, slots=True)
class Patchwork:
    """A matrix [rows, columns] in numpy's order."""

    name: str
    rows: int
    columns: int
    patches: Sequence[Patch]

    def tensor(self, type_name: str) -> StreamedTensor:
        """Return the matrix to be written as this type."""
        kind = GGML_TYPES_BY_NAME[type_name.upper()]
        return StreamedTensor(self.name, (self.columns, self.rows), kind, lambda: self._pieces(kind))

    def _pieces(self, kind: GgmlType) -> Iterator[Bytes]:
        row_bytes = kind.row_bytes(self.columns)
        step = max(1, PIECE_BYTES // row_bytes)
        for first in range(0, self.rows, step):
            piece = np.empty((min(step, self.rows - first), row_bytes), np.uint8)
            fill_randomly(piece.reshape(-1), kind, self.name, first * row_bytes)
            for patch in self.patches:
                patch.press(piece, first, kind)
            yield piece.reshape(-1)


# ---- random pool: random bytes are encoded once, then copied from ever new offsets at the speed of memory
WEIGHT_STD = 0.02  # of initialised models, and about that of trained ones
_POOL_ELEMENTS = 1 << 21
_POOL_SEED = 20_261_120
_STRIDE_BLOCKS = 40_503  # odd, so that repetitions of the pool do not line up


def fill_randomly(target: Bytes, kind: GgmlType, tensor_name: str, start_bytes: int) -> None:
    """Fill `target` with a tensor's random bytes from `start_bytes` on; the same bytes in pieces of any size."""
    pool, done = _make_pool(kind), 0
    while done < len(target):
        turn, within = divmod(start_bytes + done, len(pool))
        shift = (zlib.crc32(tensor_name.encode()) + turn * _STRIDE_BLOCKS) * kind.block_bytes
        place = (shift + within) % len(pool)
        count = min(len(target) - done, len(pool) - within, len(pool) - place)
        target[done : done + count] = pool[place : place + count]
        done += count


@lru_cache(maxsize=1)
def _make_pool(kind: GgmlType) -> Bytes:
    """Return encoded normal numbers [bytes], always the same."""
    rng = np.random.default_rng(_POOL_SEED)
    values = rng.standard_normal(_POOL_ELEMENTS, np.float32) * np.float32(WEIGHT_STD)
    return encode_rows(values.reshape(-1, 256), kind).reshape(-1)
