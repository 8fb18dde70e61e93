"""Compute an upper bound of llama.cpp's compute buffers, stage by stage of a layer.

A graph's buffer holds the tensors that are alive at the same time: the attention masks and the residual stream
throughout, plus the largest of the stages attention, feed-forward, recurrence and output. How many rows of each are
alive at once was read off dry runs of real shapes (tests/engine/test_memory_estimate.py compares); backend/dry_run.py
gives the exact figure once there is a file.
"""

from __future__ import annotations

from dataclasses import replace

from eaglelocal.gguf.architectures import EAGLE
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.memory.cache_bytes import CacheParams, compressed_cells, kv_bytes_of_layer, row_bytes

FLOAT_BYTES, HALF_BYTES = 4, 2
SLACK_SHARE, SLACK_BYTES = 1.05, 2 * 2**20  # alignment, indices, positions, other tensors of small graphs
LIVE_RESIDUALS = 4  # the stream itself, the summand, its norm, the next layer's input
LIVE_QUERIES, LIVE_KEYS = 4, 3
LIVE_HIDDEN = 3  # gate, up, and their product
LIVE_EXPERT_OUTPUTS = 2  # for each used expert: its output, and that weighted
LIVE_INDEX_MASKS = 2  # for each compressed row: the best not masked, and that added to the mask
LIVE_ROUTES = 8  # for each expert: logits, weights, order, indices
LIVE_INNER = 3  # for a recurrent layer: projected, convolved, and the output of the scan
LIVE_STATES = 3  # the stored state, the one read for this batch, and the one to store
LIVE_LAYER_INPUTS = 4  # of per-layer embeddings, besides themselves: projected, normed, added and permuted
RESIDUAL_STREAMS = {"gemma3n": 4, "deepseek4": 3}  # parallel residual streams that are alive together, of several
PIPELINE_COPIES = 4  # of tensors sent between GPUs, for pipeline parallelism (GGML_SCHED_MAX_COPIES)


def compute_bytes(shape: ModelShape, sizes: CacheParams, *, max_outputs: int | None, device: str = "CPU") -> int:
    """Return the bytes of the compute buffers of the device, by name, that computes layers and the output.

    max_outputs  rows of one decode that are outputs; None: the device computes layers only
    """
    return sum(
        graph_bytes(part, sizes, max_outputs=max_outputs, device=device) for part in (shape, *shape.list_upper())
    )


def graph_bytes(shape: ModelShape, sizes: CacheParams, *, max_outputs: int | None, device: str) -> int:
    """Return the bytes of one context's buffer, of compute_bytes."""
    stages = (
        attention_bytes(shape, sizes) + converted_cache_bytes(shape, sizes, device),
        feed_forward_bytes(shape, sizes),
        recurrence_bytes(shape, sizes),
        0 if max_outputs is None else output_bytes(shape, sizes, max_outputs=max_outputs),
        LIVE_LAYER_INPUTS * layer_inputs_bytes(shape, sizes),
    )
    return add_slack(mask_bytes(shape, sizes) + residual_bytes(shape, sizes) + max(stages))


def inputs_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the bytes of inputs in RAM if everything is computed on GPUs: embeddings, and masks in 32 bits."""
    embeddings = sizes.n_batch * shape.n_embd * FLOAT_BYTES + layer_inputs_bytes(shape, sizes)
    return add_slack(embeddings + mask_bytes(shape, sizes) * FLOAT_BYTES // HALF_BYTES)


def copies_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the bytes of input copies that each of several GPUs, and RAM, holds for pipeline parallelism."""
    return PIPELINE_COPIES * inputs_bytes(shape, sizes)


def logits_bytes(num_rows: int, n_vocab: int, *, state_width: int = 0) -> int:
    """Return the bytes of the rows that llama.cpp keeps for reading: logits, and a head's states of `state_width`."""
    return num_rows * (n_vocab + state_width) * FLOAT_BYTES


def tap_bytes(num_rows: int, n_embd: int) -> int:
    """Return the bytes of the rows of one tapped layer."""
    return num_rows * n_embd * FLOAT_BYTES


def scores_bytes(*, n_batch: int, num_cells: int, n_head: int) -> int:
    """Return the bytes of one layer's attention scores: every row of a batch by every cell, in float32."""
    return n_batch * num_cells * n_head * FLOAT_BYTES


def add_slack(num_bytes: int) -> int:
    return int(num_bytes * SLACK_SHARE) + SLACK_BYTES


