"""Build the options of the planner: a target in one quantization, with the drafts it could use and those it could not.

An option comes from a catalog entry (approximate) or a file's header (exact); the search treats both alike. `drafts`
holds only what the engine can run, `unusable` the others, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import BLOCKS, DRAFT_MODEL, EAGLE, MTP, NGRAM, DraftEntry
from eaglelocal.catalog.estimated_shapes import (
    estimate_draft_shape,
    estimate_mtp_shape,
    estimate_target_shape,
    find_loaded_type,
)
from eaglelocal.catalog.target_entries import EntryShape, Quantization, TargetEntry
from eaglelocal.catalog.unsupported_drafts import find_unsupported_reason
from eaglelocal.gguf.architectures import (
    BLOCK,
    HYBRID_ARCHITECTURES,
    LAYER_INPUT_ARCHITECTURES,
    RECURRENT_ARCHITECTURES,
    ROLLBACK_ARCHITECTURES,
)
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_shape import ModelShape, count_parameters, read_draft_shape, read_shape
from eaglelocal.gguf.projector import Projector
from eaglelocal.hub.repo_builds import read_quantization
from eaglelocal.planning.model_age import Age, age_of, age_of_file
from eaglelocal.planning.predicted_acceptance import HEAD_DEFAULT, MODEL_DEFAULT, MTP_DEFAULT, PredictedAcceptance
from eaglelocal.planning.quality import NATIVE, effective_b
from eaglelocal.planning.speed import SpeedModel, arithmetic_of

DEFAULTS = {
    EAGLE: HEAD_DEFAULT,
    BLOCK: HEAD_DEFAULT,
    MTP: MTP_DEFAULT,
    DRAFT_MODEL: MODEL_DEFAULT,
}  # acceptance probability of drafts without reports


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOption:
    """A way to draft.

    shape       of the draft; None: it needs no model
    acceptance  None: unknown, so no gain is predicted
    """

    id: str
    kind: str  # none, ngram, draft_model, mtp, or the architecture of a head
    shape: ModelShape | None = None
    acceptance: PredictedAcceptance | None = None
    import_from: str = ""  # the repository of a checkpoint that must be converted first
    notes: tuple[str, ...] = ()
    is_here: bool = False  # on this disk
    needs_naming: bool = False  # `--draft auto` chooses another, or none

    @property
    def is_at_hand(self) -> bool:
        """Return whether nothing has to be fetched for it."""
        return self.shape is None or self.is_here


@dataclass(frozen=True, slots=True)
class UnusableDraft:
    """A draft that cannot be used for a target, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOption:
    """A target in one quantization. `reference` is what a person types; `target` and `quant` are for display."""

    target: str
    quant: str
    reference: str
    model: SpeedModel
    quality_b: float  # effective parameters, in 10^9
    age: Age  # which weighs them
    drafts: tuple[DraftOption, ...]  # the preferred first; one at least needs no model
    unusable: tuple[UnusableDraft, ...] = ()
    projector: Projector | None = None  # for images
    max_context: int = 0  # tokens it was trained for; 0: unknown
    is_here: bool = False  # on this disk
    is_unseen: bool = False  # the file's size was computed, not seen
    notes: tuple[str, ...] = ()
    header: Header | None = field(default=None, compare=False, repr=False)  # of its file, if that is on disk

    @property
    def shape(self) -> ModelShape:
        return self.model.shape

    @property
    def answers_b(self) -> float:
        """Return the effective parameters, in 10^9, of a model of the usual age that answers as well."""
        return self.quality_b * self.age.worth


# ---- from the catalog
def make_catalog_options(target: TargetEntry, catalog: Catalog, *, quant: str | None = None) -> Iterator[ModelOption]:
    """Yield an option for each quantization of the target, or only for `quant`."""
    for quantization in target.quantizations.values():
        if quant is None or quantization.name.lower() == quant.lower():
            yield make_catalog_option(target, quantization, catalog)


