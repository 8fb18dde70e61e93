"""Read the headers of a run's models, and check that the draft fits the target."""

from __future__ import annotations

from eaglelocal.core.draft import LOOKUPS
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError
from eaglelocal.gguf.draft_pairing import DraftInfo, check_rolls_back, read_draft, read_model
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_shape import ModelShape, read_draft_shape, read_shape
from eaglelocal.gguf.reader import read_header

DRAFT_KINDS = ("none", "ngram", "eagle3", "dflash", "mtp", "draft_model")


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """The header of a model file, and the properties of the model that it describes."""

    header: Header
    info: DraftInfo
    shape: ModelShape


def read_models(plan: Plan) -> tuple[ModelHeader, ...]:
    """Return the header of the target, and of the draft if it has a file, checked against the target.

    Raises UsageError, ModelFileError or IncompatibleError.
    """
    header = read_header(plan.target)
    info = read_model(header)
    target = ModelHeader(header, info, read_shape(header))
    if plan.draft_kind not in DRAFT_KINDS:
        raise UsageError(f"unknown draft kind {plan.draft_kind!r}", hint=f"one of: {', '.join(DRAFT_KINDS)}")
    if unknown := set(plan.lookups).difference(LOOKUPS):
        raise UsageError(f"unknown drafter {unknown.pop()!r}", hint=f"one of: {', '.join(LOOKUPS)}")
    if not plan.speculates:
        return (target,)
    check_rolls_back(info)
    if plan.draft_kind == "ngram":
        return (target,)
    if plan.draft is None:
        raise UsageError(f"a draft of kind {plan.draft_kind} needs a file", hint="--draft auto")
    own = header if plan.draft == plan.target else read_header(plan.draft)
    draft = read_draft(own, target_header=header, target=info, kind=plan.draft_kind)
    return target, ModelHeader(own, draft, read_draft_shape(own, plan.draft_kind))
