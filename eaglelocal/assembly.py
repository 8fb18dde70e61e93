"""The composition root, run inside the engine process: a Plan becomes an Engine.

The only file that names model, contexts, drafters, policy, scheduler and engine together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable

from eaglelocal.backend.attention import scores_bytes, settled
from eaglelocal.backend.context import ContextParams, LlamaContext
from eaglelocal.backend.devices import rooms
from eaglelocal.backend.fit import RAM, Asked, Room, at_least, check_fits, joined
from eaglelocal.backend.head import HeadNorms, LlamaHeadContext
from eaglelocal.backend.library import Library, load_library
from eaglelocal.backend.memory import buffer_bytes
from eaglelocal.backend.model import Model
from eaglelocal.backend.rehearsal import Part, Placement, rehearse
from eaglelocal.calibrations import acceptance_key_of, key_of
from eaglelocal.calibrations import load as load_learned
from eaglelocal.calibrations import save as save_learned
from eaglelocal.core.events import EngineInfo, LoadProgress
from eaglelocal.core.plan import Plan
from eaglelocal.drafters.base import Drafter
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.gguf.architectures import FinalState
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.pair import branch_problem, check_rolls_back, read_draft, read_model
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.probe import probe
from eaglelocal.probe.threads import usable_threads
from eaglelocal.scheduler.scheduler import Scheduler, check_batch
from eaglelocal.speculation.controller import Controller
from eaglelocal.speculation.costs import StepCosts
from eaglelocal.speculation.mind import Drafters
from eaglelocal.text.template import chat_template

Report = Callable[[LoadProgress], None]
MIN_FORK, FORK_PART = 32, 512  # tokens; part of the context whose computing takes longer than copying all of it
DRAFT_KINDS = ("none", "ngram", "eagle3", "draft_model")


def build(plan: Plan, report: Report) -> Engine:
    """Load everything the plan names. Raises the error tree's errors; frees what it had taken."""
    with contextlib.ExitStack() as opened:
        engine = Builder(plan, report, opened).build()
        engine.on_close(opened.pop_all())
    return engine


