"""The composition root, run inside the engine process: builds an Engine from a Plan.

The only module that knows model, contexts, drafters, policy, scheduler and engine together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path

from eaglelocal.backend.block_head_context import BlockFormat, LlamaBlockContext
from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.cpu_repack import AMX
from eaglelocal.backend.dry_run import DryRunPart
from eaglelocal.backend.head_context import HeadNorms, LlamaHeadContext
from eaglelocal.backend.image_encoder import LlamaImageReader, ReaderParams
from eaglelocal.backend.kv_cells import buffer_bytes, host_bytes
from eaglelocal.backend.llama_library import LlamaLibrary, load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.backend.weight_loading import LAID_OUT
from eaglelocal.core.events import EngineInfo, LoadProgress
from eaglelocal.core.plan import Plan
from eaglelocal.drafters.block_drafter import BlockDrafter
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.drafters.target_cache import TargetCacheDrafter
from eaglelocal.engine.engine import Engine, Inputs
from eaglelocal.engine.input_queue import threaded_lanes
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.architectures import FinalState
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.draft_pairing import HeadInfo, branch_problem, draft_warnings, read_model
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.image_limits import max_image_tokens
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.projector import kind_of_projector
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.recommended_sampling import recommended_sampling
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.loading.calibration_store import acceptance_key_of, key_of
from eaglelocal.loading.calibration_store import load as load_learned
from eaglelocal.loading.calibration_store import save as save_learned
from eaglelocal.loading.fit import FittedPlan, fit_plan
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.probe import probe
from eaglelocal.probe.thread_count import count_usable_threads
from eaglelocal.scheduler.checkpoints import Checkpoints
from eaglelocal.scheduler.host_swap import MIN_SWAP_ROWS, MIN_SWAP_ROWS_WITH_STATES, HostSwap
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.scheduler import Scheduler, check_batch
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DrafterSet
from eaglelocal.text.templates.chat_template import ChatTemplate, chat_template
from eaglelocal.text.templates.render_process import RenderProcess

Report = Callable[[LoadProgress], None]
MOST_CHECKPOINT_BYTES, CHECKPOINT_PART = 2**30, 16  # limit, and divisor of the free memory
MOST_SWAP_BYTES, SWAP_PART = 2**33, 8
ROW_END = "v.token_embd.img_break"  # tensor of projectors like Pixtral's
MIN_FORK, FORK_PART = 32, 512  # tokens; n_ctx / FORK_PART tokens take longer to prefill than copying a whole cache


def build(plan: Plan, report: Report) -> Engine:
    """Load everything the plan names. Raises EagleLocalError, after freeing what was loaded."""
    with contextlib.ExitStack() as opened:
        engine = EngineBuilder(plan, report, opened).build()
        engine.on_close(opened.pop_all())
    return engine


class EngineBuilder:
    """Opens target, draft and engine in order, and registers each on the stack, which closes them in reverse."""

    def __init__(self, plan: Plan, report: Report, opened: contextlib.ExitStack) -> None:
        self._plan, self._report, self._opened = plan, report, opened
        self._started_at = time.perf_counter()
        self._threads = plan.threads or count_usable_threads()
        self._machine = probe()
        self._model_bytes = 0  # weights of all models loaded
        self._num_branches = 0  # in each slot's trees
        self._can_cut, self._can_swap, self._has_windows = True, False, False
        self._gpus: tuple[str, ...] = ()
        self._num_checkpoints = 0
        self._min_fork: int | None = None  # prompt tokens from which on copying another slot's cells pays off

    def build(self) -> Engine:
        check_batch(self._plan.num_slots, self._plan.n_batch)
        renderer = self._start_renderer()
        library = load_library()
        self._plan = with_draft_there(self._plan)
        parts = fit_plan(self._plan, self._machine, library, threads=self._threads)
        plan, target, draft = parts.plan, parts.target, parts.draft
        info = read_model(target.header)
        self._plan = plan
        self._num_branches = target.context.num_branches // plan.num_slots
        self._min_fork = None if branch_problem(parts.shape) else min_fork(plan)
        self._can_cut, self._can_swap, self._gpus = parts.can_cut, parts.can_swap, parts.gpus
        self._has_windows = parts.shape.has_windows
        self._num_checkpoints = num_checkpoints(parts.shape.state_bytes, plan.num_slots, self._machine)
        model = self._model(library, target, share=(0.0, 0.9))
        template = chat_template(model.vocabulary, renderer)
        wait_for_constraints = self._prepare_constraints(model)
        by_nextn = info.final_state is FinalState.NEXTN or plan.draft_kind == "mtp"
        context = LlamaContext(model, target.context, taps=target.taps, final_by_nextn=by_nextn)
        self._opened.callback(context.close)
        if parts.uses_gpu and target.taps:
            context.run_once()  # allocate tap buffers before the draft is loaded: a later decode could not
        drafters = self._drafters(library, context, draft, model)
        controller = controller_of(plan, drafters, max_siblings=self._num_branches, makes_kernels=parts.uses_gpu)
        images, no_images = self._image_reader(library, model, on_gpu=parts.uses_gpu)
        notes = (
            *filter(None, [no_images, plan.draft_note]),
            *notes_on_draft(draft, target.header, info),
            *notes_on_trees(plan, parts.shape),
            *parts.notes,
            *notes_on_layouts(library, target.header),
        )
        engine = self._engine(library, model, target.header, context, drafters, controller, images, template=template)
        wait_for_constraints()  # so that calibration is not disturbed
        notes = (*notes_on(template), *notes)
        self._calibrate(engine, controller, parts, library)
        self._recall(controller)
        load_s = time.perf_counter() - self._started_at  # mostly calibration
        engine.info = dataclasses.replace(engine.info, load_s=load_s, architecture=info.architecture, notes=notes)
        return engine

    def _start_renderer(self) -> RenderProcess:
        """Start the renderer's process while the models are loaded."""
        renderer = RenderProcess()
        self._opened.callback(renderer.close)
        renderer.start()
        return renderer

    def _prepare_constraints(self, model: LlamaModel) -> Callable[[], None]:
        """Read the vocabulary for constraints in the background; return a function that waits for it.

        It takes a second or more, half of it with the GIL held: too long for the first constrained answer.
        """
        self._opened.callback(model.constraints.close)
        if not self._plan.binds_answers:
            return lambda: None
        preparing = threading.Thread(target=model.constraints.prepare, name="constraints", daemon=True)
        preparing.start()
        self._opened.callback(preparing.join)
        return preparing.join

    def _calibrate(self, engine: Engine, controller: Controller, parts: FittedPlan, library: LlamaLibrary) -> None:
        """Measure what steps cost, starting from the stored costs, and store the result when the engine closes."""
        key = key_of(
            self._plan,
            self._machine,
            parts.target.header,
            parts.draft.header if parts.draft else None,
            threads=self._threads,
            unified=self._plan.is_unified,
            library=library.build,
            is_read=parts.target.placement.reads,
        )
        if parts.uses_gpu:  # takes seconds if the driver has not cached its kernels
            self._report(LoadProgress(1.0, parts.target.header.path.name, "preparing the GPU"))
        engine.warm_up(max_rows=self._max_rows(), stored=load_learned(key), makes_kernels=parts.uses_gpu)

        def keep() -> None:
            controller.learn_costs()  # include the last steps
            save_learned(key, controller.costs.state())

        self._opened.callback(keep)

    def _recall(self, controller: Controller) -> None:
        """Restore this draft's learned acceptance, and store it again when the engine closes."""
        if not self._plan.speculates:
            return
        key, acceptance = acceptance_key_of(self._plan), controller.acceptance
        acceptance.restore(load_learned(key))
        self._opened.callback(lambda: save_learned(key, acceptance.state()))

    def _model(self, library: LlamaLibrary, part: DryRunPart, *, share: tuple[float, float]) -> LlamaModel:
        low, high = share
        path = part.header.path
        self._report(LoadProgress(low, path.name))

        def on_progress(fraction: float) -> None:
            self._report(LoadProgress(low + fraction * (high - low), path.name))

        model = LlamaModel(library, path, part.placement, on_progress=on_progress)
        self._opened.callback(model.close)
        self._model_bytes += model.size_bytes
        return model

    def _max_rows(self) -> int:
        """Return the most rows of one step whose logits are wanted: a root and its draft for every slot."""
        return self._plan.num_slots * (1 + self._plan.max_draft)

    def _drafters(
        self, library: LlamaLibrary, context: LlamaContext, part: DryRunPart | None, target: LlamaModel
    ) -> tuple[Drafter, ...]:
        """Return the drafters, cheapest first: where a lookup is promising, the other drafter is not run."""
        if not self._plan.speculates:
            return ()
        lookup = Ngram(self._plan.n_ctx)
        return (lookup,) if part is None else (lookup, self._model_drafter(library, context, part, target))

    def _model_drafter(
        self, library: LlamaLibrary, context: LlamaContext, part: DryRunPart, target: LlamaModel
    ) -> Drafter:
        branches = 2 if self._num_branches else 1
        is_mtp = isinstance(part.info, MtpInfo)
        is_loaded = is_mtp and part.header.path == target.path
        draft = target if is_loaded else self._model(library, part, share=(0.9, 1.0))
        if isinstance(part.info, MtpInfo):
            reads_cache = part.info.reads_cache
            layer = LlamaHeadContext(draft, part.context, target=context, has_encoder=False, reads_cache=reads_cache)
            self._opened.callback(layer.close)
            taps = (target.n_layer,)
            return (
                TargetCacheDrafter(layer, taps) if reads_cache else Eagle3(layer, taps, branches=branches, name="mtp")
            )
        if isinstance(part.info, EagleInfo):
            norms = head_norms(part.header, part.info)
            head_context = LlamaHeadContext(draft, part.context, target=context, norms=norms)
            self._opened.callback(head_context.close)
            return Eagle3(head_context, part.info.target_layers, branches=branches, window=part.info.window)
        if isinstance(part.info, BlockInfo):
            info = part.info
            lattice = info.lattice.num_candidates if info.lattice else 0
            assert info.mask is not None  # checked by read_draft
            block = BlockFormat(info.mask, info.skips_root, info.is_causal, lattice)
            block_context = LlamaBlockContext(draft, part.context, block, target=context)
            self._opened.callback(block_context.close)
            return BlockDrafter(block_context, info.target_layers, block_size=info.max_draft, branches=branches)
        draft_context = LlamaContext(draft, part.context)
        self._opened.callback(draft_context.close)
        return DraftModel(draft_context, branches=branches)

    def _engine(
        self,
        library: LlamaLibrary,
        model: LlamaModel,
        target: Header,
        context: LlamaContext,
        drafters: tuple[Drafter, ...],
        controller: Controller,
        images: LlamaImageReader | None,
        *,
        template: ChatTemplate,
    ) -> Engine:
        plan = self._plan
        buffers = buffer_bytes(library.log)
        info = EngineInfo(
            target=plan.target_label,
            draft=plan.draft_label if drafters else "none",
            draft_reason="" if drafters else plan.draft_reason,
            n_ctx=plan.n_ctx,
            num_slots=plan.num_slots,
            n_vocab=model.vocabulary.n_tokens,
            chat_template=model.vocabulary.chat_template is not None,
            threads=self._threads,
            model_bytes=self._model_bytes,
            load_s=0.0,  # set at the end
            library=library.build,
            cache_bytes=buffers.get("KV", 0) + buffers.get("RS", 0),
            compute_bytes=buffers.get("compute", 0) + buffers.get("output", 0),
            trained_ctx=model.trained_ctx,
            max_draft=plan.max_draft,
            sampling=recommended_sampling(target),
            template=model.vocabulary.chat_template or "",
            bos_text=model.vocabulary.bos_text,
            eos_text=model.vocabulary.eos_text,
            sees_images=images is not None,
        )
        return Engine(
            context=context,
            vocabulary=model.vocabulary,
            inputs=Inputs(
                constraints=model.constraints, image_reader=images, template=template, lanes=threaded_lanes()
            ),
            drafters=drafters,
            controller=controller,
            scheduler=self._scheduler(library, model, drafters),
            info=info,
        )

    def _image_reader(
        self, library: LlamaLibrary, model: LlamaModel, *, on_gpu: bool
    ) -> tuple[LlamaImageReader | None, str]:
        """Return the image reader, or None and why there is none.

        A projector that merely lies beside the model must not keep the model from loading.
        """
        plan = self._plan
        if plan.projector is None:
            return None, plan.projector_note
        try:
            return self._opened_reader(library, model, plan.projector, on_gpu=on_gpu), ""
        except EagleLocalError as error:
            if plan.is_projector_required:
                raise
            return None, f"no images: {error.message}"

    def _opened_reader(
        self, library: LlamaLibrary, model: LlamaModel, projector: Path, *, on_gpu: bool
    ) -> LlamaImageReader:
        plan = self._plan
        self._report(LoadProgress(1.0, projector.name))
        header = read_header(projector)
        kind = kind_of_projector(header)
        params = ReaderParams(
            threads=self._threads,
            on_gpu=on_gpu,
            n_batch=plan.n_batch,
            device=plan.device,
            row_end=read_tensor(header.path, header, ROW_END) if ROW_END in header.tensors else None,
            max_tokens=max_image_tokens(kind, n_ctx=plan.n_ctx, n_batch=plan.n_batch),
        )
        reader = LlamaImageReader(library, model, projector, params)
        self._opened.callback(reader.close)
        return reader

    def _scheduler(self, library: LlamaLibrary, model: LlamaModel, drafters: tuple[Drafter, ...]) -> Scheduler:
        plan = self._plan
        prefix_cache = PrefixCache(
            plan.num_slots,
            reuse_margin=max((drafter.reuse_margin for drafter in drafters), default=0),
            can_cut=self._can_cut and not model.is_hybrid,
            checkpoints=Checkpoints(self._num_checkpoints) if model.is_hybrid else None,
            min_fork=self._min_fork,
            swap=self._host_swap(library, model),
        )
        return Scheduler(
            n_ctx=plan.n_ctx,
            n_batch=plan.n_batch,
            prefix_cache=prefix_cache,
            most_drafted=plan.max_draft if model.is_hybrid else None,
        )

    def _host_swap(self, library: LlamaLibrary, model: LlamaModel) -> HostSwap | None:
        """Return the store of evicted conversations; None if they cannot be swapped."""
        plan = self._plan
        if not self._can_swap or plan.is_brief:
            return None
        loaded_bytes = host_bytes(library.log, self._gpus, lends_memory=self._machine.lends_memory)
        most_bytes = swap_bytes(plan, self._machine.memory.available_bytes, loaded_bytes)
        min_rows = MIN_SWAP_ROWS_WITH_STATES if model.is_hybrid else MIN_SWAP_ROWS
        return HostSwap(most_bytes, min_rows=min_rows, has_windows=self._has_windows)


