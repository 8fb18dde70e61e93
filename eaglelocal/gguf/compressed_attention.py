"""Attention that keeps several earlier tokens as one row of keys (DeepSeek V4): the sizes of its caches, from a header.

Beside a sliding window of single tokens, a layer keeps a row for each 4 or 128 tokens, and the state of the row that is
not complete yet. Layers of 4 have a second, narrower row, by which an indexer chooses (src/llama-kv-cache-dsv4.cpp).
"""

from __future__ import annotations

from eaglelocal.gguf.arch_keys import ArchitectureKeys

COMPRESSED_ARCHITECTURES = frozenset({"deepseek4"})
OVERLAPPING_RATIO = 4  # whose rows also read the tokens of the row before
STATE_VALUE_BYTES = 4


def read_compressions(keys: ArchitectureKeys, *, n_layer: int, head_dim: int) -> tuple[tuple[int, int], ...]:
    """Return for each layer the tokens of a row and the row's values, (0, 0) where it keeps none; empty: no such model.

    Raises ModelFileError if the file lists too few layers.
    """
    if keys.prefix not in COMPRESSED_ARCHITECTURES:
        return ()
    ratios = keys.counts("attention.compress_ratios") or ()
    if len(ratios) < n_layer:
        raise keys.error(f"attention.compress_ratios lists {len(ratios)} of {n_layer} layers")
    index_dim = keys.optional_count("attention.indexer.key_length") or 0
    return tuple(
        (ratio, head_dim + (index_dim if ratio == OVERLAPPING_RATIO else 0)) if ratio else (0, 0)
        for ratio in ratios[:n_layer]
    )


def compressor_bytes(ratio: int, width: int) -> int:
    """Return the bytes of one sequence's state in one layer: values and scores of the tokens that a row may still need.

    >>> compressor_bytes(128, 512)
    524288
    """
    overlap = 2 if ratio == OVERLAPPING_RATIO else 1
    num_rows, row_values = overlap * ratio, overlap * width
    return 2 * num_rows * row_values * STATE_VALUE_BYTES
