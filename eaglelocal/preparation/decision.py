"""Define the result of planning: values for the options that a person left open. The options are never changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.catalog.reference import DEMO, EmbeddedModel
from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.draft import describe_draft
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import MAX_SLOTS, NO_ROOM_FOR_IMAGES, PIECES, Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Spec, parse_spec
from eaglelocal.core.run_options import AUTO, NGRAM, NONE, RunOptions
from eaglelocal.errors import IncompatibleError, UsageError
from eaglelocal.gguf.lora_adapter import check_adapter, read_adapter
from eaglelocal.gguf.model_shape import describe_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.draft_resolver import (
    FoundDraft,
    ModelFiles,
    find_files,
    make_ngram_draft,
    requantize_draft,
    write_draft,
)
from eaglelocal.hub.inflation.generated_files import Progress
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.projector_resolver import FoundProjector
from eaglelocal.hub.target_resolver import NATIVE, FoundTarget, find_demo, write_target
from eaglelocal.memory.budget import Needs
from eaglelocal.planning.candidate import Candidate, offload_text
from eaglelocal.planning.machine_spec import select_gpus
from eaglelocal.planning.plan_search import find_refusal, limit_options
from eaglelocal.preparation.machines import add_servers, this_machine
from eaglelocal.preparation.models import LocalModel, make_demo_option
from eaglelocal.text.reasoning.model_families import read_template_features

DEFAULT_CTX = 4096  # if nothing was planned, because there is no GPU or the model is embedded


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice for each option that was left open; explicit options take precedence.

    chosen             the reference of the chosen model, if no target was named
    files              the files of the run; None: they are found when the plan is made
    models_on_disk     the models that the target was chosen among, if none was named
    candidate          how the model runs here; None: not planned, the defaults apply
    without_draft      the reason why the draft on disk is not loaded; empty: it is, or there is none
    without_projector  whether the projector on disk is left out: memory is short, or it would cost too much speed
    swa_full           as in core/plan.py
    intro              what was chosen, for people
    fits               False if nothing is known to fit
    """

    options: RunOptions
    chosen: str = ""
    files: ModelFiles | None = None
    models_on_disk: tuple[LocalModel, ...] = ()
    candidate: Candidate | None = None
    without_draft: str = ""
    without_projector: bool = False
    swa_full: bool | None = None
    intro: str = ""
    fits: bool = True

    @property
    def target(self) -> str:
        """Return the reference of the model."""
        return self.chosen or DEMO if self.options.target is None else self.options.target

    @property
    def needs(self) -> Needs:
        """Return the memory that the model needs; empty: unknown."""
        return () if self.candidate is None else self.candidate.memory.buffers

    @property
    def ctx(self) -> int | None:
        return self.options.ctx if self.candidate is None else self.candidate.setup.n_ctx

    @property
    def kv_type(self) -> str | None:
        return self.options.kv_type if self.candidate is None else self.candidate.setup.kv_type

    @property
    def gpu_layers(self) -> int | None:
        """Return the layers on GPUs; None: all."""
        explicit = self.options.gpu_layers
        return explicit if explicit is not None or self.candidate is None else self.candidate.gpu_layers

    @property
    def n_cpu_moe(self) -> int | None:
        return self.options.n_cpu_moe if self.candidate is None else self.candidate.n_cpu_moe or None

    @property
    def shares(self) -> tuple[float, ...]:
        """Return each GPU's share of the layers; empty: by free memory."""
        explicit = self.options.shares
        return explicit if explicit or self.candidate is None else self.candidate.offload.shares

    @property
    def note(self) -> str:
        """Return the unexpected part of the decision, for people; empty if there is none."""
        decided = "; ".join(self._unexpected())
        return f"{self.intro}{': ' if self.intro and decided else ''}{decided}"

    def _unexpected(self) -> Iterator[str]:
        options = self.options
        if self.candidate is None:
            return
        if (options.gpu_layers, options.n_cpu_moe) != (self.gpu_layers, self.n_cpu_moe):
            yield f"{offload_text(self.candidate)}: the GPU cannot hold all"
        if options.kv_type is None and self.kv_type not in (None, "f16"):
            yield f"a cache of {self.kv_type}, because memory is short"
        if self.candidate.setup.n_batch != PIECES[0]:
            yield f"prompts are read {self.candidate.setup.n_batch} tokens at a time, because memory is short"
        if self.without_projector:
            yield NO_ROOM_FOR_IMAGES
        if self.without_draft:
            yield self.without_draft


# ---- resolve: make the plan of a run from what planning decided and the files that it found
#
# Raises here, before any process is started, on whatever would fail or abort later. Files are never downloaded;
# `demo@SIZE`, and other models that are made of a file, are written to the cache on first use, and so is a head's
# copy in fewer bits.
def resolve(options: RunOptions, *, on_progress: Progress) -> Plan:
    """Return the plan of the options without planning; open options have their defaults. Raises as `make_plan`."""
    return make_plan(Decision(options), on_progress=on_progress)


