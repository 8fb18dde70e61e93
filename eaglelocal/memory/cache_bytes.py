"""Sizes in bytes of a model's caches and recurrent states, exactly as the pinned llama.cpp allocates them.

Pure sums over a ModelShape. Sources: src/llama-context.cpp (padding of n_ctx), src/llama-kv-cache.cpp,
src/llama-kv-cache-iswa.cpp (cells of windows), src/llama-memory-recurrent.cpp (states and their snapshots). The device
of each is decided in placement.py.
"""

from __future__ import annotations

from functools import lru_cache

from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import KV_TYPES, split_kv_type
from eaglelocal.errors import UsageError
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.header import round_up
from eaglelocal.gguf.model_shape import ModelShape

CELL_STEP = 256  # numbers of cells are rounded up to it


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheParams:
    """The cache parameters of a context. Raises UsageError for an impossible `kv_type`.

    n_ctx          positions of each slot
    num_branches   sequences of each slot besides its own; they share its cells
    unified        one cache for all slots, else one for each
    num_snapshots  earlier states kept of each sequence, to roll back to
    swa_full       layers with a sliding window keep all positions too, so that any prefix can be reused
    """

    n_ctx: int
    num_slots: int = 1
    num_branches: int = 0
    unified: bool = True
    n_batch: int = 512
    kv_type: str = "f16"
    flash_attn: bool = True
    num_snapshots: int = 0
    swa_full: bool = True

    def __post_init__(self) -> None:
        check_kv_type(self.kv_type)

    @property
    def key_type(self) -> str:
        return split_kv_type(self.kv_type)[0]

    @property
    def value_type(self) -> str:
        return split_kv_type(self.kv_type)[1]

    @property
    def num_sequences(self) -> int:
        return self.num_slots * (1 + self.num_branches)

    @property
    def num_streams(self) -> int:
        """The number of separate caches that llama.cpp keeps."""
        return 1 if self.unified else self.num_sequences

    @property
    def num_cells(self) -> int:
        """The cells of one stream in a layer with full attention."""
        return round_up(self.n_ctx * (self.num_slots if self.unified else 1), CELL_STEP)

    def window_cells(self, window: int) -> int:
        """Return the cells of one stream in a layer with a window: each sequence's window, and a batch."""
        if self.swa_full:
            return self.num_cells
        needed = window * (self.num_sequences if self.unified else 1) + self.n_batch
        return round_up(min(self.num_cells, needed), CELL_STEP)


def check_kv_type(kv_type: str) -> None:
    """Raise UsageError unless a cache can have these types."""
    if not set(split_kv_type(kv_type)) <= set(KV_TYPES):
        raise UsageError(f"--kv-type cannot be {kv_type}", hint=f"one of: {', '.join(KV_TYPES)}")


def bits_per_value(kv_type: str) -> float:
    """Return the bits that a cache takes for each of its values, on average over keys and values.

    >>> bits_per_value("q8_0,q5_1")
    7.25
    """
    kinds = [GGML_TYPES_BY_NAME[name.upper()] for name in split_kv_type(kv_type)]
    return sum(8 * kind.block_bytes / kind.block_elements for kind in kinds) / len(kinds)


def row_bytes(kv_type: str, num_values: int) -> int:
    """Return the bytes of one cell's keys or values; a part of a quantization block counts as a whole one."""
    kind = GGML_TYPES_BY_NAME[kv_type.upper()]
    return -(-num_values // kind.block_elements) * kind.block_bytes


def kv_bytes_of_layer(shape: ModelShape, layer: int, sizes: CacheParams) -> int:
    """Return the bytes of a layer's keys and values in all streams.

    Without flash attention values are stored transposed, and every layer's are as wide as the widest layer's.
    """
    if not shape.kv_heads[layer]:
        return 0
    window = shape.windows[layer]
    cells = sizes.num_cells if window is None else sizes.window_cells(window)
    width = shape.value_width(layer) if sizes.flash_attn else max(map(shape.value_width, range(shape.n_layer)))
    if shape.compressions:  # each sequence has its own caches, whatever the plan says
        compressed = row_bytes(sizes.key_type, shape.compressions[layer][1]) * compressed_cells(shape, layer, sizes)
        unused = shape.n_layer_ahead if layer == shape.n_layer - 1 else 0  # of MTP layers, allocated here too
        keys = row_bytes(sizes.key_type, shape.key_width(layer)) * cells * (1 + unused)
        return (keys + compressed) * sizes.num_sequences
    keys = row_bytes(sizes.key_type, shape.key_width(layer)) + row_bytes(sizes.key_type, shape.index_dim)
    return (keys + row_bytes(sizes.value_type, width)) * cells * sizes.num_streams


def compressed_cells(shape: ModelShape, layer: int, sizes: CacheParams) -> int:
    """Return how many rows of compressed tokens a layer keeps for one sequence."""
    ratio = shape.compressions[layer][0]
    return round_up(-(-sizes.num_cells // ratio), CELL_STEP) if ratio else 0


@lru_cache(maxsize=64)  # a search for a plan asks for the same ones again and again
def list_cache_bytes(shape: ModelShape, sizes: CacheParams) -> tuple[int, ...]:
    """Return the bytes of each layer's keys, values and recurrent states."""
    num_states = sizes.num_sequences * (1 + (sizes.num_snapshots if shape.keeps_snapshots else 0))
    states = (each * num_states for each in shape.layer_states)
    return tuple(kv_bytes_of_layer(shape, layer, sizes) + each for layer, each in enumerate(states))


def cache_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the bytes of all caches and recurrent states of a context."""
    return sum(list_cache_bytes(shape, sizes))
