"""What a plan asks of llama.cpp: for each model a context of these sizes. The one place where a plan becomes sizes.

assembly.py makes the contexts from it, memory.py weighs them, so that what is planned is what is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from eaglelocal.core.plan import MAX_SLOTS, Plan
from eaglelocal.gguf.footprint import CacheSizes
from eaglelocal.gguf.shape import BLOCK, MTP, Shape

# drafted rows for which states are kept, the most that fit: each takes as much memory as the state itself
ROLLBACKS = (8, 4, 2)
PLANNED_ROLLBACK, PLANNED_LOOKUP_ROLLBACK = 4, 2  # what a plan counts on
PLANNED_BLOCK_ROLLBACK = 8  # whose tokens come together
HEAD_ROWS, MTP_ROWS, ROWS_A_SLOT = 128, 64, 32  # of one call; what waits for a draft is less, and prompts go in parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model and its context.

    max_outputs  rows of one decode whose logits may be wanted
    num_taps     layers whose input is copied for every row, for a head
    gpu_layers   None: all
    n_cpu_moe    layers whose experts stay in main memory
    """

    shape: Shape
    sizes: CacheSizes
    max_outputs: int
    num_taps: int = 0
    gpu_layers: int | None = None
    n_cpu_moe: int = 0
    of_draft: bool = False


def jobs_of(plan: Plan, target: Shape, draft: Shape | None = None) -> tuple[Job, ...]:
    """The target's, and the draft's where the plan has one."""
    first = target_job(plan, target, num_taps=draft.num_taps if draft is not None else 0)
    return (first,) if draft is None else (first, draft_job(plan, draft))


def target_job(plan: Plan, target: Shape, *, num_taps: int = 0) -> Job:
    sizes = CacheSizes(
        n_ctx=plan.n_ctx,
        num_slots=plan.num_slots,
        num_branches=num_branches(plan, target),
        unified=plan.is_unified,
        n_batch=plan.n_batch,
        kv_type=plan.kv_type,
        flash_attention=plan.flash_attention != "off",
        num_snapshots=num_snapshots(plan, target),
        whole_windows=plan.whole_windows is not False,
    )
    max_outputs = min(plan.num_slots * (1 + plan.max_draft), plan.n_batch)
    return Job(
        shape=target,
        sizes=sizes,
        max_outputs=max_outputs,
        num_taps=num_taps,
        gpu_layers=plan.gpu_layers,
        n_cpu_moe=plan.n_cpu_moe,
    )


def draft_job(plan: Plan, draft: Shape) -> Job:
    """Every row of a call is an output of a head; a draft model is asked for one a slot.

    Outputs take room for logits of the whole vocabulary, so a head has fewer rows a call than its target, and an MTP
    layer or a block head, whose vocabulary is mostly not cut, fewer still.

    A head's slots wait with unequal numbers of pairs, and its one layer attends cheaply: one cache for all. Windows are
    kept whole: a draft is small, and its cache must be cut wherever the target's is. What reads the target's cache has
    it as the target has, and a row a slot. A head that fills blocks begins anew wherever it is cut, so its windows are
    all that is kept; and the end of a block may stand beyond the context.
    """
    fills_blocks = draft.architecture == BLOCK
    n_batch = head_rows(plan, draft) if draft.is_head else plan.n_batch
    sizes = CacheSizes(
        n_ctx=plan.n_ctx + (draft.at_once if fills_blocks else 0),
        num_slots=plan.num_slots,
        unified=plan.is_unified or (draft.is_head and not draft.reads_cache),
        n_batch=n_batch,
        kv_type=plan.kv_type,
        flash_attention=plan.flash_attention != "off",
        whole_windows=not fills_blocks,
    )
    max_outputs = n_batch if draft.is_head else plan.num_slots
    return Job(shape=draft, sizes=sizes, max_outputs=max_outputs, gpu_layers=plan.layers_of_draft, of_draft=True)


def head_rows(plan: Plan, head: Shape) -> int:
    """Of one call."""
    if head.reads_cache:
        return min(plan.n_batch, MAX_SLOTS)
    least = MTP_ROWS if head.architecture in (MTP, BLOCK) else HEAD_ROWS
    return min(plan.n_batch, max(least, ROWS_A_SLOT * plan.num_slots))


def num_branches(plan: Plan, target: Shape) -> int:
    """Of each slot's trees; recurrent state and windows have none."""
    return 0 if target.has_state or target.has_windows else plan.num_branches


def num_snapshots(plan: Plan, target: Shape) -> int:
    """Earlier states, one for each drafted row that may be taken back."""
    if not (target.has_state and target.keeps_snapshots):
        return 0
    return min(plan.max_draft, rollback_of(plan.draft_kind) if plan.rollback is None else plan.rollback)


def rollback_of(draft_kind: str) -> int:
    """Drafted rows that a plan counts on being able to take back; where more fit, more are."""
    planned = {"ngram": PLANNED_LOOKUP_ROLLBACK, BLOCK: PLANNED_BLOCK_ROLLBACK}
    return planned.get(draft_kind, PLANNED_ROLLBACK)
