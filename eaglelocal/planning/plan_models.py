"""Plan the best way to run a command's models on a machine, as `chat` loads them. Pure: models, machine and costs are
arguments.

Sizes come from headers for files, else from the catalog; search and score are the same for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from eaglelocal.core.byte_sizes import format_memory
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.planning.candidate import COMFORTABLE_CTX, Candidate, Chosen, Rejected, offload_text
from eaglelocal.planning.candidate_evaluation import CacheSetup
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.planning.options import DraftOption, ModelOption
from eaglelocal.planning.plan_search import SearchOutcome, list_kv_types, make_evaluator, search_plan

AS_USUAL = RunOptions()


def plan_models(
    models: Sequence[ModelOption],
    machine: MachineSpec,
    options: RunOptions = AS_USUAL,
    *,
    measured: Mapping[str, MeasuredCosts] | None = None,
) -> SearchOutcome:
    """Return the best way to run one of the models, and why the others were rejected.

    measured  costs of decodes measured on this machine, by the reference of an option

    Raises UsageError if the options name GPUs that the machine does not have, or contradict each other.
    """
    return adjust_for_loading(search_plan(models, machine, options, measured=measured), measured=measured)


def adjust_for_loading(outcome: SearchOutcome, *, measured: Mapping[str, MeasuredCosts] | None = None) -> SearchOutcome:
    """Adjust the outcome to what `chat` loads: the draft beside the model, and an f16 cache if that fits."""
    chosen, machine, options = outcome.chosen, outcome.machine, outcome.options
    if chosen is None or not chosen.candidate.option.is_here:
        return outcome
    candidate = use_plain_cache(add_draft(chosen.candidate, machine, options, measured=measured), machine, options)
    if candidate is chosen.candidate:
        return outcome
    evaluator = make_evaluator(machine, options, measured)
    memory = evaluator.estimate_memory(candidate.option, candidate.draft, candidate.setup, candidate.offload)
    rejected = tuple(each for each in outcome.rejected if not is_rejection_of(each, candidate))
    return dataclasses.replace(outcome, chosen=Chosen(candidate=candidate, memory=memory), rejected=rejected)


def is_rejection_of(rejected: Rejected, candidate: Candidate) -> bool:
    """Return whether the rejected way is the candidate's model and draft, which has been chosen since."""
    return rejected.option is candidate.option and rejected.draft == candidate.draft.id


def add_draft(
    candidate: Candidate,
    machine: MachineSpec,
    options: RunOptions,
    *,
    measured: Mapping[str, MeasuredCosts] | None = None,
) -> Candidate:
    """Add the draft on disk to the candidate, unless it would take context below COMFORTABLE_CTX.

    Whether drafting pays is measured at run time, not predicted. No layer is moved to RAM for the draft, and the cache
    is quantized to no less than q8_0 for it.
    """
    draft = find_draft_model(candidate.option)
    if candidate.draft.shape is not None or draft is None:
        return candidate
    alone = dataclasses.replace(candidate.option, drafts=(draft,))
    layers = options.gpu_layers if candidate.gpu_layers is None else candidate.gpu_layers
    for kv_type in dict.fromkeys(
        (candidate.setup.kv_type, *(each for each in list_kv_types(options) if each == "q8_0"))
    ):
        alike = dataclasses.replace(
            options, kv_type=kv_type, gpu_layers=layers, n_cpu_moe=candidate.n_cpu_moe, draft=draft.id
        )
        chosen = search_plan([alone], machine, alike, measured=measured).chosen
        if chosen is not None and is_comfortable(chosen.candidate, candidate):
            return dataclasses.replace(chosen.candidate, option=candidate.option)
    return candidate


def is_comfortable(candidate: Candidate, other: Candidate) -> bool:
    """Return whether a candidate keeps the other's offload, and its context up to COMFORTABLE_CTX."""
    return candidate.offload == other.offload and candidate.setup.n_ctx >= limit_setup(other).n_ctx


def limit_setup(candidate: Candidate) -> CacheSetup:
    """Return the candidate's setup with at most COMFORTABLE_CTX tokens of context."""
    return dataclasses.replace(candidate.setup, n_ctx=min(candidate.setup.n_ctx, COMFORTABLE_CTX))


def use_plain_cache(candidate: Candidate, machine: MachineSpec, options: RunOptions) -> Candidate:
    """Switch the candidate to an f16 cache if that fits and the user asked for no type: quantizing only
    saves memory.
    """
    if options.kv_type is not None:
        return candidate
    plain = dataclasses.replace(candidate.setup, kv_type="f16")
    fits = (
        make_evaluator(machine, options)
        .estimate_memory(candidate.option, candidate.draft, plain, candidate.offload)
        .fits
    )
    return dataclasses.replace(candidate, setup=plain) if fits else candidate


def explain_missing_draft(candidate: Candidate, machine: MachineSpec, options: RunOptions) -> str:
    """Explain why the draft on disk is not loaded; empty if it is, or if there is none."""
    draft = find_draft_model(candidate.option)
    if candidate.draft.shape is not None or draft is None:
        return ""
    setup = limit_setup(candidate)
    worst = make_evaluator(machine, options).estimate_memory(candidate.option, draft, setup, candidate.offload).worst
    beside = offload_text(candidate) or f"{setup.n_ctx} tokens"
    lacks = f"{format_memory(worst.missing_bytes)} on {worst.device}"
    return f"a lookup in place of {draft.id}, which lacks {lacks} beside {beside}"


def find_draft_model(option: ModelOption) -> DraftOption | None:
    """Return the draft model that `--draft auto` takes; None if there is none on disk."""
    found = (draft for draft in option.drafts if draft.shape is not None and draft.is_here and not draft.needs_naming)
    return next(found, None)
