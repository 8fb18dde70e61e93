"""An upper bound of llama.cpp's compute buffers: there is no simple formula, but each stage of a layer has one.

A graph's buffer holds what lives at the same time. That is the attention masks and the residual stream throughout, and
the largest of the stages: attention, feed-forward, recurrence, output. How many rows of each are alive at once was
read off plans of real shapes (tests/engine/test_memory_estimate.py compares); the exact figure comes from
backend/rehearsal.py once there is a file.
"""

from __future__ import annotations

from dataclasses import replace

from eaglelocal.gguf.footprint import CacheSizes, kv_bytes_of_layer
from eaglelocal.gguf.shape import EAGLE, Shape

FLOAT_BYTES, HALF_BYTES = 4, 2
SLACK_SHARE, SLACK_BYTES = 1.05, 2 * 2**20  # alignment, indices, positions, what small graphs keep besides
LIVE_RESIDUALS = 4  # the stream itself, what was added, its norm, the next layer's input
LIVE_QUERIES, LIVE_KEYS = 4, 3
LIVE_HIDDEN = 3  # gate, up, and their product
LIVE_EXPERT_OUTPUTS = 2  # of each used expert: as it comes, and weighted
LIVE_ROUTES = 8  # of each expert: logits, shares, order, indices
LIVE_INNER = 3  # of a recurrent layer: projected, convolved, and as the scan leaves it
LIVE_STATES = 3  # as stored, as read for this batch, as it will be stored
LIVE_LAYER_INPUTS = 4  # of what is looked up for all layers, besides itself: projected, normed, added, and turned
STREAMS = {"gemma3n": 4}  # residual streams beside one another, where there is more than one
COPIES = 4  # of what goes from card to card, so that cards work at the same time (GGML_SCHED_MAX_COPIES)


def compute_bytes(shape: Shape, sizes: CacheSizes, *, max_outputs: int, device: str = "CPU") -> int:
    """Where all layers and the output are computed on one device, by its name."""
    stages = (
        attention_bytes(shape, sizes) + widened_bytes(shape, sizes, device),
        feed_forward_bytes(shape, sizes),
        recurrence_bytes(shape, sizes),
        output_bytes(shape, sizes, max_outputs=max_outputs),
        LIVE_LAYER_INPUTS * layer_inputs_bytes(shape, sizes),
    )
    return with_slack(mask_bytes(shape, sizes) + residual_bytes(shape, sizes) + max(stages))


def layers_bytes(shape: Shape, sizes: CacheSizes, *, device: str = "CPU") -> int:
    """Where layers are computed but not the output."""
    stages = (
        attention_bytes(shape, sizes) + widened_bytes(shape, sizes, device),
        feed_forward_bytes(shape, sizes),
        recurrence_bytes(shape, sizes),
        LIVE_LAYER_INPUTS * layer_inputs_bytes(shape, sizes),
    )
    return with_slack(mask_bytes(shape, sizes) + residual_bytes(shape, sizes) + max(stages))


def inputs_bytes(shape: Shape, sizes: CacheSizes) -> int:
    """In main memory, where everything is computed elsewhere: embeddings and masks as they are made."""
    embeddings = sizes.n_batch * shape.n_embd * FLOAT_BYTES + layer_inputs_bytes(shape, sizes)
    return with_slack(embeddings + mask_bytes(shape, sizes) * FLOAT_BYTES // HALF_BYTES)


def copies_bytes(shape: Shape, sizes: CacheSizes) -> int:
    """What each of several cards, and main memory, hold besides: copies of inputs, while others still compute."""
    return COPIES * inputs_bytes(shape, sizes)


def with_slack(num_bytes: int) -> int:
    return int(num_bytes * SLACK_SHARE) + SLACK_BYTES


def mask_bytes(shape: Shape, sizes: CacheSizes) -> int:
    """Which row may see which cell; windows have a mask of their own."""
    if not any(shape.kv_heads):
        return 0
    windows = {window for window in shape.windows if window is not None}
    cells = sizes.num_cells + sum(sizes.window_cells(window) for window in windows)
    return sizes.n_batch * cells * (HALF_BYTES if sizes.flash_attention else FLOAT_BYTES)


def residual_bytes(shape: Shape, sizes: CacheSizes) -> int:
    streams = STREAMS.get(shape.architecture, 1) * shape.n_embd * LIVE_RESIDUALS
    return sizes.n_batch * streams * FLOAT_BYTES + layer_inputs_bytes(shape, sizes)


def layer_inputs_bytes(shape: Shape, sizes: CacheSizes) -> int:
    """What was looked up for all layers, which waits until each has had its part."""
    return sizes.n_batch * shape.n_layer_embd * FLOAT_BYTES


def attention_bytes(shape: Shape, sizes: CacheSizes) -> int:
    """Without flash attention the scores of every head, row and cell are kept."""
    layers = range(shape.n_layer)
    head = max(shape.key_dim, shape.window_key_dim or 0)
    values = LIVE_QUERIES * shape.n_head * head
    values += LIVE_KEYS * max(shape.key_width(layer) + shape.value_width(layer) for layer in layers)
    if not sizes.flash_attention and any(shape.kv_heads):
        values += shape.n_head * sizes.num_cells
    return sizes.n_batch * values * FLOAT_BYTES


def widened_bytes(shape: Shape, sizes: CacheSizes, device: str) -> int:
    """A layer's keys and values once more, in f16, beside what flash attention gives: read in ggml-metal-ops.cpp, which
    always has room for them (`extra_kv_f16`), and fattn-common.cuh, where the cache is of another type.
    """
    stem = device.rstrip("0123456789")
    if not sizes.flash_attention or not (stem == "MTL" or (stem in ("CUDA", "ROCm") and sizes.kv_type != "f16")):
        return 0
    as_f16 = replace(sizes, kv_type="f16")
    return max((kv_bytes_of_layer(shape, layer, as_f16) for layer in range(shape.n_layer)), default=0)


def feed_forward_bytes(shape: Shape, sizes: CacheSizes) -> int:
    """`n_ff` counts the used experts together. Experts' outputs are added up when all are there."""
    outputs = LIVE_EXPERT_OUTPUTS * shape.n_expert_used * shape.n_embd
    values = max(LIVE_HIDDEN * shape.n_ff, shape.n_ff + outputs) + LIVE_ROUTES * shape.n_expert
    return sizes.n_batch * values * FLOAT_BYTES


def recurrence_bytes(shape: Shape, sizes: CacheSizes) -> int:
    kept = sizes.num_snapshots if shape.keeps_snapshots else 0  # come out of a layer beside its rows
    states = (LIVE_STATES + kept) * max(shape.layer_states, default=0) * sizes.num_sequences
    return states + sizes.n_batch * LIVE_INNER * shape.n_inner * FLOAT_BYTES


def output_bytes(shape: Shape, sizes: CacheSizes, *, max_outputs: int) -> int:
    """Logits; an EAGLE head's are spread over the target's vocabulary. Experts' outputs may still be there."""
    logits = max_outputs * shape.n_vocab * (2 if shape.architecture == EAGLE else 1)
    return (logits + sizes.n_batch * shape.n_expert_used * shape.n_embd) * FLOAT_BYTES