def make_catalog_option(target: TargetEntry, quantization: Quantization, catalog: Catalog) -> ModelOption:
    outline = target.outline
    shape = estimate_target_shape(outline, quantization.name, quantization.num_bytes)
    computed = NATIVE if NATIVE in target.quantizations else quantization.name  # experts keep their native type
    drafts, unusable = find_draft_options(target, shape, catalog)
    return ModelOption(
        target=target.id,
        quant=quantization.name,
        reference=f"{target.id}:{quantization.name}",
        model=SpeedModel(
            shape=shape,
            parameters=outline.parameters_b * 1e9,
            active_parameters=outline.active_parameters_b * 1e9,
            arithmetic=arithmetic_of(computed, 8.0 * quantization.num_bytes / (outline.parameters_b * 1e9)),
        ),
        quality_b=effective_b(
            parameters_b=outline.parameters_b,
            active_b=outline.active_parameters_b,
            quant=quantization.name,
            bits_per_weight=8.0 * quantization.num_bytes / (outline.parameters_b * 1e9),
            quants=catalog.quants,
        ),
        age=age_of(target, catalog),
        drafts=drafts,
        unusable=unusable,
        max_context=outline.max_context,
        is_unseen=quantization.confidence != "page",
        notes=("the size of this file is computed, not seen",) if quantization.confidence != "page" else (),
    )


def find_draft_options(
    target: TargetEntry, shape: ModelShape, catalog: Catalog
) -> tuple[tuple[DraftOption, ...], tuple[UnusableDraft, ...]]:
    """Return the usable drafts of a target, model-free ones last, and the unusable ones."""
    drafts: list[DraftOption] = []
    unusable: list[UnusableDraft] = []
    for draft in catalog.drafts_for(target):
        if draft.kind == NGRAM:
            continue
        problem = _problem(draft, target.outline)
        if problem:
            unusable.append(UnusableDraft(draft.id, problem))
        else:
            drafts.append(_draft_option(draft, target.outline, shape))
    return (*drafts, *lookup_options(target.outline.architecture, has_state=bool(target.outline.state_bytes))), tuple(
        unusable
    )


def lookup_options(architecture: str, *, has_state: bool) -> tuple[DraftOption, ...]:
    """Return the model-free ways to draft: a lookup, and for a target with recurrent state also none.

    The states that a lookup's rollback needs may be worth more as free memory.
    """
    draft = lookup_option(architecture, has_state=has_state)
    return (draft, DraftOption(id="none", kind="none")) if has_state and draft.kind == NGRAM else (draft,)


def lookup_option(architecture: str, *, has_state: bool) -> DraftOption:
    """Return the model-free way to draft: an n-gram lookup; none if rejected tokens cannot be rolled back."""
    keeps_state = has_state or architecture in HYBRID_ARCHITECTURES | RECURRENT_ARCHITECTURES
    if keeps_state and architecture not in ROLLBACK_ARCHITECTURES:
        return DraftOption(id="none", kind="none")
    return DraftOption(id="ngram", kind=NGRAM, notes=("lookup in the text so far: pays where a text repeats itself",))


def _problem(draft: DraftEntry, target: EntryShape) -> str:
    """Return the reason why this draft cannot be planned for this target; empty if it can."""
    if found := find_unsupported_reason(draft, target):
        return found
    is_known = draft.is_in_target or estimate_draft_shape(draft, target) is not None
    how = " before it is fetched" if draft.kind in BLOCKS else "; `eaglelocal import` shows it"
    return "" if is_known else f"its size is not known{how}"


def _draft_option(draft: DraftEntry, target: EntryShape, shape: ModelShape) -> DraftOption:
    kind = BLOCK if draft.kind in BLOCKS else draft.kind
    default = DEFAULTS[kind]
    acceptance = PredictedAcceptance.of(draft.acceptance_lengths, default=default)
    notes = []
    if not acceptance.is_reported:
        notes.append(f"nobody reported its acceptance: {default:.0%} a token assumed")
    if draft.needs_import:
        notes.append(f"{draft.id} must be imported; planned in {find_loaded_type(draft)}")
    return DraftOption(
        id=draft.id,
        kind=kind,
        shape=estimate_mtp_shape(target, shape) if draft.is_in_target else estimate_draft_shape(draft, target),
        acceptance=acceptance,
        import_from=draft.repo or "" if draft.needs_import else "",
        notes=tuple(notes),
    )


