"""Find the models that a run means, and read what the planner must know of them: the one door to their files.

A file is planned from its header, even if the catalog knows it; an embedded model that was not written yet from its
sketch; everything else from the catalog. An option's drafts are those that may be loaded for it: if the run names one,
only that. Reads headers, loads nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from eaglelocal import locations
from eaglelocal.backend.llama_library import BUILD
from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import MTP
from eaglelocal.catalog.reference import DerivedModel, EmbeddedModel, File, Profile, Repo, folder_name
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.run_options import AUTO, NONE, RunOptions, list_draft_words
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import EagleLocalError, IncompatibleError, UsageError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.ggml_types import normalize_quant
from eaglelocal.gguf.lora_adapter import check_adapter, check_shape, read_adapter
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import DraftInfo, ModelShape, describe_shape
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import choose_head_type, requantize_header
from eaglelocal.hub.draft_resolver import ModelFiles, check_one_model, find_draft, find_files
from eaglelocal.hub.hub_cache import (
    find_known_target,
    list_models,
    list_repo_models,
    repo_folder,
)
from eaglelocal.hub.model_library import list_library, locate_reference
from eaglelocal.hub.projector_resolver import read_projector_file
from eaglelocal.hub.target_resolver import NATIVE, demo_sources, find_demo
from eaglelocal.loading.calibration_store import find_newest_costs
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.planning.nearest_quant import find_nearest_quant
from eaglelocal.planning.options import (
    NO_DRAFT_OPTION,
    DraftOption,
    ModelOption,
    UnusableDraft,
    make_catalog_options,
    make_draft_option,
    make_file_option,
)
from eaglelocal.planning.quality import PredictedAcceptance
from eaglelocal.speculation.costs.saved_costs import UNREADABLE, SavedCosts

DEMO_HEAD = "its own EAGLE-3.1 head"
# of the embedded head on held-out prompts
DEMO_ACCEPTANCE = PredictedAcceptance.from_reports(((5, 3.41), (7, 3.8)), default=0.0)

SHOWN_DRAFTS = 4  # as examples, where one is unknown

LocalModel = tuple[ModelOption, ModelFiles]  # a model on this disk, for the planner, and its files


def find_models(options: RunOptions, catalog: Catalog) -> tuple[ModelOption, ...]:
    """Return the models that the target means; without one, the whole catalog.

    A file, or a repository that is not in the catalog, has the draft that `chat` would use.

    Raises UsageError, ModelFileError or IncompatibleError.
    """
    if options.target is None:
        every = [option for target in catalog.targets.values() for option in list_entry_options(target, catalog)]
        return restrict_entries(every, options)
    parsed = locate_reference(options.target, options.model_folders)
    if isinstance(parsed, EmbeddedModel):
        return (make_demo_option(parsed.text, options, catalog),)
    entry = find_known_target(parsed, catalog)
    if entry is None or isinstance(parsed, File | DerivedModel):
        return (make_local_option(find_files(parsed, options), options.target, options, catalog),)
    found = list(list_entry_options(entry, catalog, quant=parsed.quant))
    if not found and parsed.quant is not None:
        nearest = find_nearest_quant(entry, parsed.quant, catalog.quants)
        listed = list_entry_options(entry, catalog, quant=nearest)
        found = [replace(option, stands_for=parsed.quant) for option in listed]
    return restrict_entries(found, options)


# ---- what the options leave of a model: its adapters, its projector and its drafts
def restrict_entries(models: Sequence[ModelOption], options: RunOptions) -> tuple[ModelOption, ...]:
    """Return models of the catalog as the run allows them. Raises UsageError on an unknown draft."""
    adapted = [choose_projector(model, options) for model in adapt_models(models, options)]
    check_one_model(options.draft)
    if not options.names_draft:
        return tuple(restrict_drafts(model, options) for model in adapted)
    name = options.draft
    found = []
    for model in adapted:
        drafts = tuple(draft for draft in model.drafts if name == draft.id or name == MTP == draft.kind)
        found += [replace(model, drafts=drafts)] if drafts else []
    if not found:
        known = dict.fromkeys(draft.id for model in adapted for draft in model.drafts if draft.shape)
        near = difflib.get_close_matches(name, [word for word in (*list_draft_words(), *known) if word != name], n=1)
        why = next(
            (f"{one.id}: {one.reason}" for model in adapted for one in model.unusable if one.id.startswith(name)), ""
        )
        others = f", or one of: {', '.join(list(known)[:SHOWN_DRAFTS])}" if known else ""
        raise UsageError(
            why or f"the catalog has no draft {name} that can be planned here",
            hint=f"`--draft {near[0] if near else 'auto'}`{others}",
        )
    return tuple(found)


def adapt_models(models: Sequence[ModelOption], options: RunOptions) -> list[ModelOption]:
    """Return the models with the run's LoRA adapters, without those for which they were not made.

    Of a target that is not on this disk, only the architecture, the width and the number of layers are known.

    Raises UsageError, ModelFileError, or IncompatibleError if no model can have them.
    """
    adapters = [(file.path.name, read_adapter(read_header(file.path))) for file in options.adapters]
    tensors = tuple(tensor for _, adapter in adapters for tensor in adapter.tensors)
    adapted: list[ModelOption] = []
    refusals: list[IncompatibleError] = []
    for model in models:
        try:
            for name, adapter in adapters:
                if model.header is None:
                    check_shape(name, adapter, model.shape)
                else:
                    check_adapter(name, adapter, model.header)
            adapted.append(replace(model, adapters=tensors))
        except IncompatibleError as error:
            refusals.append(error)
    if len({error.message for error in refusals}) > 1 and not adapted:
        what = f"none of these {len(refusals)} models is the one that {', '.join(name for name, _ in adapters)} is for"
        raise IncompatibleError(what, hint="eaglelocal plan MODEL.gguf --lora FILE")
    if refusals and not adapted:
        raise refusals[0]
    return adapted


def restrict_drafts(option: ModelOption, options: RunOptions) -> ModelOption:
    """Return the option with only the drafts that the run allows."""
    if not options.drafts:
        return replace(option, drafts=(NO_DRAFT_OPTION,))
    if options.draft == AUTO:
        less = [draft for draft in option.drafts if draft.better_known]
        reasons = [
            UnusableDraft(one.id, f"its acceptance is not reported, and that of {one.better_known} is") for one in less
        ]
        left = tuple(draft for draft in option.drafts if not draft.better_known)
        return replace(option, drafts=left, unusable=(*option.unusable, *reasons))
    named = tuple(draft for draft in option.drafts if (draft.shape is not None) == options.names_draft)
    return replace(option, drafts=named or option.drafts)


def choose_projector(option: ModelOption, options: RunOptions) -> ModelOption:
    """Return the option with the projector that the run allows: as found, none, or the named file.

    Raises ModelFileError or IncompatibleError if the named file does not fit the target on disk.
    """
    if options.mmproj == AUTO:
        return option
    named = None if options.mmproj == NONE else read_projector_file(expand_path(options.mmproj), option.header)
    return replace(option, projector=named)


def restrict_file(option: ModelOption, options: RunOptions) -> ModelOption:
    """Return a model in files with the run's adapters, and with the drafts that the run allows."""
    (adapted,) = adapt_models([option], options)
    return restrict_drafts(adapted, options)


