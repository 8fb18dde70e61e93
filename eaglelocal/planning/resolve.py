"""Make the plan of a run from what planning decided and the files that it found.

Raises here, before any process is started, on whatever would fail or abort later. Files are never downloaded;
`demo@SIZE`, and other models that are made of a file, are written to the cache on first use, and so is a head's copy in
fewer bits.
"""

from __future__ import annotations

from pathlib import Path

from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.drafting_words import describe_draft
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import MAX_SLOTS, Plan
from eaglelocal.core.request import Spec, parse_spec
from eaglelocal.core.run_options import AUTO, NGRAM, NONE, RunOptions
from eaglelocal.errors import UsageError
from eaglelocal.gguf.lora_adapter import check_adapter, read_adapter
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.draft_resolver import FoundDraft, make_ngram_draft, requantize_draft, write_draft
from eaglelocal.hub.inflation.inflate import Progress
from eaglelocal.hub.model_files import ModelFiles, find_files
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.projector_resolver import FoundProjector
from eaglelocal.hub.target_resolver import FoundTarget, write_target
from eaglelocal.planning.decision import DEFAULT_CTX, Decision
from eaglelocal.text.reasoning.model_families import read_template_features


def resolve(options: RunOptions, *, on_progress: Progress) -> Plan:
    """Return the plan of the options without planning: what they leave open has its default. Raises as `make_plan`."""
    return make_plan(Decision(options), on_progress=on_progress)


def make_plan(decision: Decision, *, on_progress: Progress) -> Plan:
    """Return the plan, with all its files on disk.

    Raises UsageError, ModelFileError, IncompatibleError or ResourceError.
    """
    options = decision.options
    spec = read_spec(options)
    files = decision.files or locate_files(decision.target, options, on_progress)
    n_ctx = choose_ctx(decision.ctx, files.target)
    projector = FoundProjector() if decision.without_projector else files.projector
    target, draft = write_files(files, decision, on_progress)
    features = read_template_features(target.info.chat_template)
    return Plan(
        target=target.path,
        target_label=target.label,
        projector=projector.path,
        is_projector_required=options.mmproj not in (AUTO, NONE),
        projector_note=projector.note,
        draft_kind=draft.kind,
        draft=draft.path,
        draft_origin=draft.origin,
        draft_base=draft.base,
        draft_version=draft.version,
        draft_label=label_draft(draft, options),
        lookups=options.lookups,
        draft_note=draft.note,
        draft_reason=draft.reason,
        spec=spec,
        n_ctx=n_ctx,
        num_slots=options.parallel,
        threads=options.threads,
        gpu_layers=decision.gpu_layers,
        n_cpu_moe=decision.n_cpu_moe or 0,
        kv_type=decision.kv_type or "f16",
        flash_attn=options.flash_attn,
        swa_full=decision.swa_full,
        device=options.device,
        split=options.split_mode,
        rpc=options.rpc,
        shares=options.shares,
        binds_answers=options.binds_answers,
        is_brief=options.is_brief,
        cache_ram=options.cache_ram,
        lookup_memory=options.lookup_memory,
        cache_disk=options.cache_disk,
        adapters=check_adapters(options.adapters, target.path, files.task) if options.lora else (),
        task=files.task,
        takes_tools=features.takes_tools,
        thinks=features.thinks,
    )


def read_spec(options: RunOptions) -> Spec:
    """Return how to draft, after a look at what else can be wrong before any file is read. Raises UsageError."""
    spec = parse_spec(options.spec)
    check_parallel(options.parallel)
    options.check_cache()
    return spec


def locate_files(target: str, options: RunOptions, on_progress: Progress) -> ModelFiles:
    return find_files(locate_reference(target, options.model_folders), options, on_progress=on_progress)


def check_adapters(adapters: tuple[AdapterFile, ...], target: Path, task: ModelTask) -> tuple[AdapterFile, ...]:
    """Return the adapters. Raises UsageError, ModelFileError or IncompatibleError if one cannot be used."""
    if task is not ModelTask.TEXT:
        raise UsageError("--lora is for models that write text", hint="leave --lora out")
    header = read_header(target)
    for adapter in adapters:
        check_adapter(adapter.path.name, read_adapter(read_header(adapter.path)), header)
    return adapters


def check_parallel(parallel: int) -> None:
    """Raise UsageError if there cannot be so many slots."""
    if not 1 <= parallel <= MAX_SLOTS:
        raise UsageError(f"--parallel must lie between 1 and {MAX_SLOTS}, not {parallel}")


def label_draft(draft: FoundDraft, options: RunOptions) -> str:
    """Return what is shown of the draft: its model, and drafters without a model that were named."""
    if draft.kind == NONE:
        return draft.label
    return describe_draft("" if draft.kind == NGRAM else draft.label, options.lookups)


def write_files(files: ModelFiles, decision: Decision, on_progress: Progress) -> tuple[FoundTarget, FoundDraft]:
    """Return target and draft as they are loaded, after writing what is made of other files and missing."""
    target = write_target(files.target, on_progress=on_progress)
    if decision.without_draft:
        return target, make_ngram_draft(target, decision.without_draft)
    draft = write_draft(files.draft, on_progress=on_progress)
    return target, requantize_draft(draft, decision.options.draft_type, on_progress=on_progress)


def choose_ctx(ctx: int | None, target: FoundTarget) -> int:
    """Return the context of each slot in tokens: `ctx`, else what the model was trained for, at most DEFAULT_CTX.

    Raises UsageError if `ctx` is more than the model was trained for.
    """
    trained = target.info.context_length or DEFAULT_CTX
    check_ctx(ctx, trained, target.label)
    return min(trained, DEFAULT_CTX) if ctx is None else ctx


def check_ctx(ctx: int | None, trained: int, label: str) -> None:
    """Raise UsageError if `ctx` is set, and more than the model of this name was trained for."""
    if ctx is not None and not 1 <= ctx <= trained:
        message = f"--ctx must lie between 1 and {trained}, which {label} was trained for, not {ctx}"
        raise UsageError(message, hint=f"`--ctx {trained}`")