# ---- from files
@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOnDisk:
    """A target that is on disk, or can be written to it, with the exact sizes of its header.

    quant        as its name or header calls it, else the type of most of its bytes
    active       number of parameters that one token is multiplied with
    draft        the head or small model that belongs to it
    """

    reference: str
    label: str
    quant: str
    shape: ModelShape
    parameters: float
    active: float
    draft: ModelShape | None = None
    draft_label: str = ""
    acceptance: PredictedAcceptance | None = None

    @property
    def bits_per_weight(self) -> float:
        return 8.0 * self.shape.weights_bytes / max(self.parameters, 1.0)


@dataclass(frozen=True, slots=True)
class DraftOnDisk:
    """The head or small model on disk that belongs to a target. `acceptance` None: nothing was reported.

    kind  mtp if the MTP layer of that file is meant
    """

    label: str
    header: Header
    acceptance: PredictedAcceptance | None = None
    kind: str = ""

    @property
    def shape(self) -> ModelShape:
        """Return the draft's shape. Raises ModelFileError on senseless keys."""
        return read_draft_shape(self.header, self.kind)

    @property
    def as_option(self) -> DraftOption:
        """Return the way to draft with it. Raises ModelFileError on senseless keys."""
        return draft_option_on_disk(self.label, self.shape, self.acceptance)


def make_file_option(
    header: Header, *, reference: str, label: str, catalog: Catalog, draft: DraftOnDisk | None = None
) -> ModelOption:
    """Return the option of a file, with its exact sizes. Raises ModelFileError on senseless keys."""
    shape = read_shape(header)
    parameters, active = count_parameters(header, shape)
    found = TargetOnDisk(
        reference=reference,
        label=label,
        quant=read_quantization(header) or header.main_type,
        shape=shape,
        parameters=parameters,
        active=active,
        draft=draft.shape if draft else None,
        draft_label=draft.label if draft else "",
        acceptance=draft.acceptance if draft else None,
    )
    return replace(make_disk_option(found, catalog), age=age_of_file(header, catalog), header=header)


def make_disk_option(found: TargetOnDisk, catalog: Catalog) -> ModelOption:
    return ModelOption(
        target=found.label,
        quant=found.quant,
        reference=found.reference,
        model=SpeedModel(
            shape=found.shape,
            parameters=found.parameters,
            active_parameters=found.active,
            arithmetic=arithmetic_of(found.quant, found.bits_per_weight),
        ),
        quality_b=effective_b(
            parameters_b=found.parameters / 1e9,
            active_b=found.active / 1e9,
            quant=found.quant,
            bits_per_weight=found.bits_per_weight,
            quants=catalog.quants,
        ),
        age=Age(),
        drafts=_disk_drafts(found),
        max_context=found.shape.max_context,
        is_here=True,
    )


def _disk_drafts(found: TargetOnDisk) -> tuple[DraftOption, ...]:
    shape, draft = found.shape, found.draft
    without = lookup_options(shape.architecture, has_state=shape.has_state)
    if draft is None or without[0].kind == "none":
        return without
    if draft.architecture in (EAGLE, BLOCK) and shape.architecture not in LAYER_INPUT_ARCHITECTURES:
        return without
    return (draft_option_on_disk(found.draft_label, draft, found.acceptance), *without)


def draft_option_on_disk(label: str, draft: ModelShape, acceptance: PredictedAcceptance | None) -> DraftOption:
    """Return the way to draft with a file on disk; an unreported acceptance is the default of its kind."""
    kind = draft.architecture if draft.is_head else DRAFT_MODEL
    return DraftOption(
        id=label,
        kind=kind,
        shape=draft,
        acceptance=acceptance or PredictedAcceptance.of((), default=DEFAULTS[kind]),
        is_here=True,
    )
