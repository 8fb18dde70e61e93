"""A wish -> a plan: which files the engine should load, and with which figures.

Refuses here, before any process is started, whatever would fail or abort later. Files other than the
embedded model are never fetched; `demo@SIZE` is written to the cache on first use.
"""

from __future__ import annotations

from eaglelocal.core.plan import MAX_SLOTS, Plan
from eaglelocal.core.request import Spec, parse_spec
from eaglelocal.core.split import parse_split
from eaglelocal.core.task import Task
from eaglelocal.errors import UsageError
from eaglelocal.gguf.pooling import task_of
from eaglelocal.hub.drafts import FoundDraft, find_draft, lightened
from eaglelocal.hub.inflate import Progress
from eaglelocal.hub.projectors import AUTO, NONE, find_projector
from eaglelocal.hub.targets import FoundTarget, find_target
from eaglelocal.hub.wish import Wish

DEFAULT_CTX = 4096


def resolve(wish: Wish, *, on_progress: Progress) -> Plan:
    """Raises UsageError, ModelFileError, IncompatibleError or ResourceError."""
    spec = parse_spec(wish.spec)
    _check_slots(wish.parallel)
    target = find_target("demo" if wish.target is None else wish.target, on_progress=on_progress)
    n_ctx = context_size(wish.ctx, target)
    split, shares = divided(wish.split)
    task = task_of(target.header)
    projector = find_projector(wish.mmproj, target)
    draft = _draft(wish, spec, target, task)
    draft = lightened(draft, wish.draft_type, on_progress=on_progress)
    return Plan(
        target=target.path,
        target_label=target.label,
        projector=projector.path,
        projector_is_asked=wish.mmproj not in (AUTO, NONE),
        projector_note=projector.note,
        draft_kind=draft.kind,
        draft=draft.path,
        draft_origin=draft.origin,
        draft_label=draft.label,
        draft_note=draft.note,
        draft_reason=draft.reason or wish.draft_reason,
        spec=spec,
        n_ctx=n_ctx,
        num_slots=wish.parallel,
        threads=wish.threads,
        gpu_layers=wish.gpu_layers,
        n_cpu_moe=wish.n_cpu_moe or 0,
        kv_type=wish.kv_type or "f16",
        flash_attention=wish.flash_attn,
        whole_windows=wish.whole_windows,
        device=wish.device,
        split=split,
        shares=shares,
        task=task,
    )


def _draft(wish: Wish, spec: Spec, target: FoundTarget, task: Task) -> FoundDraft:
    if task is not Task.TEXT:
        return FoundDraft(reason="a model that writes no text drafts nothing")
    return find_draft(wish.draft, target) if spec.max_draft else FoundDraft(reason="switched off")


def context_size(ctx: int | None, target: FoundTarget) -> int:
    """Positions per slot: as asked, else what the model was trained for, at most DEFAULT_CTX."""
    trained = target.info.context_length or DEFAULT_CTX
    if ctx is None:
        return min(trained, DEFAULT_CTX)
    if not 1 <= ctx <= trained:
        message = f"--ctx must lie between 1 and {trained}, which {target.label} was trained for, not {ctx}"
        raise UsageError(message, hint=f"`--ctx {trained}`")
    return ctx


def divided(split: str) -> tuple[str, tuple[float, ...]]:
    """Of the GPUs: the mode, and the share of each. Raises UsageError."""
    try:
        return parse_split(split)
    except ValueError as error:
        raise UsageError(f"--split must be {error}, not {split}") from None


def _check_slots(num_slots: int) -> None:
    if not 1 <= num_slots <= MAX_SLOTS:
        raise UsageError(f"--parallel must lie between 1 and {MAX_SLOTS}, not {num_slots}")
