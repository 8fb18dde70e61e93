"""Decide the open options of a run for this machine: target, draft, context, cache and layers.

Without a target the best model on disk is chosen, never a download, else the embedded one. Explicit options are kept
and planned with. If nothing fits, nothing is decided, and loading reports what is missing. A draft that does not fit is
left out, and the note says so. The embedded model is planned only if there is a GPU, and never in its native size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from eaglelocal.catalog.catalog import load_catalog, load_machines
from eaglelocal.catalog.reference import DEMO, EmbeddedModel
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.run_options import AUTO, RunOptions
from eaglelocal.errors import EagleLocalError
from eaglelocal.hub.draft_resolver import ModelFiles, find_files
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.target_resolver import NATIVE
from eaglelocal.memory.budget import Needs
from eaglelocal.planning.candidate import Candidate
from eaglelocal.planning.candidate_evaluation import CandidateEvaluator
from eaglelocal.planning.machine_spec import MachineSpec, free_held_memory, subtract_other_models
from eaglelocal.planning.options import ModelOption
from eaglelocal.planning.plan_models import explain_missing_draft, plan_models
from eaglelocal.planning.plan_search import SearchOutcome
from eaglelocal.preparation.decision import DEFAULT_CTX, Decision
from eaglelocal.preparation.machines import add_servers, find_machine, this_machine
from eaglelocal.preparation.models import (
    LocalModel,
    find_models,
    list_local_models,
    make_demo_option,
    make_local_option,
    read_measured_costs,
)

# What a model may lose to make room for other models, or for a projector that was not asked for: a tenth of its speed,
# and context beyond this many tokens.
SPEED_KEPT, CTX_KEPT = 0.9, 16384


def plan_target(options: RunOptions, *, machine_name: str | None = None, ram_gib: float | None = None) -> SearchOutcome:
    """Return the plan of what the target means, for this machine, or for one of the catalog with `ram_gib` of RAM.

    Raises UsageError, ModelFileError or IncompatibleError.
    """
    catalog = load_catalog()
    models = find_models(options, catalog)
    machine = find_machine(catalog, options, machine_name, ram_gib)
    plan = partial(plan_models, models, measured=read_measured_costs(models, machine, options.kv_type))
    outcome = plan(machine, options)
    if not machine.is_here or options.target is not None:
        return outcome
    return dataclasses.replace(outcome, with_free_memory=plan(free_held_memory(machine), options).chosen)


def autoplan(options: RunOptions, *, other_needs: Needs = ()) -> Decision:
    """Decide the open options for this machine.

    other_needs  the memory that other models of this server will hold

    Raises UsageError, ModelFileError or IncompatibleError on a target, draft or projector that cannot be used. After
    any other error while planning, the options stay open: loading meets it again and reports it.
    """
    if options.target is None:
        return _choose_target(options, tuple(list_local_models(options, load_catalog())), other_needs)
    reference = locate_reference(options.target, options.model_folders)
    if isinstance(reference, EmbeddedModel):
        return _plan_embedded(options, reference.text, other_needs)
    return _plan_files(options, find_files(reference, options), other_needs)


def replan(decision: Decision, *, other_needs: Needs = ()) -> Decision:
    """Decide again for the same options and files, with other models in memory."""
    options = decision.options
    if decision.models_on_disk:
        return _choose_target(options, decision.models_on_disk, other_needs)
    if decision.files is None or options.target is None:
        return autoplan(options, other_needs=other_needs)
    return _plan_files(options, decision.files, other_needs)


def _plan_files(options: RunOptions, files: ModelFiles, other_needs: Needs) -> Decision:
    """Plan the model that the options name, whose files were found."""
    decision = Decision(options, files=files)
    if files.task is not ModelTask.TEXT:  # an embedding model has its own sizes: nothing is to decide
        return decision
    with suppress(EagleLocalError):
        machine = read_free_machine(options, other_needs)
        return find_best(decision, [make_local_option(files, decision.target, options, load_catalog())], machine)
    return decision


def _choose_target(options: RunOptions, on_disk: Sequence[LocalModel], other_needs: Needs) -> Decision:
    if not on_disk:
        return Decision(options, chosen=DEMO)
    machine = read_free_machine(options, other_needs)
    models = {option.reference: (option, files) for option, files in on_disk}
    decision = Decision(options, chosen=DEMO, models_on_disk=tuple(on_disk))
    best = find_best(decision, [option for option, _ in models.values()], machine)
    if best.candidate is None:
        return dataclasses.replace(best, intro="none of the models on disk fits this machine with these options")
    reference = best.candidate.option.reference
    intro = f"{reference}, of {len(models)} on disk" if len(models) > 1 else reference
    return dataclasses.replace(best, chosen=reference, files=models[reference][1], intro=intro)


def _plan_embedded(options: RunOptions, reference: str, other_needs: Needs) -> Decision:
    """Plan an inflated embedded model: it may need layers in RAM, or no head."""
    options = dataclasses.replace(options, target=reference)
    decision = Decision(options)
    if reference == NATIVE:
        return decision
    with suppress(EagleLocalError):
        machine = read_free_machine(options, other_needs)
        if machine.gpus:
            option = make_demo_option(reference, options, load_catalog())
            if options.ctx is None:
                most = min(option.max_context or DEFAULT_CTX, DEFAULT_CTX)
                option = dataclasses.replace(option, max_context=most)
            return find_best(decision, [option], machine)
    return decision


def read_free_machine(options: RunOptions, other_needs: Needs) -> MachineSpec:
    """Return this machine with the run's rpc-servers, less the memory that other models will hold."""
    return subtract_other_models(add_servers(this_machine(load_machines()), options.rpc), other_needs)


def find_best(decision: Decision, models: Sequence[ModelOption], machine: MachineSpec) -> Decision:
    """Return the decision with the best way to run one of the models; with `fits` False if none fits.

    A projector that was not asked for is left out if it would make the model slow or short of context, or another model
    the best. Raises UsageError on GPUs that are not there.
    """
    best = _find_best(decision, models, machine)
    if decision.options.mmproj != AUTO or not any(option.projector for option in models):
        return best
    without = _find_best(decision, [dataclasses.replace(option, projector=None) for option in models], machine)
    if without.candidate is None or (best.candidate is not None and costs_little(best.candidate, without.candidate)):
        return best
    return dataclasses.replace(without, without_projector=True)


def costs_little(smaller: Candidate, largest: Candidate) -> bool:
    """Return whether a model loses little with less memory, compared with the most that it could have."""
    is_same = smaller.option.reference == largest.option.reference
    is_same &= smaller.setup.kv_type in (largest.setup.kv_type, "f16", "q8_0")
    is_long = smaller.setup.n_ctx >= min(largest.setup.n_ctx, CTX_KEPT)
    return is_same and is_long and smaller.prediction.spec_tok_s >= SPEED_KEPT * largest.prediction.spec_tok_s


def _find_best(decision: Decision, models: Sequence[ModelOption], machine: MachineSpec) -> Decision:
    options = decision.options
    measured = read_measured_costs(models, machine, options.kv_type)
    chosen = plan_models(models, machine, options, measured=measured).chosen
    if chosen is None:
        return dataclasses.replace(decision, fits=False)
    return dataclasses.replace(
        decision,
        candidate=chosen,
        without_draft=explain_missing_draft(chosen, CandidateEvaluator(machine, options)),
    )