# ---- models in files
def list_local_models(options: RunOptions, catalog: Catalog) -> Iterator[LocalModel]:
    """Yield the models on this disk that write text, each file once: of the hub's cache, then of other folders.

    Unreadable files are skipped; `eaglelocal ls` names them.
    """
    seen: set[Path] = set()
    for reference, parsed in _list_references(options):
        with suppress(EagleLocalError):
            files = find_files(parsed, options)
            path = files.target.header.path.resolve()
            if files.task is ModelTask.TEXT and path not in seen:
                seen.add(path)
                yield make_local_option(files, reference, options, catalog), files


def _list_references(options: RunOptions) -> Iterator[tuple[str, Repo | File]]:
    """Yield the references of models on this disk, as people type them and parsed."""
    for model in list_models(locations.hub_cache_dir()):
        yield f"{model.repo}:{model.build.tag}", Repo(model.repo, model.build.tag)
    for other in list_library(options.model_folders):
        yield other.name, File(other.path, other.name)


def make_local_option(files: ModelFiles, reference: str, options: RunOptions, catalog: Catalog) -> ModelOption:
    """Return the planner's option of a run's files. Raises ModelFileError on senseless keys."""
    target, draft = files.target, files.draft
    head = None
    if draft.info is not None:
        head = make_draft_option(draft.label, describe_loaded(draft.info, options.draft_type))
    option = make_file_option(target.info, reference=reference, label=target.label, catalog=catalog, draft=head)
    notes = () if target.small is None else (f"inflated: it answers as {target.small.label} does",)
    drafts = option.drafts if draft.kind != NONE else (NO_DRAFT_OPTION,)
    return restrict_file(replace(option, projector=files.projector.projector, drafts=drafts, notes=notes), options)


