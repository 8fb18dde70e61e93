"""A wish -> a plan: which files the engine should load, and with which figures.

Refuses here, before any process is started, whatever would fail or abort later. Files other than the
embedded model are never fetched; `demo@SIZE` is written to the cache on first use.
"""

from __future__ import annotations

from eaglelocal.core.plan import MAX_DRAFT_TOKENS, MAX_SLOTS, Plan
from eaglelocal.errors import UsageError
from eaglelocal.hub.drafts import FoundDraft, find_draft
from eaglelocal.hub.inflate import Progress
from eaglelocal.hub.targets import FoundTarget, find_target
from eaglelocal.hub.wish import Wish

DEFAULT_DRAFT_TOKENS = 4  # until a policy decides
DEFAULT_CTX = 4096


def resolve(wish: Wish, *, on_progress: Progress) -> Plan:
    """Raises UsageError, ModelFileError, IncompatibleError or ResourceError."""
    num_draft_tokens = draft_length(wish.spec)
    _check_slots(wish.parallel)
    target = find_target(wish.target, on_progress=on_progress)
    n_ctx = context_size(wish.ctx, target)
    draft = find_draft(wish.draft, target) if num_draft_tokens else FoundDraft(reason="switched off")
    return Plan(
        target=target.path,
        target_label=target.label,
        draft_kind=draft.kind,
        draft=draft.path,
        draft_label=draft.label,
        draft_reason=draft.reason,
        num_draft_tokens=num_draft_tokens if draft.path else 0,
        n_ctx=n_ctx,
        num_slots=wish.parallel,
        threads=wish.threads,
        gpu_layers=wish.gpu_layers,
        kv_type=wish.kv_type,
        flash_attention=wish.flash_attn,
        device=wish.device,
        split=wish.split,
    )


def draft_length(spec: str | int) -> int:
    """`auto`, `off` or 0 to 16 -> the number of draft tokens; 0 is off."""
    if spec == "off":
        return 0
    if spec == "auto":
        return DEFAULT_DRAFT_TOKENS
    if isinstance(spec, int) and 0 <= spec <= MAX_DRAFT_TOKENS:
        return spec
    raise UsageError(f"--spec must be auto, off or a number from 0 to {MAX_DRAFT_TOKENS}, not {spec!r}")


def context_size(ctx: int | None, target: FoundTarget) -> int:
    """Positions per slot: as asked, else what the model was trained for, at most DEFAULT_CTX."""
    trained = target.info.context_length or DEFAULT_CTX
    if ctx is None:
        return min(trained, DEFAULT_CTX)
    if not 1 <= ctx <= trained:
        message = f"--ctx must lie between 1 and {trained}, which {target.label} was trained for, not {ctx}"
        raise UsageError(message, hint=f"`--ctx {trained}`")
    return ctx


def _check_slots(num_slots: int) -> None:
    if not 1 <= num_slots <= MAX_SLOTS:
        raise UsageError(f"--parallel must lie between 1 and {MAX_SLOTS}, not {num_slots}")
