"""Build the planner's options of models on this disk, and of embedded models that can be written to it.

Reads headers, loads nothing. An option's drafts are those that may be loaded for it: if the run names one, only that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import Catalog
from eaglelocal.core.run_options import AUTO, NONE, RunOptions
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.head_requantization import choose_head_type, requantize_header
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.projector import Projector
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.hub_cache import list_models
from eaglelocal.hub.inflation.demo_shape import plan_demo
from eaglelocal.hub.inflation.demo_sizes import DemoSize
from eaglelocal.hub.inflation.inflate import inflated_paths, parse_demo_reference
from eaglelocal.hub.inventory import describe_file
from eaglelocal.hub.model_files import ModelFiles, find_files
from eaglelocal.hub.projector_resolver import AUTO_HINT, read_projector_file
from eaglelocal.hub.target_resolver import NATIVE, demo_sources
from eaglelocal.hub.typed_path import resolve_file
from eaglelocal.planning.options import (
    DraftOnDisk,
    DraftOption,
    ModelOption,
    TargetOnDisk,
    make_disk_option,
    make_file_option,
)
from eaglelocal.planning.predicted_acceptance import PredictedAcceptance

DEMO_HEAD = "its own EAGLE-3.1 head"
DEMO_ACCEPTANCE = PredictedAcceptance.of(((5, 3.41), (7, 3.8)), default=0.0)  # of the embedded head on held-out prompts
NO_DRAFT = DraftOption(id=NONE, kind=NONE)

LocalModel = tuple[ModelOption, ModelFiles]  # a model on this disk, for the planner, and its files


def list_cached_models(options: RunOptions, catalog: Catalog) -> Iterator[LocalModel]:
    """Yield the models in the hub cache that write text. Unreadable files are skipped; `eaglelocal ls` names them."""
    for model in list_models(locations.hub_cache_dir()):
        if describe_file(model.path).kind != "model":
            continue
        try:
            files = find_files(model.reference, options)
            yield make_option(files, model.reference, options, catalog), files
        except EagleLocalError:
            continue


def make_option(files: ModelFiles, reference: str, options: RunOptions, catalog: Catalog) -> ModelOption:
    """Return the planner's option of a run's files. Raises ModelFileError on senseless keys."""
    target, draft = files.target, files.draft
    head = None
    if draft.header is not None:
        head = DraftOnDisk(draft.label, make_loaded_header(draft.header, options), kind=draft.kind)
    option = make_file_option(target.header, reference=reference, label=target.label, catalog=catalog, draft=head)
    option = dataclasses.replace(option, projector=files.projector.projector)
    return restrict_drafts(option, options) if draft.kind != NONE else dataclasses.replace(option, drafts=(NO_DRAFT,))


def make_loaded_header(header: Header, options: RunOptions) -> Header:
    """Return the header of a draft as it will be loaded: heads are copied in fewer bits."""
    return requantize_header(header, choose_head_type(options.draft_type))


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
    path = resolve_file(options.mmproj, hint=AUTO_HINT)
    named = read_projector_file(path, option.header) if option.header else Projector.from_header(read_header(path))
    return dataclasses.replace(option, projector=named)


def make_demo_option(reference: str, options: RunOptions, catalog: Catalog) -> ModelOption:
    """Return the option of the embedded model: from its files if they were written, else from its sketch.

    Raises UsageError on an impossible size.
    """
    target, head = demo_sources()
    if reference != NATIVE:
        size = parse_demo_reference(reference)
        paths = inflated_paths(size, source_target=target, source_head=head, folder=locations.generated_models_dir())
        if not paths.complete:
            return restrict_drafts(make_disk_option(_plan_unwritten(reference, size, target, head), catalog), options)
        target, head = paths.target, paths.head
    draft = DraftOnDisk(DEMO_HEAD, make_loaded_header(read_header(head), options), DEMO_ACCEPTANCE)
    header = read_header(target)
    option = make_file_option(header, reference=reference, label=reference, catalog=catalog, draft=draft)
    return restrict_drafts(option, options)


def _plan_unwritten(reference: str, size: DemoSize, target: Path, head: Path) -> TargetOnDisk:
    drawn = plan_demo(size, target, head)
    return TargetOnDisk(
        reference=reference,
        label=reference,
        quant=size.type.upper(),
        shape=drawn.target,
        parameters=drawn.num_parameters,
        active=drawn.num_parameters,
        draft=drawn.head,
        draft_label=DEMO_HEAD,
        acceptance=DEMO_ACCEPTANCE,
    )