class Builder:
    """Opens target, draft and engine in order; whatever is opened is on the stack, closed in reverse."""

    def __init__(self, plan: Plan, report: Report, opened: contextlib.ExitStack) -> None:
        self._plan, self._report, self._opened = plan, report, opened
        self._started_at = time.perf_counter()
        self._threads = plan.threads or usable_threads()
        self._machine = probe()
        self._model_bytes = 0  # weights of all models loaded
        self._num_branches = 0  # of each slot's trees
        self._min_fork: int | None = None  # prompt tokens that are worth copying another slot's cells
        self._placement = Placement(
            gpu_layers=plan.gpu_layers, devices=plan.device, split=plan.split, repack=not has_amx(self._machine)
        )

    def build(self) -> Engine:
        check_batch(self._plan.num_slots, self._plan.n_batch)
        header = read_header(self._plan.target)
        info = read_model(header)
        library = load_library()
        plan = self._plan = self._with_attention(library, info)
        draft = self._draft_part(header, info)
        taps = draft.info.target_layers if draft and isinstance(draft.info, EagleInfo) else ()
        self._num_branches = 0 if branch_problem(info) else plan.num_branches
        self._min_fork = None if branch_problem(info) else min_fork(plan)
        context_params = self._params(self._max_rows(), num_branches=plan.num_slots * self._num_branches)
        target = Part(header=header, info=info, context=context_params, taps=taps)
        self._check_memory(library, [target, draft] if draft else [target])
        model = self._model(library, target, share=(0.0, 0.9))
        wait_for_constraints = self._prepare_constraints(model)
        by_nextn = info.final_state is FinalState.NEXTN
        context = LlamaContext(model, target.context, taps=taps, final_by_nextn=by_nextn)
        self._opened.callback(context.close)
        drafters = self._drafters(library, context, draft)
        controller = controller_of(plan, drafters, max_seconds=self._num_branches)
        notes = (*notes_on(model), *notes_on_draft(draft), *notes_on_trees(plan, info))
        engine = self._engine(library, model, context, drafters, controller, notes=notes)
        wait_for_constraints()  # steps are measured undisturbed
        self._calibrate(engine, controller.costs, target, draft, library)
        self._recall(controller)
        load_s = time.perf_counter() - self._started_at  # most of it is measuring
        engine.info = dataclasses.replace(engine.info, load_s=load_s)
        return engine

    def _prepare_constraints(self, model: Model) -> Callable[[], None]:
        """Read the vocabulary for them beside all that is still to be loaded; what is returned waits for it.

        It takes a second or more, in half of which no other thread of Python's runs: too long for a first bound answer.
        """
        if not self._plan.binds_answers:
            return lambda: None
        preparing = threading.Thread(target=model.constraints.prepare, name="constraints", daemon=True)
        preparing.start()
        self._opened.callback(preparing.join)
        return preparing.join

    def _with_attention(self, library: Library, info: ModelInfo) -> Plan:
        """The plan, with what `--flash-attn auto` means here."""
        plan = self._plan
        num_cells = plan.n_ctx * (plan.num_slots if plan.is_unified else 1)
        chosen = settled(
            plan.flash_attention,
            on_gpu=plan.gpu_layers != 0 and any(room.device != RAM for room in self._rooms(library)),
            kv_type=plan.kv_type,
            scores_bytes=scores_bytes(n_batch=plan.n_batch, num_cells=num_cells, n_head=max(info.n_head)),
        )
        return dataclasses.replace(plan, flash_attention=chosen)

    def _rooms(self, library: Library) -> tuple[Room, ...]:
        unified = self._machine.unified is not None
        return rooms(library, ram_bytes=self._machine.memory.available_bytes, unified=unified)

    def _calibrate(self, engine: Engine, costs: StepCosts, target: Part, draft: Part | None, library: Library) -> None:
        """Measure what steps cost, beginning with what was learned here before; keep what is learned now."""
        key = key_of(
            self._plan,
            self._machine,
            target.header,
            draft.header if draft else None,
            threads=self._threads,
            unified=self._plan.is_unified,
            library=library.build,
        )
        engine.warm_up(max_rows=self._max_rows(), stored=load_learned(key))
        self._opened.callback(lambda: save_learned(key, costs.state()))

    def _recall(self, controller: Controller) -> None:
        """Begin with what this draft was accepted for before; keep what is learned now."""
        if not self._plan.speculates:
            return
        key, acceptance = acceptance_key_of(self._plan), controller.acceptance
        acceptance.restore(load_learned(key))
        self._opened.callback(lambda: save_learned(key, acceptance.state()))

    def _draft_part(self, beside: Header, target: ModelInfo) -> Part | None:
        """The model that drafts, checked against the target; None where there is none."""
        plan = self._plan
        if plan.draft_kind not in DRAFT_KINDS:
            raise UsageError(f"a draft cannot be of kind {plan.draft_kind}", hint=f"one of: {', '.join(DRAFT_KINDS)}")
        if not plan.speculates:
            return None
        check_rolls_back(target)
        if plan.draft_kind == "ngram":
            return None
        if plan.draft is None:
            raise UsageError(f"a draft of kind {plan.draft_kind} needs a file", hint="--draft FILE, or `--draft none`")
        header = read_header(plan.draft)
        info = read_draft(header, beside=beside, target=target, kind=plan.draft_kind)
        # every row of a chunk of features is an output of the head; a draft model is asked for one a slot
        num_outputs = plan.n_batch if isinstance(info, EagleInfo) else plan.num_slots
        context = self._params(num_outputs)
        if isinstance(info, EagleInfo):  # slots wait with unequal numbers of pairs; its one layer attends cheaply
            context = dataclasses.replace(context, unified=True)
        return Part(header=header, info=info, context=context)

    def _check_memory(self, library: Library, parts: list[Part]) -> None:
        """First what is sure to be needed, then, when that fits, what llama.cpp would really lay where."""
        plan = self._plan
        asked = Asked(n_ctx=plan.n_ctx, num_slots=plan.num_slots, gpu_layers=plan.gpu_layers)
        there = self._rooms(library)
        check_fits(list(at_least((part.info for part in parts), asked, kv_type=plan.kv_type)), [joined(there)], asked)
        devices = [room.device for room in there if room.device != RAM]
        check_fits(rehearse(library, parts, self._placement, devices=devices), there, asked)

    def _model(self, library: Library, part: Part, *, share: tuple[float, float]) -> Model:
        low, high = share
        path, placement = part.header.path, self._placement
        self._report(LoadProgress(low, path.name))

        def on_progress(fraction: float) -> None:
            self._report(LoadProgress(low + fraction * (high - low), path.name))

        model = Model(
            library,
            path,
            gpu_layers=placement.gpu_layers,
            devices=placement.devices,
            split=placement.split,
            repack=placement.repack,
            on_progress=on_progress,
        )
        self._opened.callback(model.close)
        self._model_bytes += model.size_bytes
        return model

    def _max_rows(self) -> int:
        """Rows of one step whose logits can be wanted: a root and its draft for every slot."""
        return self._plan.num_slots * (1 + self._plan.max_draft)

    def _params(self, max_outputs: int, *, num_branches: int = 0) -> ContextParams:
        plan = self._plan
        return ContextParams(
            n_ctx=plan.n_ctx,
            num_sequences=plan.num_slots,
            num_branches=num_branches,
            unified=plan.is_unified,
            n_batch=plan.n_batch,
            max_outputs=max_outputs,
            threads=self._threads,
            kv_type=plan.kv_type,
            flash_attention=plan.flash_attention,
        )

    def _drafters(self, library: Library, context: LlamaContext, part: Part | None) -> tuple[Drafter, ...]:
        """The cheapest first: what a lookup promises can spare the other its work."""
        if not self._plan.speculates:
            return ()
        lookup = Ngram(self._plan.n_ctx)
        return (lookup,) if part is None else (lookup, self._model_drafter(library, context, part))

    def _model_drafter(self, library: Library, context: LlamaContext, part: Part) -> Drafter:
        draft = self._model(library, part, share=(0.9, 1.0))
        branches = 2 if self._num_branches else 1
        if isinstance(part.info, EagleInfo):
            norms = head_norms(part.header, part.info)
            head_context = LlamaHeadContext(draft, part.context, target=context, norms=norms)
            self._opened.callback(head_context.close)
            return Eagle3(head_context, part.info.target_layers, branches=branches)
        draft_context = LlamaContext(draft, part.context)
        self._opened.callback(draft_context.close)
        return DraftModel(draft_context, branches=branches)

    def _engine(
        self,
        library: Library,
        model: Model,
        context: LlamaContext,
        drafters: tuple[Drafter, ...],
        controller: Controller,
        *,
        notes: tuple[str, ...],
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
            load_s=0.0,  # until all is done
            library=library.build,
            cache_bytes=buffers.get("KV", 0) + buffers.get("RS", 0),
            compute_bytes=buffers.get("compute", 0) + buffers.get("output", 0),
            notes=notes,
        )
        scheduler = Scheduler(
            num_slots=plan.num_slots,
            n_ctx=plan.n_ctx,
            n_batch=plan.n_batch,
            reuse_margin=max((drafter.reuse_margin for drafter in drafters), default=0),
            can_cut=not model.is_hybrid,
            min_fork=self._min_fork,
        )
        return Engine(
            context=context,
            vocabulary=model.vocabulary,
            constraints=model.constraints,
            drafters=drafters,
            controller=controller,
            scheduler=scheduler,
            info=info,
        )


