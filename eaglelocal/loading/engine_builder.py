"""The composition root, run inside the engine process: builds an Engine from a Plan.

The only module that knows model, contexts, drafters, policy, scheduler and engine together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import NamedTuple

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.dry_run import DryRunPart, sum_buffer_bytes, sum_host_bytes
from eaglelocal.backend.image_encoder import LlamaImageReader
from eaglelocal.backend.llama_library import (
    LlamaLibrary,
    connect_rpc_servers,
    free_memory,
    load_bindings,
    load_library,
)
from eaglelocal.backend.model import LlamaModel
from eaglelocal.backend.weight_loading import Range, moving_weights
from eaglelocal.core.adapters import usual_mix
from eaglelocal.core.events import EngineInfo, LoadProgress, Report
from eaglelocal.core.plan import Owners, Plan
from eaglelocal.core.request import MAX_DRAFT_TOKENS
from eaglelocal.drafters.drafter import Drafter, Lookup
from eaglelocal.drafters.head_holder import HeadHolder
from eaglelocal.engine.conversation_files import ConversationFiles
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.input_processor import InputProcessor
from eaglelocal.engine.input_queue import start_executors
from eaglelocal.engine.warmup import WaitUntilQuiet, Warmup
from eaglelocal.errors import LibraryError, RequestError
from eaglelocal.gguf.draft_pairing import branch_problem, read_model
from eaglelocal.gguf.model_info import fingerprint_model, read_recommended_sampling
from eaglelocal.loading.calibration_store import load as load_learned
from eaglelocal.loading.calibration_store import make_acceptance_key, make_cost_key
from eaglelocal.loading.calibration_store import save as save_learned
from eaglelocal.loading.draft_loader import HeadOpener, hold_head, open_drafters
from eaglelocal.loading.fit import fit_plan
from eaglelocal.loading.load_notes import TemplateCheck, explain_full_cards, list_notes, open_conversation_files
from eaglelocal.loading.model_loader import PlanLoader
from eaglelocal.probe.cpuinfo import count_usable_threads
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.probe import probe
from eaglelocal.probe.rpc_servers import find_rpc_servers
from eaglelocal.processes.this_process import BackgroundWork
from eaglelocal.scheduler.host_swap import MIN_SWAP_ROWS, MIN_SWAP_ROWS_WITH_STATES, HostSwap
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.scheduler import Scheduler, check_batch
from eaglelocal.scheduler.slot import Checkpoints
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DrafterSet
from eaglelocal.text.reasoning.model_families import read_template_features
from eaglelocal.text.templates.chat_template import ChatTemplate, chat_template, make_render_process

MAX_CHECKPOINT_BYTES, CHECKPOINT_PART = 2**30, 16  # limit, and divisor of the free memory
MAX_SWAP_BYTES, SWAP_PART = 2**33, 8
# tokens of a prompt from which on they are copied from another slot; n_ctx / FORK_PART tokens take longer to prefill
# than copying a whole cache
MIN_FORK, FORK_PART = 32, 512


def prepare() -> None:
    """Load everything that can be loaded without a plan."""
    with contextlib.suppress(LibraryError):  # `build` raises it again
        load_bindings()


def open_library(plan: Plan, machine: Machine) -> LlamaLibrary:
    """Return llama.cpp, connected to the plan's rpc-servers. Raises the errors of `find_rpc_servers`."""
    library = load_library()
    library.log.forget_buffers()
    servers = find_rpc_servers(plan.rpc, machine.llama_cpp.backends)
    connect_rpc_servers(library, [each.address for each in servers])
    return library


