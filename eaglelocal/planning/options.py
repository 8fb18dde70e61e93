"""Build the options of the planner: a target in one quantization, with its usable and unusable drafts.

An option comes from a catalog entry (approximate) or a file's header (exact); the search treats both alike. `drafts`
holds only what the engine can run, `unusable` the others, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import (
    BLOCKS,
    DRAFT_MODEL,
    EAGLE,
    MTP,
    NGRAM,
    DraftEntry,
    find_better_known,
    find_unsupported_reason,
)
from eaglelocal.catalog.estimated_shapes import (
    estimate_draft_shape,
    estimate_mtp_shape,
    estimate_target_shape,
    find_loaded_type,
)
from eaglelocal.catalog.target_entries import Quantization, TargetEntry
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import LOOKUP, NONE
from eaglelocal.gguf.architectures import (
    BLOCK,
    HYBRID_ARCHITECTURES,
    LAYER_INPUT_ARCHITECTURES,
    RECURRENT_ARCHITECTURES,
    ROLLBACK_ARCHITECTURES,
)
from eaglelocal.gguf.ggml_types import read_quantization
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import ModelShape, count_parameters, describe_shape
from eaglelocal.gguf.projector import Projector
from eaglelocal.planning.quality import (
    HEAD_DEFAULT,
    MODEL_DEFAULT,
    MTP_DEFAULT,
    NATIVE,
    Age,
    PredictedAcceptance,
    effective_b,
    find_age,
    predict_acceptance,
)
from eaglelocal.planning.speed import SpeedModel, choose_arithmetic

# acceptance probability of drafts without reports
DEFAULTS = {EAGLE: HEAD_DEFAULT, BLOCK: HEAD_DEFAULT, MTP: MTP_DEFAULT, DRAFT_MODEL: MODEL_DEFAULT}


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
    better_known: str = ""  # another draft of its kind, whose acceptance is reported

    @property
    def is_at_hand(self) -> bool:
        """Return whether it can be used without a download."""
        return self.shape is None or self.is_here


NO_DRAFT_OPTION = DraftOption(id=NONE, kind=NONE)


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
    adapters: tuple[TensorInfo, ...] = ()  # the tensors of LoRA adapters
    max_context: int = 0  # tokens it was trained for; 0: unknown
    is_here: bool = False  # on this disk
    is_unseen: bool = False  # the file's size was computed, not seen
    stands_for: str = ""  # the quantization that was asked for, if the catalog does not list it
    by_name: str = ""  # why the catalog offers it by name only; empty: it does not
    notes: tuple[str, ...] = ()
    header: Header | None = field(default=None, compare=False, repr=False)  # of its file, if that is on disk

    @property
    def shape(self) -> ModelShape:
        return self.model.shape

    @property
    def answers_b(self) -> float:
        """Return the effective parameters, in 10^9, of an equally good model of the usual age."""
        return self.quality_b * self.age.worth


# ---- from both
def bits_per_weight(num_bytes: int, parameters: float) -> float:
    return 8.0 * num_bytes / max(parameters, 1.0)


def list_lookup_options(architecture: str, *, has_state: bool) -> tuple[DraftOption, ...]:
    """Return the model-free ways to draft: an n-gram lookup, or none if rejected tokens cannot be rolled back.

    A target with recurrent state may also draft nothing: the states that a rollback needs may be worth more as free
    memory.
    """
    keeps_state = has_state or architecture in HYBRID_ARCHITECTURES | RECURRENT_ARCHITECTURES
    if keeps_state and architecture not in ROLLBACK_ARCHITECTURES:
        return (NO_DRAFT_OPTION,)
    notes = (f"{LOOKUP}: pays where a text repeats itself",)
    lookup = DraftOption(id=NGRAM, kind=NGRAM, notes=notes)
    return (lookup, NO_DRAFT_OPTION) if has_state else (lookup,)


# ---- from the catalog
def make_catalog_options(target: TargetEntry, catalog: Catalog, *, quant: str | None = None) -> Iterator[ModelOption]:
    """Yield an option for each quantization of the target, or only for `quant`."""
    for quantization in target.quantizations.values():
        if quant is None or quantization.name.lower() == quant.lower():
            yield _make_catalog_option(target, quantization, catalog)


def _make_catalog_option(target: TargetEntry, quantization: Quantization, catalog: Catalog) -> ModelOption:
    outline, quant = target.outline, quantization.name
    parameters_b, active_b = outline.parameters_b, outline.active_parameters_b
    shape = estimate_target_shape(outline, quant, quantization.num_bytes)
    bits = bits_per_weight(shape.weights_bytes, parameters_b * 1e9)
    drafts, unusable = find_draft_options(target, shape, catalog)
    is_unseen = quantization.confidence != "page"
    return ModelOption(
        target=target.id,
        quant=quant,
        reference=f"{target.id}:{quant}",
        model=SpeedModel(
            shape=shape,
            parameters=parameters_b * 1e9,
            active_parameters=active_b * 1e9,
            # experts keep their native type
            arithmetic=choose_arithmetic(NATIVE if NATIVE in target.quantizations else quant, bits),
        ),
        quality_b=effective_b(
            parameters_b=parameters_b, active_b=active_b, quant=quant, bits_per_weight=bits, quants=catalog.quants
        ),
        age=Age(target.released),
        drafts=drafts,
        unusable=unusable,
        max_context=shape.max_context,
        is_unseen=is_unseen,
        by_name=target.by_name,
        notes=("the size of this file is computed, not seen",) if is_unseen else (),
    )


def find_draft_options(
    target: TargetEntry, shape: ModelShape, catalog: Catalog
) -> tuple[tuple[DraftOption, ...], tuple[UnusableDraft, ...]]:
    """Return the usable drafts of a target, model-free ones last, and the unusable ones."""
    drafts: list[DraftOption] = []
    unusable: list[UnusableDraft] = []
    outline, known = target.outline, catalog.drafts_for(target)
    for draft in known:
        if draft.kind == NGRAM:
            continue
        own = estimate_mtp_shape(outline, shape) if draft.is_in_target else estimate_draft_shape(draft, outline)
        problem = find_unsupported_reason(draft, outline)
        if not problem and own is None:
            problem = "its size is not known before it is fetched"
        if problem:
            unusable.append(UnusableDraft(draft.id, problem))
        else:
            drafts.append(_draft_option(draft, own, catalog, better_known=find_better_known(draft, known)))
    lookups = list_lookup_options(outline.architecture, has_state=bool(outline.state_bytes))
    return (*drafts, *lookups), tuple(unusable)


def _draft_option(draft: DraftEntry, shape: ModelShape | None, catalog: Catalog, *, better_known: str) -> DraftOption:
    kind = BLOCK if draft.kind in BLOCKS else draft.kind
    acceptance, note = predict_acceptance(draft, catalog.drafts.values(), DEFAULTS[kind])
    notes = [note] if note else []
    if draft.has_computed_size:
        notes.append(f"the size of {draft.id} is computed from its target's shape, not seen")
    if draft.needs_import:
        notes.append(f"{draft.id} must be imported; planned in {find_loaded_type(draft)}")
    return DraftOption(
        id=draft.id,
        kind=kind,
        shape=shape,
        acceptance=acceptance,
        import_from=draft.repo or "" if draft.needs_import else "",
        better_known=better_known,
        notes=tuple(notes),
    )


# ---- from files
def make_file_option(
    info: ModelInfo, *, reference: str, label: str, catalog: Catalog, draft: DraftOption | None = None
) -> ModelOption:
    """Return the option of a file, with its exact sizes. Raises ModelFileError on senseless keys.

    draft  the head or small model that belongs to it
    """
    header, shape = info.header, describe_shape(info)
    parameters, active = count_parameters(header, shape)
    quant = read_quantization(header) or header.main_type
    bits = bits_per_weight(shape.weights_bytes, parameters)
    drafts = list_lookup_options(shape.architecture, has_state=shape.has_state)
    has_inputs = shape.architecture in LAYER_INPUT_ARCHITECTURES
    if draft is not None and drafts[0].kind != NONE and (has_inputs or draft.kind not in (EAGLE, BLOCK)):
        drafts = (draft, *drafts)
    return ModelOption(
        target=label,
        quant=quant,
        reference=reference,
        model=SpeedModel(
            shape=shape,
            parameters=parameters,
            active_parameters=active,
            arithmetic=choose_arithmetic(quant, bits),
        ),
        quality_b=effective_b(
            parameters_b=parameters / 1e9,
            active_b=active / 1e9,
            quant=quant,
            bits_per_weight=bits,
            quants=catalog.quants,
        ),
        age=find_age(header, catalog),
        drafts=drafts,
        max_context=shape.max_context,
        is_here=True,
        header=header,
    )


def make_draft_option(label: str, shape: ModelShape, acceptance: PredictedAcceptance | None = None) -> DraftOption:
    """Return the way to draft with a file on disk; if no acceptance is reported, its kind's default is used."""
    kind = shape.architecture if shape.is_head else DRAFT_MODEL
    return DraftOption(
        id=label,
        kind=kind,
        shape=shape,
        acceptance=acceptance or PredictedAcceptance.from_reports((), default=DEFAULTS[kind]),
        is_here=True,
    )
