"""Find the models that `eaglelocal plan TARGET` weighs. Reads headers, runs nothing.

A file is planned from its header, even if the catalog knows it; an embedded model that was not written yet from its
sketch; everything else from the catalog.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import MTP
from eaglelocal.catalog.reference import EmbeddedModel, File, Profile, Repo, parse_reference
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import UsageError
from eaglelocal.hub.model_files import find_files
from eaglelocal.planning.catalog_models import entry_options
from eaglelocal.planning.local_models import choose_projector, make_demo_option, make_option, restrict_drafts
from eaglelocal.planning.options import ModelOption

SHOWN_DRAFTS = 4


def find_options(options: RunOptions, catalog: Catalog) -> tuple[ModelOption, ...]:
    """Return the models that the target means; without one, the whole catalog.

    Raises UsageError, ModelFileError or IncompatibleError.
    """
    text = options.target
    if text is None:
        every = [option for target in catalog.targets.values() for option in entry_options(target, catalog)]
        return _with_drafts(every, options)
    match parse_reference(text):
        case EmbeddedModel():
            return (make_demo_option(text, options, catalog),)
        case File():
            return _file(text, options, catalog)
        case Profile(id=id, quant=quant):
            return _of_entry(catalog.target(id), quant, options, catalog)
        case Repo(name=name, quant=quant):
            entry = _entry_with(name, catalog)
            if entry is None:
                return _file(text, options, catalog)
            return _of_entry(entry, quant, options, catalog)


def _of_entry(target: TargetEntry, quant: str | None, options: RunOptions, catalog: Catalog) -> tuple[ModelOption, ...]:
    found = list(entry_options(target, catalog, quant=quant))
    if not found:
        known = ", ".join(target.quantizations)
        raise UsageError(f"the catalog has no {target.id} in {quant}", hint=f"it has {known}")
    return _with_drafts(found, options)


def _with_drafts(models: Iterable[ModelOption], options: RunOptions) -> tuple[ModelOption, ...]:
    """Return the models with the drafts that the options leave to them. Raises UsageError on an unknown draft."""
    models = tuple(choose_projector(model, options) for model in models)
    if not options.names_draft:
        return tuple(restrict_drafts(model, options) for model in models)
    named = [
        (model, [draft for draft in model.drafts if options.draft == draft.id or options.draft == MTP == draft.kind])
        for model in models
    ]
    found = tuple(dataclasses.replace(model, drafts=tuple(drafts)) for model, drafts in named if drafts)
    if not found:
        known = dict.fromkeys(draft.id for model in models for draft in model.drafts if draft.shape)
        raise UsageError(
            f"the catalog has no draft {options.draft} that can be planned here",
            hint=f"`--draft auto`, or one of: {', '.join(list(known)[:SHOWN_DRAFTS])}",
        )
    return found


def _entry_with(repo: str, catalog: Catalog) -> TargetEntry | None:
    for target in catalog.targets.values():
        if repo.lower() in (each.lower() for each in target.repos):
            return target
    return None


def _file(reference: str, options: RunOptions, catalog: Catalog) -> tuple[ModelOption, ...]:
    """Return the option of a file on disk, by path or by a repository not in the catalog, with the draft of `chat`.

    Raises ModelFileError if there is no file.
    """
    return (make_option(find_files(reference, options), reference, options, catalog),)
