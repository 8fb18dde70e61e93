"""Choose among the models on disk if no target was named. Pure: takes what is on disk as arguments.

Search and score are those of `eaglelocal plan`, but sizes come from the headers of files, not from the catalogue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.core.run_options import RunOptions
from eaglelocal.planning.candidate import Candidate, gib, offload_text
from eaglelocal.planning.candidate_evaluation import CacheSetup
from eaglelocal.planning.goals import COMFORTABLE_CTX
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.planning.options import DraftOption, ModelOption
from eaglelocal.planning.plan_search import kv_types_for, make_evaluator, search_plan

AS_USUAL = RunOptions()


def best_on_disk(
    candidates: Sequence[ModelOption],
    rig: MachineSpec,
    options: RunOptions = AS_USUAL,
    *,
    measured: Mapping[str, MeasuredCosts] | None = None,
) -> Candidate | None:
    """Return the best-scoring way to run a model on disk; None if there is none, or none fits.

    measured  costs of decodes measured on this machine, by the reference of an option
    """
    here = [option for option in candidates if option.is_here]
    chosen = search_plan(here, rig, options, measured=measured).chosen
    return None if chosen is None else with_plain_cache(with_its_draft(chosen.way, rig, options), rig, options)


def with_its_draft(way: Candidate, rig: MachineSpec, options: RunOptions) -> Candidate:
    """Return the way with the draft on disk added, if that costs no more than context above COMFORTABLE_CTX.

    Whether drafting pays is measured at run time, not predicted. No layer is moved to RAM for the draft, and the cache
    is quantized to no less than q8_0 for it.
    """
    draft = draft_of(way.option)
    if way.draft.shape is not None or draft is None:
        return way
    alone = dataclasses.replace(way.option, drafts=(draft,))
    layers = options.gpu_layers if way.gpu_layers is None else way.gpu_layers
    for kv_type in dict.fromkeys((way.setup.kv_type, *(each for each in kv_types_for(options) if each == "q8_0"))):
        alike = dataclasses.replace(
            options, kv_type=kv_type, gpu_layers=layers, n_cpu_moe=way.n_cpu_moe, draft=draft.id
        )
        chosen = search_plan([alone], rig, alike).chosen
        if chosen is not None and is_comfortable(chosen.way, way):
            return dataclasses.replace(chosen.way, option=way.option)
    return way


def is_comfortable(way: Candidate, other: Candidate) -> bool:
    """Return whether a way has the other's offload, and its context up to COMFORTABLE_CTX."""
    return way.offload == other.offload and way.setup.n_ctx >= comfortable(other).n_ctx


def comfortable(way: Candidate) -> CacheSetup:
    """Return the way's setup with at most COMFORTABLE_CTX tokens of context."""
    return dataclasses.replace(way.setup, n_ctx=min(way.setup.n_ctx, COMFORTABLE_CTX))


def with_plain_cache(way: Candidate, rig: MachineSpec, options: RunOptions) -> Candidate:
    """Return the way with an f16 cache if that fits and no type was asked for: quantizing is to save memory only."""
    if options.kv_type is not None:
        return way
    plain = dataclasses.replace(way.setup, kv_type="f16")
    fits = make_evaluator(rig, options).weigh(way.option, way.draft, plain, way.offload).fits
    return dataclasses.replace(way, setup=plain) if fits else way


def why_without(way: Candidate, rig: MachineSpec, options: RunOptions) -> str:
    """Return the reason why the draft on disk is not loaded; empty if it is, or if there is none."""
    draft = draft_of(way.option)
    if way.draft.shape is not None or draft is None:
        return ""
    setup = comfortable(way)
    worst = make_evaluator(rig, options).weigh(way.option, draft, setup, way.offload).worst
    beside = offload_text(way) or f"{setup.n_ctx} tokens"
    lacks = f"{gib(worst.missing_bytes)} on {worst.room.device}"
    return f"a lookup in place of {draft.id}, which lacks {lacks} beside {beside}"


def draft_of(option: ModelOption) -> DraftOption | None:
    """Return the first draft that is a model; None if there is none."""
    return next((draft for draft in option.drafts if draft.shape is not None), None)
