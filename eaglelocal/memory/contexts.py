"""Derive the sizes of each model's llama.cpp context from a plan; no other file does.

loading/context_parts.py makes the contexts from them and estimate.py estimates their memory, so that what is planned is
what is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from eaglelocal.core.plan import Plan, shares_cache
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.architectures import BLOCK, EAGLE
from eaglelocal.gguf.draft_pairing import branch_problem
from eaglelocal.gguf.model_shape import MTP, ModelShape
from eaglelocal.memory.budget import FreeMemory
from eaglelocal.memory.cache_bytes import CacheParams, compressed_cells, kv_bytes_of_layer, row_bytes
from eaglelocal.memory.placement import choose_gpus

# numbers of drafted rows that can be rolled back; the first that fits is taken, and each costs a recurrent state
ROLLBACKS = (8, 4, 2)
PLANNED_ROLLBACK, PLANNED_LOOKUP_ROLLBACK = 4, 2  # the number that a plan assumes
PLANNED_BLOCK_ROLLBACK = 8  # of a block head, which drafts its tokens together
TREE_CELLS = 256  # of drafted tokens after which more are drafted: at most 16 levels of 8 and some chains' ends
MAX_SCORES_BYTES = 512 * 2**20
MAX_KERNEL_WIDTH = 256  # elements of a key or value that our attention kernel for processors handles
HEAD_ROWS, MTP_ROWS, ROWS_PER_SLOT = 128, 64, 32  # the most rows of one call; long prompts take several


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedContext:
    """A model and the sizes of its context.

    max_outputs  rows of one decode whose logits may be read
    num_taps     layers whose input is copied for every row, for a head
    tap_width    values of one such copy; 0: as many as a state has
    gpu_layers   layers on the GPUs; None: all
    n_cpu_moe    layers whose experts stay in RAM
    """

    shape: ModelShape
    sizes: CacheParams
    max_outputs: int
    num_taps: int = 0
    tap_width: int = 0
    gpu_layers: int | None = None
    n_cpu_moe: int = 0
    of_draft: bool = False


def plan_contexts(plan: Plan, target: ModelShape, draft: ModelShape | None = None) -> tuple[PlannedContext, ...]:
    """Return the contexts of the target and, if there is one, of the draft."""
    target_context = plan_target_context(plan, target, draft)
    return (target_context,) if draft is None else (target_context, plan_draft_context(plan, draft, target))


def plan_target_context(plan: Plan, target: ModelShape, draft: ModelShape | None = None) -> PlannedContext:
    """Return the context of the target.

    With compressed rows only the windows are kept, whatever the plan says. Such a cache can only go back to saved
    states, which hold the window; it cannot be cut anywhere else.
    """
    sizes = CacheParams(
        n_ctx=plan.n_ctx,
        num_slots=plan.num_slots,
        num_branches=num_branches(plan, target),
        unified=plan.is_unified,
        n_batch=plan.n_batch,
        kv_type=plan.kv_type,
        flash_attn=plan.flash_attn != "off",
        num_snapshots=num_snapshots(plan, target),
        swa_full=plan.swa_full is not False and not target.compressions,
    )
    max_outputs = min(plan.num_slots * (1 + plan.max_draft), plan.n_batch)
    return PlannedContext(
        shape=target,
        sizes=sizes,
        max_outputs=max_outputs,
        num_taps=draft.num_taps if draft is not None else 0,
        tap_width=draft.n_embd if draft is not None and draft.architecture == MTP and not draft.reads_cache else 0,
        gpu_layers=plan.gpu_layers,
        n_cpu_moe=plan.n_cpu_moe,
    )


def plan_draft_context(plan: Plan, draft: ModelShape, target: ModelShape) -> PlannedContext:
    """Return the context of a draft. Each row of a head's call is an output; a draft model has one for each sequence.

    Each output needs logits of the whole vocabulary, so a head has fewer rows per call than its target; an MTP layer or
    a block head, whose vocabulary is mostly not reduced, has fewer still.

    A head has one cache for all slots: they wait with unequal numbers of pairs, and its single layer attends cheaply.
    Window layers have full-size caches, because a draft is small and must be cut wherever the target's cache is. A head
    that reads the target's cache has its layout, and one row per slot. The context of a head that drafts in blocks is
    longer by one block, because the last block may end beyond the text. A DFlash head starts anew wherever it is cut,
    so it keeps only its windows. Where drafts may be trees, the context has room for a tree after the longest text.
    """
    n_batch = max_head_rows(plan, draft) if draft.is_head else plan.n_batch
    branches = (
        0 if draft.block_size > 1 or draft.reads_cache else min(num_branches(plan, target), num_branches(plan, draft))
    )
    sizes = CacheParams(
        n_ctx=plan.n_ctx + (draft.block_size if draft.block_size > 1 else TREE_CELLS if branches else 0),
        num_slots=plan.num_slots,
        num_branches=branches,
        unified=plan.is_unified or (draft.is_head and not draft.reads_cache),
        n_batch=n_batch,
        kv_type=plan.kv_type,
        flash_attn=plan.flash_attn != "off",
        swa_full=draft.architecture != BLOCK,
    )
    max_outputs = n_batch if draft.is_head else sizes.num_sequences
    return PlannedContext(
        shape=draft, sizes=sizes, max_outputs=max_outputs, gpu_layers=plan.num_draft_gpu_layers, of_draft=True
    )


def max_head_rows(plan: Plan, head: ModelShape) -> int:
    """Return the most rows of one call of a head."""
    if head.reads_cache:
        return min(plan.n_batch, plan.num_slots)
    least = MTP_ROWS if head.architecture in (MTP, BLOCK) else HEAD_ROWS
    return min(plan.n_batch, max(least, ROWS_PER_SLOT * plan.num_slots))


def num_branches(plan: Plan, model: ModelShape) -> int:
    """Return the branches of each slot's trees; 0 for a model with recurrent state or sliding windows."""
    return 0 if model.has_state or model.has_windows else plan.num_branches


