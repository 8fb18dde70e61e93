"""Plan what `eaglelocal plan TARGET` shows: find the models that the target means, and search. Runs nothing.

A file is planned from its header, even if the catalog knows it; an embedded model that was not written yet from its
sketch; everything else from the catalog.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable

from eaglelocal.catalog.catalog import DRAFT_WORDS, Catalog, load_catalog
from eaglelocal.catalog.draft_entries import MTP
from eaglelocal.catalog.reference import DerivedModel, EmbeddedModel, File
from eaglelocal.core.byte_sizes import GIB
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import IncompatibleError, UsageError
from eaglelocal.hub.draft_resolver import check_one_model, find_files
from eaglelocal.hub.hub_cache import find_known_target
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.planning.autoplan import add_servers, this_machine
from eaglelocal.planning.disk_choice import adjust_for_loading
from eaglelocal.planning.local_models import (
    add_adapters,
    choose_projector,
    list_entry_options,
    make_demo_option,
    make_local_option,
    read_adapters,
    read_measured_costs,
    restrict_drafts,
)
from eaglelocal.planning.machine_spec import MachineSpec, make_known_spec, replace_ram
from eaglelocal.planning.options import ModelOption
from eaglelocal.planning.plan_search import SearchOutcome, search_plan

SHOWN_DRAFTS = 4


def plan_models(options: RunOptions, *, machine_name: str | None = None, ram_gib: float | None = None) -> SearchOutcome:
    """Return the planner's outcome for this machine, or for one of the catalog with `ram_gib` of RAM.

    Raises UsageError, ModelFileError or IncompatibleError.
    """
    catalog = load_catalog()
    elsewhere = None if machine_name is None and ram_gib is None else find_known_machine(machine_name, catalog, ram_gib)
    models = find_models(options, catalog)
    machine = elsewhere or add_servers(this_machine(catalog.machines), options.rpc)
    measured = read_measured_costs(models, machine)
    return adjust_for_loading(search_plan(models, machine, options, measured=measured), measured=measured)


def find_known_machine(name: str | None, catalog: Catalog, ram_gib: float | None) -> MachineSpec:
    """Return a machine of the catalog, with `ram_gib` of RAM if given.

    Raises UsageError on an unknown machine, or on `ram_gib` without a machine that has RAM beside its GPUs.
    """
    known = None if name is None else catalog.machine(name)
    if known is None or (ram_gib is not None and not known.num_gpus):
        why = "the RAM of this machine is known" if known is None else f"{known.name} has no separate RAM"
        raise UsageError(f"--ram needs --machine with a graphics card: {why}", hint="--machine rtx-3090 --ram 64")
    machine = make_known_spec(known)
    return machine if ram_gib is None else replace_ram(machine, int(ram_gib * GIB))


def find_models(options: RunOptions, catalog: Catalog) -> tuple[ModelOption, ...]:
    """Return the models that the target means; without one, the whole catalog.

    A file, or a repository that is not in the catalog, has the draft that `chat` would use.

    Raises UsageError, ModelFileError or IncompatibleError.
    """
    if options.target is None:
        every = [option for target in catalog.targets.values() for option in list_entry_options(target, catalog)]
        return _with_drafts(every, options)
    parsed = locate_reference(options.target, options.model_folders)
    if isinstance(parsed, EmbeddedModel):
        return (make_demo_option(options.target, options, catalog),)
    entry = find_known_target(parsed, catalog)
    if entry is None or isinstance(parsed, File | DerivedModel):
        return (make_local_option(find_files(parsed, options), options.target, options, catalog),)
    found = list(list_entry_options(entry, catalog, quant=parsed.quant))
    if not found:
        known = ", ".join(entry.quantizations)
        raise UsageError(f"the catalog has no {entry.id} in {parsed.quant}", hint=f"it has {known}")
    return _with_drafts(found, options)


def adapt_models(models: Iterable[ModelOption], options: RunOptions) -> tuple[ModelOption, ...]:
    """Return the models with the run's LoRA adapters, without those for which they were not made.

    Raises UsageError, ModelFileError, or IncompatibleError if no model can have them.
    """
    adapters = read_adapters(options)
    adapted: list[ModelOption] = []
    refusals: list[IncompatibleError] = []
    for model in models:
        try:
            adapted.append(add_adapters(model, adapters))
        except IncompatibleError as error:
            refusals.append(error)
    if len({error.message for error in refusals}) > 1 and not adapted:
        what = f"none of these {len(refusals)} models is the one that {', '.join(name for name, _ in adapters)} is for"
        raise IncompatibleError(what, hint="eaglelocal plan MODEL.gguf --lora FILE")
    if refusals and not adapted:
        raise refusals[0]
    return tuple(adapted)


def _with_drafts(models: Iterable[ModelOption], options: RunOptions) -> tuple[ModelOption, ...]:
    """Return the models with the drafts that the options leave to them. Raises UsageError on an unknown draft."""
    models = tuple(choose_projector(model, options) for model in adapt_models(models, options))
    check_one_model(options.draft)
    if not options.names_draft:
        return tuple(restrict_drafts(model, options) for model in models)
    named = [
        (model, [draft for draft in model.drafts if options.draft == draft.id or options.draft == MTP == draft.kind])
        for model in models
    ]
    found = tuple(dataclasses.replace(model, drafts=tuple(drafts)) for model, drafts in named if drafts)
    if not found:
        known = dict.fromkeys(draft.id for model in models for draft in model.drafts if draft.shape)
        others = [word for word in (*DRAFT_WORDS, *known) if word != options.draft]
        near = difflib.get_close_matches(options.draft, others, n=1)
        raise UsageError(
            f"the catalog has no draft {options.draft} that can be planned here",
            hint=f"`--draft {near[0] if near else 'auto'}`, or one of: {', '.join(list(known)[:SHOWN_DRAFTS])}",
        )
    return found