def min_fork(plan: Plan) -> int:
    """Return from how many prompt tokens on another slot's cells are copied.

    In a unified cache a copy only marks cells; a cache per slot is copied as a whole, whatever part is wanted.
    """
    return MIN_FORK if plan.is_unified else max(MIN_FORK, plan.n_ctx // FORK_PART)


def swap_bytes(plan: Plan, available_bytes: int | None, loaded_bytes: int) -> int:
    """Return the bytes of RAM for evicted conversations.

    available_bytes  before anything was loaded: pages of mapped weights always count as available
    """
    if plan.cache_ram is not None:
        return plan.cache_ram * 2**20
    return min(MOST_SWAP_BYTES, max((available_bytes or 0) - loaded_bytes, 0) // SWAP_PART)


def num_checkpoints(state_bytes: int, num_slots: int, machine: Machine) -> int:
    """Return how many recurrent states are kept for reuse: two per slot, within a small part of the free memory."""
    if not state_bytes:
        return 0
    room = min(MOST_CHECKPOINT_BYTES, (machine.memory.available_bytes or 0) // CHECKPOINT_PART)
    return min(2 * num_slots, room // state_bytes)


def controller_of(
    plan: Plan, drafters: tuple[Drafter, ...], *, max_siblings: int = 0, makes_kernels: bool = False
) -> Controller:
    """Return the controller of these drafters. A lookup is the primary drafter only if it is the only one."""
    names = [drafter.name for drafter in drafters]
    primary = names[-1] if names else None
    lookups = tuple(name for name in names if name != primary)
    block_size = drafters[-1].block_size if drafters else 1
    return Controller(
        plan.spec,
        DrafterSet(primary, lookups, block_size),
        StepCosts(makes_kernels=makes_kernels),
        leveled=not plan.is_unified,
        max_siblings=max_siblings,
        max_draft=plan.max_draft or None,
    )


def notes_on(template: ChatTemplate) -> tuple[str, ...]:
    """Return notes for the user about the chat template. An unusable one fails chats, not the loading."""
    try:
        template.check()
    except EagleLocalError as error:
        return (error.message,)
    return (template.note,) if template.note else ()


def notes_on_layouts(library: LlamaLibrary, target: Header) -> tuple[str, ...]:
    """Return a note if weights decode more slowly than necessary."""
    if AMX not in library.layouts or target.main_type not in LAID_OUT:
        return ()
    return ("no layout for this processor is used: llama.cpp could not be kept from AMX, where its kernels crash",)


def notes_on_trees(plan: Plan, target: ModelShape) -> tuple[str, ...]:
    """Return a note why drafts are chains, if another setting could make them trees."""
    if not plan.speculates or plan.draft_kind == "ngram":
        return ()
    if problem := branch_problem(target):
        return (f"drafts are chains: {problem}",)
    return () if plan.is_unified else ("drafts are chains: each slot has a cache of its own here",)


def with_draft_there(plan: Plan) -> Plan:
    """Return the plan with the original head if its light copy was deleted meanwhile, as by cleaning caches."""
    if plan.draft is None or plan.draft_origin is None or plan.draft.is_file():
        return plan
    note = "the copy of the head in fewer bits is gone: it drafts as it is, which costs more"
    return dataclasses.replace(plan, draft=plan.draft_origin, draft_origin=None, draft_note=note)


def notes_on_draft(part: DryRunPart | None, beside: Header, target: ModelInfo) -> tuple[str, ...]:
    """Return notes about a draft that fits its target only partly.

    It is not refused: it drafts badly, but never changes the answers' distribution.
    """
    if part is None:
        return ()
    return (*draft_warnings(part.info, part.header, beside=beside, target=target), *notes_on_reach(part))


def notes_on_reach(part: DryRunPart) -> tuple[str, ...]:
    """Return a note about a draft model whose context ends before the target's."""
    if isinstance(part.info, HeadInfo):
        return ()
    trained, n_ctx = part.info.context_length, part.context.n_ctx
    if not 0 < trained < n_ctx:
        return ()
    return (f"the draft model was trained for {trained} of {n_ctx} positions; behind them fewer drafts are accepted",)


def head_norms(header: Header, info: EagleInfo) -> HeadNorms:
    """Return the head's norms, by its file; llama.cpp ignores the keys that flag them."""
    return HeadNorms(
        tap_eps=info.fc_norm_eps if info.fc_norm else None,
        output_gains=read_tensor(header.path, header, "output_norm.weight") if info.norm_output else None,
        output_eps=info.rms_eps,
    )