def make_demo_option(reference: str, options: RunOptions, catalog: Catalog) -> ModelOption:
    """Return the option of the embedded model: from its files if they were written, else from their sketches.

    Raises UsageError on an impossible size.
    """
    target, head = read_demo(reference)
    draft = make_draft_option(DEMO_HEAD, describe_loaded(head, options.draft_type), DEMO_ACCEPTANCE)
    option = make_file_option(target, reference=reference, label=reference, catalog=catalog, draft=draft)
    return restrict_file(option, options)


def read_demo(reference: str) -> tuple[ModelInfo, EagleInfo]:
    """Return what the headers of the embedded model's target and head say, or will say once they are written."""
    if reference == NATIVE:
        target, head = map(read_header, demo_sources())
    else:
        pair = find_demo(reference)
        target, head = map(read_header, (pair.target, pair.head)) if pair.complete else pair.sketch()
    return ModelInfo.from_header(target), EagleInfo.from_header(head)


def describe_loaded(draft: DraftInfo, draft_type: str = AUTO) -> ModelShape:
    """Return the shape of a draft as it will be loaded: heads are copied in fewer bits."""
    return describe_shape(replace(draft, header=requantize_header(draft.header, choose_head_type(draft_type))))


# ---- catalog models: build the options of catalog entries, with exact sizes for the files that are on disk already
#
# The header of a file replaces the figures of its entry: sizes, shape and quantization. A draft counts as on disk if
# `--draft auto` or its own name would find it. Reads headers, asks no hub.
def list_entry_options(target: TargetEntry, catalog: Catalog, *, quant: str | None = None) -> Iterator[ModelOption]:
    """Yield the options of a target: the catalog's quantizations, then others on disk; or only `quant`."""
    cache = locations.hub_cache_dir()
    has_some = any(repo_folder(cache, repo).is_dir() for repo in target.repos)
    known = make_catalog_options(target, catalog, quant=quant)
    yield from (mark_on_disk(option, target, catalog) if has_some else option for option in known)
    if has_some:
        yield from _beyond(target, catalog, quant, cache)


def mark_on_disk(option: ModelOption, target: TargetEntry, catalog: Catalog) -> ModelOption:
    """Return the option with the figures of the files that `chat` would find, if they are on disk; else unchanged."""
    try:
        files = find_files(Profile(target.id, option.quant), RunOptions())
        target_info = files.target.info
        exact = make_file_option(target_info, reference=option.reference, label=target.id, catalog=catalog)
        drafts = tuple(_list_drafts(option, files, catalog))
    except EagleLocalError:  # loading raises it again and reports it
        return option
    return replace(
        option,
        model=exact.model,
        quality_b=exact.quality_b,
        max_context=exact.max_context or option.max_context,
        drafts=drafts,
        projector=files.projector.projector,
        is_here=True,
        is_unseen=False,
        notes=(),
        header=target_info.header,
    )


