"""Read the headers of a run's models, and check that the draft fits the target."""

from __future__ import annotations

from dataclasses import dataclass

from eaglelocal.core.plan import Plan
from eaglelocal.errors import UsageError
from eaglelocal.gguf.draft_pairing import DraftInfo, check_rolls_back, read_draft, read_model
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_shape import ModelShape, read_draft_shape, read_shape
from eaglelocal.gguf.reader import read_header

DRAFT_KINDS = ("none", "ngram", "eagle3", "dflash", "mtp", "draft_model")


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """The header of a model file, and what it says about the model."""

    header: Header
    info: DraftInfo
    shape: ModelShape


def read_models(plan: Plan) -> tuple[ModelHeader, ...]:
    """Return the header of the target, and of the draft if there is one, checked against the target."""
    header = read_header(plan.target)
    target = ModelHeader(header, read_model(header), read_shape(header))
    draft = read_draft_model(plan, target)
    return (target,) if draft is None else (target, draft)


def read_draft_model(plan: Plan, target: ModelHeader) -> ModelHeader | None:
    """Return the draft's header, checked against the target; None without a draft file. Raises UsageError."""
    if plan.draft_kind not in DRAFT_KINDS:
        raise UsageError(f"unknown draft kind {plan.draft_kind!r}", hint=f"one of: {', '.join(DRAFT_KINDS)}")
    if not plan.speculates:
        return None
    info = read_model(target.header)
    check_rolls_back(info)
    if plan.draft_kind == "ngram":
        return None
    if plan.draft is None:
        raise UsageError(f"a draft of kind {plan.draft_kind} needs a file", hint="--draft FILE, or `--draft none`")
    header = target.header if plan.draft == plan.target else read_header(plan.draft)
    draft = read_draft(header, target_header=target.header, target=info, kind=plan.draft_kind)
    return ModelHeader(header, draft, read_draft_shape(header, plan.draft_kind))