def make_plan(decision: Decision, *, on_progress: Progress) -> Plan:
    """Return the plan, with all its files on disk.

    Raises UsageError, ModelFileError, IncompatibleError or ResourceError.
    """
    options = decision.options
    spec = read_spec(options)
    files = decision.files or locate_files(decision, on_progress)
    adapters = check_adapters(options.adapters, files.target)
    decision = limit_decision(decision, files.target)
    n_ctx = choose_ctx(decision, files.target)
    projector = FoundProjector() if decision.without_projector else files.projector
    target, draft = write_files(files, decision, on_progress)
    features = read_template_features(target.info.chat_template)
    plan = Plan(
        target=target.path,
        target_label=target.label,
        projector=projector.path,
        is_projector_required=options.mmproj not in (AUTO, NONE),
        projector_note=projector.note,
        lookups=options.lookups,
        threads=options.threads,
        overrides=options.overrides,
        flash_attn=options.flash_attn,
        device=options.device,
        rpc=options.rpc,
        binds_answers=options.binds_answers,
        is_brief=options.is_brief,
        cache_ram=options.cache_ram,
        lookup_memory=options.lookup_memory,
        cache_disk=options.cache_disk,
        spec=spec,
        n_ctx=n_ctx,
        num_slots=options.parallel,
        gpu_layers=decision.gpu_layers,
        swa_full=decision.swa_full,
        shares=decision.shares,
        n_cpu_moe=decision.n_cpu_moe or 0,
        n_batch=PIECES[0] if decision.candidate is None else decision.candidate.setup.n_batch,
        kv_type=decision.kv_type or "f16",
        split=options.split_mode,
        adapters=adapters,
        task=files.task,
        takes_tools=features.takes_tools,
        thinks=features.thinks,
    )
    return use_draft(plan, draft)


def use_draft(plan: Plan, draft: FoundDraft) -> Plan:
    return dataclasses.replace(
        plan,
        draft_kind=draft.kind,
        draft=draft.path,
        draft_origin=draft.origin,
        draft_base=draft.base,
        draft_version=draft.version,
        draft_label=draft.label,
        draft_note=draft.note,
        draft_reason=draft.reason,
    )


def read_spec(options: RunOptions) -> Spec:
    """Return how to draft, after a look at what else can be wrong before any file is read. Raises UsageError."""
    spec = parse_spec(options.spec)
    if not 1 <= options.parallel <= MAX_SLOTS:
        raise UsageError(f"--parallel must lie between 1 and {MAX_SLOTS}, not {options.parallel}")
    options.check_cache()
    return spec


def locate_files(decision: Decision, on_progress: Progress) -> ModelFiles:
    """Find the files. Those of the embedded model are written, after a look at what else can be wrong."""
    reference = locate_reference(decision.target, decision.options.model_folders)
    if isinstance(reference, EmbeddedModel) and reference.text != NATIVE and not find_demo(reference.text).complete:
        check_unwritten(decision, reference.text)
    return find_files(reference, decision.options, on_progress=on_progress)


def check_unwritten(decision: Decision, reference: str) -> None:
    """Raise what loading an embedded model that was not written yet would raise, as far as its headers tell."""
    options, catalog = decision.options, load_catalog()
    if options.device or options.split != "layer" or options.override_tensor or options.rpc:
        select_gpus(add_servers(this_machine(catalog.machines), options.rpc), options)
    option = make_demo_option(reference, options, catalog)
    problem, hint = find_refusal(option, options)
    if problem:
        raise UsageError(f"{reference}: {problem}", hint=hint)
    with suppress(IncompatibleError):  # a draft or projector that is there may fit only the larger model
        find_files(EmbeddedModel(NATIVE), options)


def check_adapters(adapters: tuple[AdapterFile, ...], target: FoundTarget) -> tuple[AdapterFile, ...]:
    """Return the adapters. Raises UsageError, ModelFileError or IncompatibleError if one cannot be used."""
    if adapters and target.task is not ModelTask.TEXT:
        raise UsageError("--lora is for models that write text", hint="leave --lora out")
    for adapter in adapters:
        check_adapter(adapter.path.name, read_adapter(read_header(adapter.path)), target.header)
    return adapters


def write_files(files: ModelFiles, decision: Decision, on_progress: Progress) -> tuple[FoundTarget, FoundDraft]:
    """Return target and draft as they are loaded; derived files that are missing are written first.

    The draft's label also names the drafters without a model that the user named.
    """
    target, options = write_target(files.target, on_progress=on_progress), decision.options
    if decision.without_draft:
        draft = make_ngram_draft(target, decision.without_draft)
    else:
        draft = write_draft(files.draft, on_progress=on_progress)
        draft = requantize_draft(draft, options.draft_type, on_progress=on_progress)
    if draft.kind == NONE:
        return target, draft
    label = describe_draft("" if draft.kind == NGRAM else draft.label, options.lookups)
    return target, dataclasses.replace(draft, label=label)


def choose_ctx(decision: Decision, target: FoundTarget) -> int:
    """Return the context of each slot in tokens: as decided, else as trained for, at most DEFAULT_CTX.

    Raises UsageError if a flag asks for more than the model was trained for.
    """
    trained, ctx = target.info.context_length or DEFAULT_CTX, limit_decision(decision, target).ctx
    if ctx is None:
        return min(trained, DEFAULT_CTX)
    if 1 <= ctx <= trained:
        return ctx
    message = f"--ctx must lie between 1 and {trained}, which {target.label} was trained for, not {ctx}"
    raise UsageError(message, hint=f"`--ctx {trained}`")


def limit_decision(decision: Decision, target: FoundTarget) -> Decision:
    """Return the decision with options that the model can take, as planning would have limited them."""
    if decision.candidate is not None or not decision.options.origins:
        return decision
    info = target.info
    limited = limit_options(decision.options, describe_shape(info), info.context_length or DEFAULT_CTX)
    return dataclasses.replace(decision, options=limited)