def build(plan: Plan, report: Report) -> Engine:
    """Load everything that the plan names, in order; the engine closes it. Raises EagleLocalError after closing it."""
    started_at = time.perf_counter()
    machine, threads = probe(), plan.threads or count_usable_threads()
    check_batch(plan.num_slots, plan.n_batch)
    with contextlib.ExitStack() as opened:
        renderer = opened.enter_context(contextlib.closing(make_render_process()))
        library = open_library(plan, machine)
        parts = fit_plan(restore_original_draft(plan), machine, library, threads=threads)
        plan = parts.plan
        loader = PlanLoader(parts=parts, library=library, threads=threads, report=report, opened=opened)
        target = loader.load_target()
        info = read_model(parts.target.header)
        template = chat_template(target.vocabulary, renderer)
        template_check = TemplateCheck(template, is_urgent=plan.is_brief)
        constraints = BackgroundWork("constraints")
        context = loader.open_target_context(target, info)
        draft = open_draft(loader, machine, target, context)
        drafters = draft.drafters
        controller = make_controller(plan, drafters, max_siblings=parts.num_branches, makes_kernels=parts.uses_gpu)
        image_reader, no_images = loader.open_image_reader(target)
        files = open_conversation_files(parts, library.build)
        scheduler = make_scheduler(loader, machine, target, drafters, files)
        description = describe_engine(loader, target, draft)
        input_processor = make_input_processor(description, target, context, image_reader, template)
        lacks = (*template_check.list_notes(), no_images, *share_prefixes(input_processor, plan.owners))
        notes = tuple(list_notes(parts, info, library, lacks, description.max_draft))
        left = free_memory(library, ram_bytes=None, unified=machine.lends_memory)
        notes += tuple(explain_full_cards(machine, left))
        warmup = make_warmup(plan, context, drafters, constraints.wait)
        idle_work = calibrate(loader, machine, warmup, controller)
        restore_acceptance(loader, controller, drafters)
        description = dataclasses.replace(
            description, notes=notes, architecture=info.architecture, sees_images=image_reader is not None
        )
        load_s = time.perf_counter() - started_at  # mostly calibration
        loader.prepare_constraints(target, constraints)
        opened.enter_context(moving_weights(list_moves(parts.target, target)))
        draft.opened.enter_context(moving_weights(list_moves(parts.draft, draft.model)))
        engine = Engine(
            context=context,
            input_processor=input_processor,
            drafters=drafters,
            controller=controller,
            scheduler=scheduler,
            info=dataclasses.replace(description, load_s=load_s, efforts=template.efforts),
            input_executors=start_executors(report=report, files=files),
            close=opened.pop_all().close,
        )
        engine.idle_work = idle_work
        return engine


class OpenDraft(NamedTuple):
    """The drafters, and the draft's model if it is not the target's; its stack closes what was opened for it."""

    drafters: tuple[Drafter, ...]
    model: LlamaModel | None
    opened: contextlib.ExitStack


def open_draft(loader: PlanLoader, machine: Machine, target: LlamaModel, context: LlamaContext) -> OpenDraft:
    """Open the drafters. If their head can be exchanged, the engine closes the head in use at that time."""
    own = dataclasses.replace(loader, opened=contextlib.ExitStack())
    loader.opened.callback(own.opened.close)
    model = own.load_draft(target)
    opener = HeadOpener(loader, machine, target, context)
    drafters = hold_head(own, open_drafters(own, model, target, context), opener)
    for drafter in drafters:
        if isinstance(drafter, HeadHolder):
            loader.opened.callback(drafter.close)
    return OpenDraft(drafters, None if model is target else model, own.opened)


def list_moves(part: DryRunPart | None, model: LlamaModel | None) -> list[Range]:
    """Return where weights of a model are mapped that move into huge pages."""
    return model.mapped if model is not None and part is not None and part.placement.moves_weights else []


def describe_engine(loader: PlanLoader, target: LlamaModel, draft: OpenDraft) -> EngineInfo:
    """Describe the engine, from its plan, its target and llama.cpp's log of the contexts."""
    plan, vocabulary = loader.parts.plan, target.vocabulary
    depths = [drafter.traits.max_depth for drafter in draft.drafters if not isinstance(drafter, Lookup)]
    buffers = sum_buffer_bytes(loader.library.log)
    return EngineInfo(
        target=plan.target_label,
        weights=fingerprint_model(plan.target),
        draft=plan.draft_label if draft.drafters else "none",
        draft_reason="" if draft.drafters else plan.draft_reason,
        n_ctx=plan.n_ctx,
        num_slots=plan.num_slots,
        n_vocab=vocabulary.n_tokens,
        chat_template=vocabulary.chat_template is not None,
        threads=loader.threads,
        model_bytes=target.size_bytes + (draft.model.size_bytes if draft.model else 0),
        load_s=0.0,
        library=loader.library.build,
        cache_bytes=buffers.get("KV", 0) + buffers.get("RS", 0),
        compute_bytes=buffers.get("compute", 0) + buffers.get("output", 0),
        trained_ctx=target.trained_ctx,
        max_draft=min(plan.max_draft, *depths, MAX_DRAFT_TOKENS),  # lookups draft none where there is a model
        sampling=read_recommended_sampling(loader.parts.target.header),
        template=vocabulary.chat_template or "",
        takes_tools=read_template_features(vocabulary.chat_template or "").takes_tools,
        bos_text=vocabulary.bos_text,
        eos_text=vocabulary.eos_text,
        adapters=plan.adapters,
        flash_attn=plan.flash_attn,
    )


