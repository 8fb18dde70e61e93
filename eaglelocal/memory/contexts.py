"""Derive the sizes of each model's llama.cpp context from a plan; no other file does.

loading/context_parts.py makes the contexts from them and estimate.py estimates their memory, so that what is planned is
what is loaded.
"""

from __future__ import annotations

from eaglelocal.core.plan import MAX_SLOTS, Plan
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.architectures import BLOCK
from eaglelocal.gguf.model_shape import MTP, ModelShape
from eaglelocal.memory.cache_bytes import CacheParams

# numbers of drafted rows that can be rolled back, the first that fits; each costs one more recurrent state
ROLLBACKS = (8, 4, 2)
PLANNED_ROLLBACK, PLANNED_LOOKUP_ROLLBACK = 4, 2  # the number that a plan assumes
PLANNED_BLOCK_ROLLBACK = 8  # of a block head, which drafts its tokens together
TREE_CELLS = 256  # of drafted tokens after which more are drafted: at most 16 levels of 8 and some chains' ends
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
    """Return the context of the target, then that of the draft if there is one."""
    target_context = plan_target_context(plan, target, draft)
    return (target_context,) if draft is None else (target_context, plan_draft_context(plan, draft, target))


def plan_target_context(plan: Plan, target: ModelShape, draft: ModelShape | None = None) -> PlannedContext:
    """Return the context of the target.

    With compressed rows only the windows are kept, whatever the plan says: such a cache goes back to saved states,
    which hold the window, and can be cut nowhere else.
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
    longer by one block, because the last block may end beyond the text. One of DFlash's kind begins anew wherever it is
    cut, so it keeps its windows only. Where drafts may be trees, it holds one after the longest text.
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
        return min(plan.n_batch, MAX_SLOTS)
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
