"""Plan the best way to run a command's models on a machine. Pure: models, machine and costs are arguments.

Sizes come from headers for files, else from the catalog; search and score are the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eaglelocal.core.amounts import format_memory
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.planning.candidate import COMFORTABLE_CTX, Candidate, offload_text
from eaglelocal.planning.candidate_evaluation import CacheSetup, CandidateEvaluator
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.planning.options import DraftOption, ModelOption
from eaglelocal.planning.plan_search import SearchOutcome, list_kv_types, search_plan


def plan_models(
    models: Sequence[ModelOption],
    machine: MachineSpec,
    options: RunOptions,
    *,
    measured: Mapping[str, MeasuredCosts] | None = None,
) -> SearchOutcome:
    """Return the best way to run one of the models, and why the others were rejected.

    A model on disk is planned as `chat` loads it: with its draft, and with an f16 cache if that fits.

    measured  costs of decodes measured on this machine, by the reference of an option

    Raises UsageError if the options name GPUs that the machine does not have, or contradict each other.
    """
    outcome = search_plan(models, machine, options, measured=measured)
    if outcome.chosen is None or not outcome.chosen.option.is_here:
        return outcome
    evaluator = CandidateEvaluator(machine, options, measured)
    chosen = use_plain_cache(add_draft(outcome.chosen, evaluator), evaluator)
    if chosen is outcome.chosen:
        return outcome
    others = [each for each in outcome.rejected if each.option is not chosen.option or each.draft != chosen.draft.id]
    return replace(outcome, chosen=chosen, rejected=tuple(others))


def add_draft(candidate: Candidate, evaluator: CandidateEvaluator) -> Candidate:
    """Add the draft on disk to the candidate, unless it would take context below COMFORTABLE_CTX.

    Whether drafting pays is measured at run time, not predicted. No layer is moved to RAM for the draft, and the cache
    is quantized to no less than q8_0 for it.
    """
    draft, options = find_missing_draft(candidate), evaluator.options
    if draft is None:
        return candidate
    alone = replace(candidate.option, drafts=(draft,))
    layers = options.gpu_layers if candidate.gpu_layers is None else candidate.gpu_layers
    q8_0 = [kv_type for kv_type in list_kv_types(options, evaluator.computing_devices) if kv_type == "q8_0"]
    for kv_type in dict.fromkeys((candidate.setup.kv_type, *q8_0)):
        alike = replace(options, kv_type=kv_type, gpu_layers=layers, n_cpu_moe=candidate.n_cpu_moe, draft=draft.id)
        chosen = search_plan([alone], evaluator.machine, alike, measured=evaluator.measured).chosen
        is_alike = chosen is not None and chosen.gpu_layers == candidate.gpu_layers
        is_alike &= chosen is not None and chosen.n_cpu_moe == candidate.n_cpu_moe
        if chosen is not None and is_alike and chosen.setup.n_ctx >= limit_setup(candidate).n_ctx:
            return replace(chosen, option=candidate.option)
    return candidate


def limit_setup(candidate: Candidate) -> CacheSetup:
    """Return the candidate's setup with at most COMFORTABLE_CTX tokens of context."""
    return replace(candidate.setup, n_ctx=min(candidate.setup.n_ctx, COMFORTABLE_CTX))


def use_plain_cache(candidate: Candidate, evaluator: CandidateEvaluator) -> Candidate:
    """Use an f16 cache if it fits and the user asked for no type: all that quantizing saves is memory."""
    if evaluator.options.kv_type is not None:
        return candidate
    plain = replace(candidate.setup, kv_type="f16")
    memory = evaluator.estimate_memory(candidate.option, candidate.draft, plain, candidate.offload)
    return replace(candidate, setup=plain, memory=memory) if memory.fits else candidate


def explain_missing_draft(candidate: Candidate, evaluator: CandidateEvaluator) -> str:
    """Explain why the draft on disk is not loaded; empty if it is, or if there is none."""
    draft = find_missing_draft(candidate)
    if draft is None:
        return ""
    setup = limit_setup(candidate)
    worst = evaluator.estimate_memory(candidate.option, draft, setup, candidate.offload).worst
    beside = offload_text(candidate) or f"{setup.n_ctx} tokens"
    lacks = f"{format_memory(worst.missing_bytes)} on {worst.device}"
    return f"a lookup in place of {draft.id}, which lacks {lacks} beside {beside}"


def find_missing_draft(candidate: Candidate) -> DraftOption | None:
    """Return the draft model on disk that `--draft auto` takes and the candidate has not; None if there is none."""
    if candidate.draft.shape is not None:
        return None
    drafts = candidate.option.drafts
    return next((each for each in drafts if each.shape is not None and each.is_here and not each.needs_naming), None)
