"""Growth of a layer without a change of its results.

The residual stream of width d becomes D: the first d channels stay, the others hold exact zeros. So columns that read
the others may be random, and rows that write them must give zero. Appended attention heads read zero values (v
ignores the first d channels) and appended feed-forward channels are gated by zero (up ignores them), so that o_proj
and down may be random as well: an inflated model moves and multiplies real-looking weights, and few of them are zeros.

Norms: the mean square over D falls by d/D, so eps falls with it and the gains by sqrt(d/D).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.writer import StreamedTensor
from eaglelocal.hub.inflation.ggml_blocks import Bytes, Floats, RandomPool, encode, ggml_type, make_pool
from eaglelocal.hub.inflation.inflated_sizes import LlamaShape
from eaglelocal.hub.inflation.source_file import Rows, SourceFile


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
        return make_vector(name, gains * np.float32(self.norm_gain))

    def embeddings(self, name: str, values: Rows) -> Patchwork:
        """Return the embeddings, a row for each token; the appended channels start at zero and stay there."""
        rows, width = values.num_rows, values.columns
        patches = [make_zero_patch(0, width, rows, self.new.width - width), make_patch(0, 0, values)]
        return Patchwork(name, rows, self.new.width, patches)

    def output(self, name: str, values: Rows) -> Patchwork:
        return Patchwork(name, values.num_rows, self.new.width, [make_patch(0, 0, values)])


def widen_attention(
    prefix: str, growth: Growth, inputs: Sequence[ColumnRange], source: SourceFile | None
) -> Iterator[Patchwork]:
    """Yield q, k, v and output of a layer; without a source, those of an appended layer that adds nothing."""
    new, old = growth.new, growth.old
    kept_keys = old.kv_heads * old.head_dim if source else 0
    queries, keys = new.heads * new.head_dim, new.kv_heads * new.head_dim
    columns = inputs[-1].new + new.width
    silent = [make_zero_patch(kept_keys, span.new, keys - kept_keys, span.width) for span in inputs]
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
    """Yield gate, up and down of a layer; without a source, those of an appended layer that adds nothing."""
    new, old = growth.new, growth.old
    kept = old.ffn if source else 0
    silent = [make_zero_patch(kept, 0, new.ffn - kept, old.width)]
    gate_patches: list[Patch] = []
    down_patches: list[Patch] = []
    if source:
        gate_patches = [make_patch(0, 0, source.rows(f"{prefix}.ffn_gate.weight"))]
        silent.append(make_patch(0, 0, source.rows(f"{prefix}.ffn_up.weight")))
        down = source.rows(f"{prefix}.ffn_down.weight")
        down_patches = [make_zero_patch(old.width, 0, new.width - old.width, kept), make_patch(0, 0, down)]
    yield Patchwork(f"{prefix}.ffn_gate.weight", new.ffn, new.width, gate_patches)
    yield Patchwork(f"{prefix}.ffn_up.weight", new.ffn, new.width, silent)
    yield Patchwork(f"{prefix}.ffn_down.weight", new.width, new.ffn, down_patches)


def _rows_from(values: Rows, inputs: Sequence[ColumnRange]) -> list[Patch]:
    return [make_patch(0, span.new, values.part(0, values.num_rows, span.old, span.width)) for span in inputs]


def _query_patches(growth: Growth, inputs: Sequence[ColumnRange], values: Rows) -> list[Patch]:
    dim = growth.old.head_dim
    return [
        make_patch(growth.head_row(head), span.new, values.part(head * dim, dim, span.old, span.width))
        for head in range(growth.old.heads)
        for span in inputs
    ]


def _output_patches(growth: Growth, values: Rows) -> list[Patch]:
    """Return the output's patches: zeros for appended heads of a source head's group, which see real values."""
    dim = growth.old.head_dim
    patches = [make_zero_patch(0, 0, growth.new.width, growth.old.kv_heads * growth.new.group * dim)]
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