def _beyond(target: TargetEntry, catalog: Catalog, quant: str | None, cache: Path) -> Iterator[ModelOption]:
    """Yield the quantizations on disk that the catalog does not list, with the drafts of their target."""
    like = next(make_catalog_options(target, catalog))
    builds = [model.build for repo in target.repos for model in list_repo_models(cache, repo)]
    quants = sorted({build.quant for build in builds if build.quant and not build.is_draft})
    for name in _unlisted(target, quants, quant):
        option = mark_on_disk(replace(like, quant=name, reference=f"{target.id}:{name}"), target, catalog)
        if option.is_here:
            yield option


def _unlisted(target: TargetEntry, names: Sequence[str], quant: str | None) -> list[str]:
    """Return `quant` if it is unlisted; else all unlisted ones that do not stand for a listed one not on disk.

    UD-Q4_K_M on disk stands for a listed Q4_K_M, unless that is on disk too.
    """
    unlisted = [name for name in names if target.quantization(name) is None]
    if quant is not None:
        return [name for name in unlisted if name == normalize_quant(quant)]
    plain = {name: name.removeprefix("UD-") for name in unlisted}
    return [name for name in unlisted if plain[name] in names or target.quantization(plain[name]) is None]


def _list_drafts(option: ModelOption, files: ModelFiles, catalog: Catalog) -> Iterator[DraftOption]:
    """Yield the draft of `--draft auto`, then the catalog's others, on disk or not, and last the model-free ones."""
    own, auto = None, files.draft
    if auto.info is not None:
        shape = describe_loaded(auto.info)
        own = next((draft for draft in option.drafts if _is_file_of(draft, auto.info, catalog)), None)
        yield _mark_draft(own, shape) if own else make_draft_option(auto.label, shape)
    for draft in option.drafts:
        info = None
        if draft is not own and draft.shape is not None and not draft.import_from:
            with suppress(EagleLocalError):  # it is not on disk as a GGUF under its own name, or does not fit
                info = find_draft(draft.id, files.target).info
        if info is not None:
            yield replace(_mark_draft(draft, describe_loaded(info)), needs_naming=True)
        elif draft is not own:
            yield draft


def _mark_draft(draft: DraftOption, shape: ModelShape) -> DraftOption:
    return replace(draft, shape=shape, is_here=True, import_from="", notes=(), better_known="")


def _is_file_of(option: DraftOption, draft: DraftInfo, catalog: Catalog) -> bool:
    """Return whether a file belongs to a catalog draft: from its repository, or imported and named after it.

    The draft of an entry for the target's own MTP layer is that layer.
    """
    entry = catalog.drafts.get(option.id)
    if entry is not None and entry.is_in_target:
        return isinstance(draft, MtpInfo)
    repos = [repo for repo in (entry.repo, entry.gguf_repo) if repo] if entry else []
    folders = {folder_name(repo) for repo in repos}
    return bool(folders & set(draft.header.path.parts)) or draft.name in {repo.rpartition("/")[2] for repo in repos}


# ---- measured costs: read the decode costs that engines measured on this machine for the models on its disk
def read_measured_costs(
    options: Iterable[ModelOption], machine: MachineSpec, kv_type: str | None
) -> Mapping[str, MeasuredCosts]:
    """Return the measured costs by the reference of the option; empty for a machine that is not this one.

    kv_type  of the cache that the user asked for; None: as planned
    """
    found: dict[str, MeasuredCosts] = {}
    for option in options:
        if option.header is None or machine.probed is None:
            continue
        state = find_newest_costs(machine.probed, option.header, BUILD, kv_type)
        if state is not None:
            with suppress(*UNREADABLE):
                found[option.reference] = SavedCosts.read(state).measured()
    return found