def num_snapshots(plan: Plan, target: ModelShape) -> int:
    """Return how many earlier recurrent states are kept: one for each drafted row that can be rolled back."""
    if not (target.has_state and target.keeps_snapshots):
        return 0
    return min(plan.max_draft, plan_rollback(plan.draft_kind) if plan.rollback is None else plan.rollback)


def plan_rollback(draft_kind: str) -> int:
    """Return the drafted rows that a plan assumes can be rolled back; the engine allows more if they fit."""
    planned = {"ngram": PLANNED_LOOKUP_ROLLBACK, BLOCK: PLANNED_BLOCK_ROLLBACK}
    return planned.get(draft_kind, PLANNED_ROLLBACK)


# ---- compute buffers: compute an upper bound of llama.cpp's compute buffers, stage by stage of a layer
#
# A graph's buffer holds the tensors that are alive at the same time: the attention masks and the residual stream
# throughout, plus the largest of the stages attention, feed-forward, recurrence and output. How many rows of each are
# alive at once was read off dry runs of real shapes (tests/engine/test_memory_estimate.py compares);
# backend/dry_run.py gives the exact figure once there is a file.
FLOAT_BYTES, HALF_BYTES = 4, 2
SLACK_SHARE, SLACK_BYTES = 1.05, 2 * 2**20  # alignment, indices, positions, other tensors of small graphs
LIVE_RESIDUALS = 4  # the stream itself, the summand, its norm, the next layer's input
LIVE_QUERIES, LIVE_KEYS = 4, 3
LIVE_HIDDEN = 3  # gate, up, and their product
LIVE_EXPERT_OUTPUTS = 2  # for each used expert: its output, and the weighted output
LIVE_INDEX_MASKS = 2  # for each compressed row: the mask of the best rows, and its sum with the attention mask
LIVE_HEAD_SCORES = 2.1  # for each of `index_scores`: it, and what is positive of it
LIVE_INDEX_SCORES = 2.25  # for each cell: its score, the score in order, and the mask of the best
LIVE_ROUTES = 8  # for each expert: logits, weights, order, indices
LIVE_INNER = 3  # for a recurrent layer: projected, convolved, and the output of the scan
LIVE_STATES = 3  # the stored state, the state read for this batch, and the state to store
LIVE_LAYER_INPUTS = 4  # of per-layer embeddings, besides themselves: projected, normed, added and permuted
# parallel residual streams that are alive together, of several
RESIDUAL_STREAMS = {"gemma3n": 4, **dict.fromkeys(("deepseek4", "glm5-next", "hy_v4", "qwen4exp"), 3)}
PIPELINE_COPIES = 4  # copies of tensors sent between GPUs, for pipeline parallelism (GGML_SCHED_MAX_COPIES)


@lru_cache(maxsize=256)  # as of `list_cache_bytes`
def compute_bytes(shape: ModelShape, sizes: CacheParams, *, max_outputs: int | None, device: str = "CPU") -> int:
    """Return the bytes of the compute buffers of the device, by name, that computes layers and the output.

    max_outputs  rows of one decode that are outputs; None: the device computes layers only
    """
    num_bytes = 0
    for part in (shape, *shape.list_upper()):
        stages = (
            attention_bytes(part, sizes) + converted_cache_bytes(part, sizes, device),
            feed_forward_bytes(part, sizes),
            recurrence_bytes(part, sizes),
            0 if max_outputs is None else output_bytes(part, sizes, max_outputs=max_outputs),
            LIVE_LAYER_INPUTS * layer_inputs_bytes(part, sizes),
        )
        streams = RESIDUAL_STREAMS.get(part.architecture, 1) * part.n_embd * LIVE_RESIDUALS
        residual = sizes.n_batch * streams * FLOAT_BYTES + layer_inputs_bytes(part, sizes)
        num_bytes += add_slack(mask_bytes(part, sizes) + residual + max(stages))
    return num_bytes


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
    """Return the bytes of the attention masks, [rows, cells], and of scores, as large, by which an indexer chooses.

    Each size of sliding window has its own.
    """
    if not any(shape.kv_heads):
        return 0
    windows = {window for window in shape.windows if window is not None}
    whole = sizes.num_cells if None in shape.windows else 0
    cells = whole + sum(sizes.window_cells(window) for window in windows)
    if shape.compressions:  # one of single tokens, and one of each kind of compressed rows
        rows = {shape.compressions[layer]: compressed_cells(shape, layer, sizes) for layer in range(shape.n_layer)}
        cells = window_cells_of(shape, sizes) + sum(rows.values())
    scores = max(LIVE_INDEX_SCORES, LIVE_HEAD_SCORES * shape.index_scores) if shape.index_dim else 0.0
    return int(sizes.n_batch * cells * ((HALF_BYTES if sizes.flash_attn else FLOAT_BYTES) + scores * FLOAT_BYTES))