def make_input_processor(
    description: EngineInfo,
    target: LlamaModel,
    context: LlamaContext,
    image_reader: LlamaImageReader | None,
    template: ChatTemplate,
) -> InputProcessor:
    input_processor = InputProcessor(
        target.vocabulary,
        context.n_ctx,
        target.constraints,
        image_reader=image_reader,
        trained_ctx=description.trained_ctx,
        sampling=description.sampling,
        template=template,
    )
    input_processor.offer_adapters(description.adapters)
    return input_processor


def share_prefixes(input_processor: InputProcessor, owners: Owners) -> list[str]:
    """Let owners share beginnings of system prompts; return a note for each that this model cannot share."""
    notes = []
    for text in owners.shared_prefixes:
        try:
            input_processor.share(text, owners.thinking)
        except RequestError as error:
            notes.append(f"--shared-prefix: {error.message}")
    return notes


def restore_original_draft(plan: Plan) -> Plan:
    """Return the plan with the original head if its requantized copy is gone, for example from a cleared cache.

    If a learned version is gone, return it with the head from which it was learned.
    """
    if plan.draft is None or plan.draft.is_file():
        return plan
    if plan.draft_origin is not None and plan.draft_origin.is_file():
        note = "the requantized copy of the head is gone: the original drafts instead, at a higher cost"
        return dataclasses.replace(plan, draft=plan.draft_origin, draft_origin=None, draft_note=note)
    if plan.draft_base is None:
        return plan
    note = f"learned version {plan.draft_version} is gone: the head that it was learned from drafts instead"
    return dataclasses.replace(plan.with_head(plan.draft_base, 0), draft_note=note)


def make_controller(
    plan: Plan, drafters: tuple[Drafter, ...], *, max_siblings: int = 0, makes_kernels: bool = False
) -> Controller:
    """Return the controller of these drafters: lookups, and at most one drafter with a model."""
    lookups = tuple(drafter.traits.name for drafter in drafters if isinstance(drafter, Lookup))
    described = DrafterSet(None, lookups)
    traits = next((drafter.traits for drafter in drafters if not isinstance(drafter, Lookup)), None)
    if traits is not None:
        sizes = traits.block_size, traits.num_branches, traits.max_depth
        described = DrafterSet(traits.name, lookups, *sizes, traits.max_unread)
    return Controller(
        plan.spec,
        described,
        StepCosts(makes_kernels=makes_kernels),
        leveled=not plan.is_unified,
        max_siblings=max_siblings,
        max_draft=plan.max_draft or None,
        adapters=usual_mix(plan.adapters),
    )