def mask_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the bytes of the attention masks, [rows, cells]; each size of sliding window has its own."""
    if not any(shape.kv_heads):
        return 0
    windows = {window for window in shape.windows if window is not None}
    whole = sizes.num_cells if None in shape.windows else 0
    cells = whole + sum(sizes.window_cells(window) for window in windows)
    if shape.compressions:  # one of single tokens, and one of each kind of compressed rows
        rows = {shape.compressions[layer]: compressed_cells(shape, layer, sizes) for layer in range(shape.n_layer)}
        cells = window_cells_of(shape, sizes) + sum(rows.values())
    return sizes.n_batch * cells * mask_value_bytes(sizes)


def mask_value_bytes(sizes: CacheParams) -> int:
    return HALF_BYTES if sizes.flash_attn else FLOAT_BYTES


def window_cells_of(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the cells of single tokens of one stream of a model whose layers all have the same window, or none."""
    window = shape.windows[0]
    return sizes.num_cells if window is None else sizes.window_cells(window)


def compressed_attention_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the bytes of attention to single tokens and compressed rows together; 0 for models without these.

    The keys and masks of both are put side by side. An indexer scores the rows, and masks all but the best.
    """
    if not shape.compressions:
        return 0
    rows = max(compressed_cells(shape, layer, sizes) for layer in range(shape.n_layer))
    cells = window_cells_of(shape, sizes) + rows
    keys = cells * sizes.num_sequences * row_bytes(sizes.kv_type, shape.key_dim)
    masks = sizes.n_batch * (cells + LIVE_INDEX_MASKS * rows) * mask_value_bytes(sizes)
    scored = sizes.n_batch * rows * FLOAT_BYTES
    if not sizes.flash_attn:
        scored += scores_bytes(n_batch=sizes.n_batch, num_cells=cells, n_head=shape.n_head)
    return keys + masks + scored


def residual_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    streams = RESIDUAL_STREAMS.get(shape.architecture, 1) * shape.n_embd * LIVE_RESIDUALS
    return sizes.n_batch * streams * FLOAT_BYTES + layer_inputs_bytes(shape, sizes)


def layer_inputs_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the bytes of the per-layer embeddings, which stay alive until the last layer has used its part."""
    return sizes.n_batch * shape.n_layer_embd * FLOAT_BYTES


def attention_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the bytes of queries, keys and values; without flash attention also the scores, [heads, rows, cells]."""
    layers = range(shape.n_layer)
    key_dim = max(shape.key_dim, shape.window_key_dim or 0)
    values = LIVE_QUERIES * shape.n_head * key_dim
    values += LIVE_KEYS * max(shape.key_width(layer) + shape.value_width(layer) for layer in layers)
    scores = compressed_attention_bytes(shape, sizes)
    if not sizes.flash_attn and any(shape.kv_heads) and not shape.compressions:
        scores = scores_bytes(n_batch=sizes.n_batch, num_cells=sizes.num_cells, n_head=shape.n_head)
    return sizes.n_batch * values * FLOAT_BYTES + scores


def converted_cache_bytes(shape: ModelShape, sizes: CacheParams, device: str) -> int:
    """Return the bytes of one layer's keys and values converted to f16 for flash attention; 0 where none are.

    Metal always reserves them (`extra_kv_f16` in ggml-metal-ops.cpp), CUDA and ROCm if the cache is of another type
    (fattn-common.cuh).
    """
    stem = device.rstrip("0123456789")
    if not sizes.flash_attn or not (stem == "MTL" or (stem in ("CUDA", "ROCm") and sizes.kv_type != "f16")):
        return 0
    as_f16 = replace(sizes, kv_type="f16")
    return max((kv_bytes_of_layer(shape, layer, as_f16) for layer in range(shape.n_layer)), default=0)


def feed_forward_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the bytes of the feed-forward. `n_ff` is the sum over the used experts."""
    outputs = LIVE_EXPERT_OUTPUTS * shape.n_expert_used * shape.n_embd
    values = max(LIVE_HIDDEN * shape.n_ff, shape.n_ff + outputs) + LIVE_ROUTES * shape.n_expert
    return sizes.n_batch * values * FLOAT_BYTES


def recurrence_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    snapshots = sizes.num_snapshots if shape.keeps_snapshots else 0  # outputs of a layer, besides its rows
    states = (LIVE_STATES + snapshots) * max(shape.layer_states, default=0) * sizes.num_sequences
    return states + sizes.n_batch * LIVE_INNER * shape.n_inner * FLOAT_BYTES


def output_bytes(shape: ModelShape, sizes: CacheParams, *, max_outputs: int) -> int:
    """Return the bytes of logits, with experts' outputs.

    An EAGLE head's are there twice, mapped to the target's vocabulary; where upper layers give them, they are not.
    """
    is_mapped = shape.architecture == EAGLE and not shape.upper_vocab
    logits = logits_bytes(max_outputs, shape.n_vocab) * (2 if is_mapped else 1)
    return logits + sizes.n_batch * shape.n_expert_used * shape.n_embd * FLOAT_BYTES