def window_cells_of(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the cells of single tokens of one stream of a model whose layers all have the same window, or none."""
    window = shape.windows[0]
    return sizes.num_cells if window is None else sizes.window_cells(window)


def compressed_attention_bytes(shape: ModelShape, sizes: CacheParams) -> int:
    """Return the bytes of attention to single tokens and compressed rows together; 0 for models without compression.

    The keys and masks of both are concatenated. An indexer scores the rows, and masks all but the best.
    """
    if not shape.compressions:
        return 0
    rows = max(compressed_cells(shape, layer, sizes) for layer in range(shape.n_layer))
    cells = window_cells_of(shape, sizes) + rows
    keys = cells * sizes.num_sequences * row_bytes(sizes.key_type, shape.key_dim)
    value_bytes = HALF_BYTES if sizes.flash_attn else FLOAT_BYTES
    masks = sizes.n_batch * (cells + LIVE_INDEX_MASKS * rows) * value_bytes
    scored = sizes.n_batch * rows * FLOAT_BYTES
    if not sizes.flash_attn:
        scored += scores_bytes(n_batch=sizes.n_batch, num_cells=cells, n_head=shape.n_head)
    return keys + masks + scored


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

    An EAGLE head has its logits twice, because they are mapped to the target's vocabulary, unless upper layers give
    them.
    """
    is_mapped = shape.architecture == EAGLE and not shape.upper_vocab
    logits = logits_bytes(max_outputs, shape.n_vocab) * (2 if is_mapped else 1)
    return logits + sizes.n_batch * shape.n_expert_used * shape.n_embd * FLOAT_BYTES


# ---- what a plan may leave open
def settle_plan(
    plan: Plan,
    target: ModelShape,
    draft: ModelShape | None,
    free_memory: Sequence[FreeMemory],
    *,
    is_quantized: bool,
    has_kernel: bool,
) -> Plan:
    """Return the plan with `unified` and `--flash-attn auto` decided: one cache for all slots if that allows trees.

    With sliding windows, llama.cpp lets a slot reuse cells outside another slot's window, although that slot may return
    to them: with such a target or draft model, each slot gets a cache of its own.

    is_quantized  the target's weights have fewer than 16 bits
    has_kernel    our own attention kernel (backend/cpu_attention.py) runs on this processor
    """
    on_gpu = plan.gpu_layers != 0 and bool(choose_gpus(free_memory, device=plan.device, split=plan.split))
    unified = plan.unified
    if unified is None:
        models = [target, draft] if draft is not None and plan.draft_kind == "draft_model" else [target]
        may_branch = not any(map(branch_problem, models))
        unified = shares_cache(plan.num_slots, on_gpu=on_gpu and may_branch, is_quantized=is_quantized and not on_gpu)
    num_cells = plan.n_ctx * (plan.num_slots if unified else 1)
    flash_attn = resolve_flash_attn(
        plan.flash_attn,
        on_gpu=on_gpu,
        kv_type=plan.kv_type,
        scores_bytes=scores_bytes(n_batch=plan.n_batch, num_cells=num_cells, n_head=target.n_head),
        has_kernel=has_kernel and has_kernel_widths(target),
    )
    return replace(plan, unified=unified, flash_attn=flash_attn)


def has_kernel_widths(shape: ModelShape) -> bool:
    """Return whether our attention kernel for processors handles the model's heads.

    It does not handle values that are a part of the keys (MLA); llama.cpp computes those.
    """
    return shape.value_dim > 0 and max(shape.key_dim, shape.value_dim) <= MAX_KERNEL_WIDTH


def resolve_flash_attn(setting: str, *, on_gpu: bool, kv_type: str, scores_bytes: int, has_kernel: bool) -> str:
    """Return `on` or `off` if there is a reason for it; else the setting as given.

    has_kernel  our own kernel (backend/cpu_attention.py) runs this model on this processor

    llama.cpp's own kernel for processors reads all cells once for each row, so verifying several rows after a long
    context takes several times as long as without flash attention (docs/measured.md). So it is on only where the memory
    is needed: without flash attention the scores of a whole batch are stored, and a quantized cache cannot be read.
    """
    if setting != "auto" or on_gpu or kv_type != "f16":
        return setting
    if has_kernel:
        return "on"
    return "off" if scores_bytes <= MAX_SCORES_BYTES else "auto"
