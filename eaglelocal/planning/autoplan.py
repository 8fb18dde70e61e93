"""Decide what the options of a run leave open, for this machine: target, draft, context, cache and layers.

Without a target the best model on disk is chosen, never a download, else the embedded one. Explicit options are kept
and planned with. If nothing fits, nothing is decided, and loading reports what is missing. A draft that does not fit is
left out, and the note says so. The embedded model is planned only if there is a GPU, and never in its native size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.reference import EmbeddedModel, parse_reference
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.run_options import AUTO, RunOptions
from eaglelocal.errors import EagleLocalError
from eaglelocal.hub.target_resolver import NATIVE, find_target
from eaglelocal.planning.candidate import Candidate
from eaglelocal.planning.decision import DEFAULT_CTX, EMBEDDED, Decision
from eaglelocal.planning.disk_choice import best_on_disk, why_without
from eaglelocal.planning.eviction import Needs, subtract_other_models
from eaglelocal.planning.gpu_selection import select_gpus
from eaglelocal.planning.local_models import demo_option, option_of_files, pulled_models
from eaglelocal.planning.machine_spec import MachineSpec, make_machine_spec
from eaglelocal.planning.measured_costs import measured_costs
from eaglelocal.planning.model_files import ModelFiles, find_files
from eaglelocal.planning.options import ModelOption
from eaglelocal.planning.plan_search import make_evaluator
from eaglelocal.probe.probe import probe

# What a model may lose to make room for a projector that nobody asked for, or for other models: a tenth of its speed,
# and context beyond this many tokens.
SPEED_KEPT, CTX_KEPT = 0.9, 16384


@dataclasses.dataclass(frozen=True, slots=True)
class BestCandidate:
    """The best way to run one of some models here.

    needs          its memory
    without_draft  the reason why the draft on disk is left out; empty: it is not
    is_blind       whether the projector on disk is left out
    """

    way: Candidate
    needs: Needs
    without_draft: str = ""
    is_blind: bool = False


def autoplan(options: RunOptions, *, beside: Needs = ()) -> Decision:
    """Return what is decided for this machine.

    beside  the memory that other models of this server will hold

    Raises UsageError, ModelFileError or IncompatibleError on a target, draft or projector that cannot be used. After
    any other error while planning, the options stay open: loading meets it again and reports it.
    """
    if options.target is None:
        return _choose_target(options, beside)
    if isinstance(parse_reference(options.target), EmbeddedModel):
        return _plan_embedded(options, options.target, beside)
    files = find_files(find_target(options.target, on_progress=lambda fraction, what: None), options)
    return _plan_files(options, files, options.target, beside)


def replan(decision: Decision, *, beside: Needs = ()) -> Decision:
    """Return what is decided for the same options, and files found before, with other models in memory."""
    if decision.files is None or decision.options.target is None:
        return autoplan(decision.options, beside=beside)
    return _plan_files(decision.options, decision.files, decision.target, beside)


def _plan_files(options: RunOptions, files: ModelFiles, reference: str, beside: Needs) -> Decision:
    found = Decision(options, files=files)
    if files.task is not ModelTask.TEXT:  # an embedding model has its own sizes: nothing is to decide
        return found
    try:
        catalog = load_catalog()
        rig = subtract_other_models(this_machine(catalog), beside)
        best = best_of([option_of_files(files, reference, options, catalog)], rig, options)
    except EagleLocalError:
        return found
    return with_best(found, best)


def _choose_target(options: RunOptions, beside: Needs) -> Decision:
    catalog = load_catalog()
    models = {option.reference: (option, files) for option, files in pulled_models(options, catalog)}
    candidates = [option for option, _ in models.values()]
    best = best_of(candidates, subtract_other_models(this_machine(catalog), beside), options) if candidates else None
    if best is None:
        why = "none of the models on disk fits this machine as it is asked" if candidates else ""
        return Decision(options, chosen=EMBEDDED, intro=why, fits=not candidates)
    reference = best.way.option.reference
    others = f", of {len(candidates)} on disk" if len(candidates) > 1 else ""
    found = Decision(options, chosen=reference, files=models[reference][1], intro=f"{reference}{others}")
    return with_best(found, best)


def _plan_embedded(options: RunOptions, reference: str, beside: Needs) -> Decision:
    """Plan an inflated embedded model: it may need layers in RAM, or no head."""
    found = Decision(options)
    if reference == NATIVE:
        return found
    try:
        catalog = load_catalog()
        rig = subtract_other_models(this_machine(catalog), beside)
        if not rig.gpus:
            return found
        option = with_max_context(demo_option(reference, options, catalog), options, DEFAULT_CTX)
        return with_best(found, best_of([option], rig, options))
    except EagleLocalError:
        return found


def this_machine(catalog: Catalog) -> MachineSpec:
    return make_machine_spec(probe(), catalog.machines)


def with_best(decision: Decision, best: BestCandidate | None) -> Decision:
    """Return the decision with the best way to run; if that is None, with `fits` False."""
    if best is None:
        return dataclasses.replace(decision, fits=False)
    return dataclasses.replace(
        decision, way=best.way, needs=best.needs, without_draft=best.without_draft, is_blind=best.is_blind
    )


def best_of(candidates: Sequence[ModelOption], rig: MachineSpec, options: RunOptions) -> BestCandidate | None:
    """Return the best way to run one of the models; None if none fits. Raises UsageError on GPUs that are not there.

    A projector that was not asked for is left out if it would make the model slow or short of context, or another model
    the best.
    """
    seeing = _best_of(candidates, rig, options)
    if options.mmproj != AUTO or not any(option.projector for option in candidates):
        return seeing
    blind = _best_of([dataclasses.replace(option, projector=None) for option in candidates], rig, options)
    if blind is None or (seeing is not None and costs_little(seeing.way, blind.way)):
        return seeing
    return dataclasses.replace(blind, is_blind=True)


def costs_little(less: Candidate, most: Candidate) -> bool:
    """Return whether a model loses little with less memory, compared with the most that it could have."""
    is_same = less.option.reference == most.option.reference
    is_same &= less.setup.kv_type in (most.setup.kv_type, "f16", "q8_0")
    is_long = less.setup.n_ctx >= min(most.setup.n_ctx, CTX_KEPT)
    return is_same and is_long and less.prediction.spec_tok_s >= SPEED_KEPT * most.prediction.spec_tok_s


def _best_of(candidates: Sequence[ModelOption], rig: MachineSpec, options: RunOptions) -> BestCandidate | None:
    # On a CPU long contexts are for those who ask: each drafted row attends more slowly after them.
    if not select_gpus(rig, options).gpus or options.gpu_layers == 0:
        candidates = [with_max_context(option, options, DEFAULT_CTX) for option in candidates]
    way = best_on_disk(candidates, rig, options, measured=measured_costs(candidates, rig))
    if way is None:
        return None
    needs = make_evaluator(rig, options).weigh(way.option, way.draft, way.setup, way.offload).buffers
    return BestCandidate(way, needs, why_without(way, rig, options))


def with_max_context(option: ModelOption, options: RunOptions, max_context: int) -> ModelOption:
    """Return the model with no more context than that, unless a person said how much."""
    if options.ctx is not None:
        return option
    return dataclasses.replace(option, max_context=min(option.max_context or max_context, max_context))