def make_scheduler(
    loader: PlanLoader,
    machine: Machine,
    model: LlamaModel,
    drafters: tuple[Drafter, ...],
    files: ConversationFiles | None = None,
) -> Scheduler:
    parts = loader.parts
    plan, shape = parts.plan, parts.shape
    num_kept = count_checkpoints(shape.state_bytes, plan.num_slots, machine)
    # In a unified cache a copy only marks cells; with a cache for each slot the whole cache is copied, whatever part is
    # wanted.
    min_fork = MIN_FORK if plan.is_unified else max(MIN_FORK, plan.n_ctx // FORK_PART)
    prefix_cache = PrefixCache(
        plan.num_slots,
        reuse_margin=max((drafter.traits.reuse_margin for drafter in drafters), default=0),
        can_cut=parts.can_cut and not model.is_hybrid,
        checkpoints=Checkpoints(num_kept) if model.is_hybrid else None,
        min_fork=None if branch_problem(shape) else min_fork,
        swap=make_host_swap(loader, machine, model),
        may_store=None if files is None else files.wants,
    )
    return Scheduler(
        n_ctx=plan.n_ctx,
        n_batch=plan.n_batch,
        prefix_cache=prefix_cache,
        most_drafted=plan.max_draft if model.is_hybrid else None,
    )


def make_host_swap(loader: PlanLoader, machine: Machine, model: LlamaModel) -> HostSwap | None:
    """Return the store of evicted conversations; None if they cannot be swapped."""
    parts = loader.parts
    if not parts.can_swap or parts.plan.is_brief:
        return None
    loaded_bytes = sum_host_bytes(loader.library.log, parts.gpus, lends_memory=machine.lends_memory)
    most_bytes = choose_swap_bytes(parts.plan, machine.memory.available_bytes, loaded_bytes)
    min_rows = MIN_SWAP_ROWS_WITH_STATES if model.is_hybrid else MIN_SWAP_ROWS
    return HostSwap(most_bytes, min_rows=min_rows, has_windows=parts.shape.has_windows)


def choose_swap_bytes(plan: Plan, available_bytes: int | None, loaded_bytes: int) -> int:
    """Return the bytes of RAM for evicted conversations.

    available_bytes  before anything was loaded: pages of mapped weights always count as available
    """
    if plan.cache_ram is not None:
        return plan.cache_ram * 2**20
    return min(MAX_SWAP_BYTES, max((available_bytes or 0) - loaded_bytes, 0) // SWAP_PART)


def count_checkpoints(state_bytes: int, num_slots: int, machine: Machine) -> int:
    """Return how many recurrent states to keep for reuse: two per slot, within a small part of the free memory."""
    if not state_bytes:
        return 0
    max_bytes = min(MAX_CHECKPOINT_BYTES, (machine.memory.available_bytes or 0) // CHECKPOINT_PART)
    return min(2 * num_slots, max_bytes // state_bytes)


def make_warmup(
    plan: Plan, context: LlamaContext, drafters: tuple[Drafter, ...], wait_for_constraints: WaitUntilQuiet
) -> Warmup:
    """Return the warm-up, whose measurements wait for threads that were started before."""

    def wait(timeout_s: float | None) -> bool:
        return wait_for_constraints(timeout_s) and context.population.wait(timeout_s)

    max_outputs = plan.num_slots * (1 + plan.max_draft)  # a root and its draft for every slot
    return Warmup(context, drafters, max_outputs=max_outputs, wait_until_quiet=wait)


def calibrate(loader: PlanLoader, machine: Machine, warmup: Warmup, controller: Controller) -> Iterator[None]:
    """Measure what steps cost, starting from the stored costs, and store the result when the engine closes.

    Returns the measurements that can wait; see Warmup.measure.
    """
    parts = loader.parts
    plan = parts.plan
    key = make_cost_key(
        plan,
        machine,
        parts.target.header,
        parts.draft.header if parts.draft else None,
        threads=loader.threads,
        unified=plan.is_unified,
        library=loader.library.build,
        is_read=parts.target.placement.no_mmap or parts.target.placement.moves_weights,
    )
    if parts.uses_gpu:  # takes seconds if the driver has not cached its kernels
        loader.report(LoadProgress(1.0, parts.target.header.path.name, "preparing the GPU"))
    idle_work = warmup.measure(
        controller.costs, num_slots=plan.num_slots, stored=load_learned(key), makes_kernels=parts.uses_gpu
    )

    def store_costs() -> None:
        controller.learn_costs()  # include the last steps
        save_learned(key, controller.costs.state())

    loader.opened.callback(store_costs)
    return idle_work


def restore_acceptance(loader: PlanLoader, controller: Controller, drafters: tuple[Drafter, ...]) -> None:
    """Restore this draft's learned acceptance, and store it when the engine closes, for the head in use at that time.

    A learned version without statistics begins with the acceptance of the head that it was learned from.
    """
    plan, acceptance = loader.parts.plan, controller.acceptance
    if not plan.speculates:
        return
    known = load_learned(make_acceptance_key(plan))
    if known is None and plan.draft_base is not None:
        known = load_learned(make_acceptance_key(dataclasses.replace(plan, draft=plan.draft_base)))
    acceptance.restore(known)

    def store() -> None:
        holder = next((drafter for drafter in drafters if isinstance(drafter, HeadHolder)), None)
        with contextlib.suppress(OSError):  # the file of a learned version was deleted meanwhile
            key = make_acceptance_key(dataclasses.replace(plan, draft=holder.path) if holder else plan)
            save_learned(key, acceptance.state())

    loader.opened.callback(store)
