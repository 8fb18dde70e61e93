"""Build the planner's options of models on this disk, and of embedded models that can be written to it.

Reads headers, loads nothing. An option's drafts are those that may be loaded for it: if the run names one, only that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import EAGLE
from eaglelocal.catalog.reference import File, Repo
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.run_options import AUTO, NONE, RunOptions
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.head_requantization import choose_head_type, requantize_header
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.lora_adapter import AdapterInfo, check_adapter, check_shape, read_adapter
from eaglelocal.gguf.model_shape import ModelShape, read_draft_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.hub_cache import list_models
from eaglelocal.hub.inflation.inflate import locate_inflated, parse_demo_reference, sketch_pair
from eaglelocal.hub.model_files import ModelFiles, find_files
from eaglelocal.hub.model_library import list_library
from eaglelocal.hub.projector_resolver import read_projector_file
from eaglelocal.hub.target_resolver import NATIVE, demo_sources
from eaglelocal.planning.options import NO_DRAFT, ModelOption, make_draft_option, make_file_option
from eaglelocal.planning.predicted_acceptance import PredictedAcceptance

DEMO_HEAD = "its own EAGLE-3.1 head"
DEMO_ACCEPTANCE = PredictedAcceptance.from_reports(
    ((5, 3.41), (7, 3.8)), default=0.0
)  # of the embedded head on held-out prompts

LocalModel = tuple[ModelOption, ModelFiles]  # a model on this disk, for the planner, and its files


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
    if draft.header is not None:
        head = make_draft_option(draft.label, read_loaded_shape(draft.header, draft.kind, options))
    option = make_file_option(target.header, reference=reference, label=target.label, catalog=catalog, draft=head)
    notes = () if target.small is None else (f"inflated: it answers as {target.small.label} does",)
    option = dataclasses.replace(option, projector=files.projector.projector, notes=notes)
    option = add_adapters(option, read_adapters(options))
    return restrict_drafts(option, options) if draft.kind != NONE else dataclasses.replace(option, drafts=(NO_DRAFT,))


def read_loaded_shape(header: Header, kind: str, options: RunOptions) -> ModelShape:
    """Return the shape of a draft as it will be loaded: heads are copied in fewer bits."""
    return read_draft_shape(requantize_header(header, choose_head_type(options.draft_type)), kind)


def restrict_drafts(option: ModelOption, options: RunOptions) -> ModelOption:
    """Return the option with only the drafts that the run allows."""
    if not options.drafts:
        return dataclasses.replace(option, drafts=(NO_DRAFT,))
    if options.draft == AUTO:
        return option
    named = tuple(draft for draft in option.drafts if (draft.shape is not None) == options.names_draft)
    return dataclasses.replace(option, drafts=named or option.drafts)


def choose_projector(option: ModelOption, options: RunOptions) -> ModelOption:
    """Return the option with the projector that the run allows: as found, none, or the named file.

    Raises ModelFileError or IncompatibleError if the named file does not fit the target on disk.
    """
    if options.mmproj == AUTO:
        return option
    if options.mmproj == NONE:
        return dataclasses.replace(option, projector=None)
    named = read_projector_file(expand_path(options.mmproj), option.header)
    return dataclasses.replace(option, projector=named)


def make_demo_option(reference: str, options: RunOptions, catalog: Catalog) -> ModelOption:
    """Return the option of the embedded model: from its files if they were written, else from their sketches.

    Raises UsageError on an impossible size.
    """
    target, head = read_demo_headers(reference)
    draft = make_draft_option(DEMO_HEAD, read_loaded_shape(head, EAGLE, options), DEMO_ACCEPTANCE)
    option = make_file_option(target, reference=reference, label=reference, catalog=catalog, draft=draft)
    return restrict_drafts(add_adapters(option, read_adapters(options)), options)


def read_adapters(options: RunOptions) -> list[tuple[str, AdapterInfo]]:
    """Return the LoRA adapters of the run, with their names. Raises UsageError and ModelFileError."""
    return [(file.path.name, read_adapter(read_header(file.path))) for file in options.adapters]


def add_adapters(option: ModelOption, adapters: Sequence[tuple[str, AdapterInfo]]) -> ModelOption:
    """Return the option with these LoRA adapters.

    Raises IncompatibleError if one is for another model; of a target that is not on this disk, only the architecture,
    the width and the number of layers are known.
    """
    for name, adapter in adapters:
        if option.header is None:
            check_shape(name, adapter, option.shape)
        else:
            check_adapter(name, adapter, option.header)
    tensors = (tensor for _, adapter in adapters for tensor in adapter.tensors)
    return dataclasses.replace(option, adapters=tuple(tensors))


def read_demo_headers(reference: str) -> tuple[Header, Header]:
    """Return the headers of the embedded model's target and head, or those that they will have once written."""
    target, head = demo_sources()
    if reference == NATIVE:
        return read_header(target), read_header(head)
    size = parse_demo_reference(reference)
    paths = locate_inflated(size, source_target=target, source_head=head, folder=locations.generated_models_dir())
    if not paths.complete:
        return sketch_pair(size, target, head)
    return read_header(paths.target), read_header(paths.head)