def min_fork(plan: Plan) -> int:
    """In one cache a copy is a note beside each cell; a cache of its own is copied whole, whatever is wanted of it."""
    return MIN_FORK if plan.is_unified else max(MIN_FORK, plan.n_ctx // FORK_PART)


def controller_of(plan: Plan, drafters: tuple[Drafter, ...], *, max_seconds: int = 0) -> Controller:
    """A lookup is the primary drafter only where it is the only one."""
    names = [drafter.name for drafter in drafters]
    primary = names[-1] if names else None
    lookups = tuple(name for name in names if name != primary)
    return Controller(
        plan.spec, Drafters(primary, lookups), StepCosts(), leveled=not plan.is_unified, max_seconds=max_seconds
    )


def notes_on(model: Model) -> tuple[str, ...]:
    """What a person should know about the target. A template that is no use fails the chats, not the loading."""
    try:
        note = chat_template(model.vocabulary).note
    except ModelFileError as error:
        note = error.message
    return (note,) if note else ()


def notes_on_trees(plan: Plan, target: ModelInfo) -> tuple[str, ...]:
    """Why drafts are chains where another choice could have made them trees."""
    if not plan.speculates or plan.draft_kind == "ngram":
        return ()
    if problem := branch_problem(target):
        return (f"drafts are chains: {problem}",)
    return () if plan.is_unified else ("drafts are chains: with so many slots each has a cache of its own",)


def notes_on_draft(part: Part | None) -> tuple[str, ...]:
    """A draft model behind the end of what it knows drafts badly, never wrongly: a word, not a refusal."""
    if part is None or isinstance(part.info, EagleInfo):
        return ()
    trained, n_ctx = part.info.context_length, part.context.n_ctx
    if not 0 < trained < n_ctx:
        return ()
    return (f"the draft model was trained for {trained} of {n_ctx} positions; behind them fewer drafts are accepted",)


def head_norms(header: Header, info: EagleInfo) -> HeadNorms:
    """What the head's file says about its algorithm; our flags are keys that llama.cpp ignores."""
    return HeadNorms(
        tap_eps=info.fc_norm_eps if info.fc_norm else None,
        output_gains=read_tensor(header.path, header, "output_norm.weight") if info.norm_output else None,
        output_eps=info.rms_eps,
    )


def has_amx(machine: Machine) -> bool:
    """Built by GCC 12, llama.cpp's AMX kernels crash on quantized weights: half their tile configuration is unset."""
    return any(extension.startswith("amx") for extension in machine.cpu.vector_extensions or ())
