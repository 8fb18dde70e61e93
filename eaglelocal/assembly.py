"""The composition root, run inside the engine process: a Plan becomes an Engine.

The only file that names model, contexts, drafters, policy, scheduler and engine together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from eaglelocal.backend.context import ContextParams, LlamaContext
from eaglelocal.backend.fit import Need, check_fits, need_of
from eaglelocal.backend.head import LlamaHeadContext
from eaglelocal.backend.library import Library, load_library
from eaglelocal.backend.memory import buffer_bytes
from eaglelocal.backend.model import Model
from eaglelocal.core.events import EngineInfo, LoadProgress
from eaglelocal.core.plan import Plan
from eaglelocal.drafters.base import Drafter, NoDrafter
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.eagle3 import Eagle3, HeadTraits
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import IncompatibleError, ModelFileError, UsageError
from eaglelocal.gguf.architectures import FinalState
from eaglelocal.gguf.eagle_info import EagleInfo, check_pair
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo, architecture_of
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.probe import probe
from eaglelocal.probe.threads import usable_threads
from eaglelocal.scheduler.scheduler import Scheduler, check_batch
from eaglelocal.speculation.policy import Fixed
from eaglelocal.text.template import chat_template

Report = Callable[[LoadProgress], None]
DRAFT_KINDS = ("none", "eagle3", "draft_model")


def build(plan: Plan, report: Report) -> Engine:
    """Load everything the plan names. Raises the error tree's errors; frees what it had taken."""
    with contextlib.ExitStack() as opened:
        engine = Builder(plan, report, opened).build()
        engine.on_close(opened.pop_all())
    engine.warm_up()
    return engine


class Builder:
    """Opens target, draft and engine in order; whatever is opened is on the stack, closed in reverse."""

    def __init__(self, plan: Plan, report: Report, opened: contextlib.ExitStack) -> None:
        self._plan, self._report, self._opened = plan, report, opened
        self._started_at = time.perf_counter()
        self._threads = plan.threads or usable_threads()
        self._machine = probe()
        self._policy = Fixed(plan.num_draft_tokens if plan.speculates else 0)
        self._model_bytes = 0  # weights of all models loaded

    def build(self) -> Engine:
        plan = self._plan
        check_batch(plan.num_slots, plan.n_batch)
        target = model_info(plan.target)
        head = self._head_header(target)
        self._check_memory(target, head)
        library = load_library()
        model = self._model(library, plan.target, share=(0.0, 0.9))
        taps = EagleInfo.from_header(head).target_layers if head is not None else ()
        by_nextn = target.final_state is FinalState.NEXTN
        context = LlamaContext(model, self._params(self._max_rows()), taps=taps, final_by_nextn=by_nextn)
        self._opened.callback(context.close)
        drafter = self._drafter(library, model, context, head)
        return self._engine(library, model, context, drafter)

    def _head_header(self, target: ModelInfo) -> Header | None:
        """The EAGLE head's header, checked against the target; None where the plan has no such head."""
        plan = self._plan
        if not plan.speculates:
            return None
        check_rolls_back(target)
        if plan.draft_kind not in DRAFT_KINDS:
            raise UsageError(f"a draft cannot be of kind {plan.draft_kind}", hint=f"one of: {', '.join(DRAFT_KINDS)}")
        if plan.draft is None:
            raise UsageError(f"a draft of kind {plan.draft_kind} needs a file", hint="--draft FILE, or `--draft none`")
        if plan.draft_kind == "draft_model":
            check_rolls_back(model_info(plan.draft))
            return None
        header = read_header(plan.draft)
        check_pair(EagleInfo.from_header(header), target)
        return header

    def _check_memory(self, target: ModelInfo, head: Header | None) -> None:
        plan, models = self._plan, list[ModelInfo | EagleInfo]([target])
        if head is not None:
            models.append(EagleInfo.from_header(head))
        elif plan.speculates and plan.draft is not None:
            models.append(model_info(plan.draft))
        need = Need()
        for info in models:
            need = need.plus(need_of(info, n_ctx=plan.n_ctx, num_slots=plan.num_slots, kv_type=plan.kv_type))
        check_fits(need, available_bytes=free_bytes(self._machine), n_ctx=plan.n_ctx)

    def _model(self, library: Library, path: Path, *, share: tuple[float, float]) -> Model:
        low, high = share
        self._report(LoadProgress(low, path.name))

        def on_progress(fraction: float) -> None:
            self._report(LoadProgress(low + fraction * (high - low), path.name))

        repack = not has_amx(self._machine)
        model = Model(
            library,
            path,
            gpu_layers=self._plan.gpu_layers,
            devices=self._plan.device,
            split=self._plan.split,
            repack=repack,
            on_progress=on_progress,
        )
        self._opened.callback(model.close)
        self._model_bytes += model.size_bytes
        return model

    def _max_rows(self) -> int:
        """Rows of one step whose logits can be wanted: a root and its draft for every slot."""
        draft_rows = self._plan.num_draft_tokens if self._plan.speculates else 0
        return self._plan.num_slots * (1 + draft_rows)

    def _params(self, max_outputs: int) -> ContextParams:
        plan = self._plan
        return ContextParams(
            n_ctx=plan.n_ctx,
            num_sequences=plan.num_slots,
            n_batch=plan.n_batch,
            max_outputs=max_outputs,
            threads=self._threads,
            kv_type=plan.kv_type,
            flash_attention=plan.flash_attention,
        )

    def _drafter(self, library: Library, model: Model, context: LlamaContext, head: Header | None) -> Drafter:
        plan = self._plan
        if not plan.speculates or plan.draft is None:
            return NoDrafter()
        draft = self._model(library, plan.draft, share=(0.9, 1.0))
        if head is not None:
            head_context = LlamaHeadContext(draft, self._params(plan.n_batch), target=context)
            self._opened.callback(head_context.close)
            return Eagle3(head_context, head_traits(head), confident=self._policy.needs_confidences)
        check_vocabularies(model, draft, plan)
        draft_context = LlamaContext(draft, self._params(plan.num_slots))
        self._opened.callback(draft_context.close)
        return DraftModel(draft_context, confident=self._policy.needs_confidences)

    def _engine(self, library: Library, model: Model, context: LlamaContext, drafter: Drafter) -> Engine:
        plan = self._plan
        num_draft_tokens = plan.num_draft_tokens if plan.speculates else 0
        buffers = buffer_bytes(library.log)
        info = EngineInfo(
            target=plan.target_label,
            draft=plan.draft_label if num_draft_tokens else "none",
            draft_reason="" if num_draft_tokens else plan.draft_reason,
            n_ctx=plan.n_ctx,
            num_slots=plan.num_slots,
            n_vocab=model.vocabulary.n_tokens,
            chat_template=model.vocabulary.chat_template is not None,
            threads=self._threads,
            model_bytes=self._model_bytes,
            load_s=time.perf_counter() - self._started_at,
            library=library.build,
            cache_bytes=buffers.get("KV", 0) + buffers.get("RS", 0),
            compute_bytes=buffers.get("compute", 0) + buffers.get("output", 0),
            notes=notes_on(model),
        )
        scheduler = Scheduler(
            num_slots=plan.num_slots,
            n_ctx=plan.n_ctx,
            n_batch=plan.n_batch,
            reuse_margin=drafter.reuse_margin,
            can_cut=not model.is_hybrid,
        )
        return Engine(
            context=context,
            vocabulary=model.vocabulary,
            drafter=drafter,
            policy=self._policy,
            scheduler=scheduler,
            info=info,
        )


def notes_on(model: Model) -> tuple[str, ...]:
    """What a person should know about the target. A template that is no use fails the chats, not the loading."""
    try:
        note = chat_template(model.vocabulary).note
    except ModelFileError as error:
        note = error.message
    return (note,) if note else ()


def model_info(path: Path) -> ModelInfo:
    """What a target or a draft model is. Raises ModelFileError where the file is no such thing."""
    header = read_header(path)
    if architecture_of(header) == "eagle3":
        message = f"{path.name} is an eagle3 draft head, not a model that can answer"
        raise ModelFileError(message, hint="name the head with --draft, and its target as the model")
    return ModelInfo.from_header(header)


def check_rolls_back(info: ModelInfo) -> None:
    """Rejected drafts are taken back from the cache. Raises IncompatibleError where that cannot be done yet."""
    if info.has_state:
        message = f"{info.name} cannot take part in drafting: {info.architecture} keeps recurrent state"
        raise IncompatibleError(f"{message}, which cannot be rolled back yet", hint="--draft none")


def head_traits(header: Header) -> HeadTraits:
    """What the head's file says about its algorithm; our flags are keys that llama.cpp ignores."""
    info = EagleInfo.from_header(header)
    return HeadTraits(
        taps=info.target_layers,
        fc_norm_eps=info.fc_norm_eps if info.fc_norm else None,
        output_norm=read_tensor(header.path, header, "output_norm.weight") if info.norm_output else None,
        norm_eps=info.rms_eps,
    )


def free_bytes(machine: Machine) -> int | None:
    """Memory that weights and caches may take, wherever they will lie; None if unknown."""
    if machine.memory.available_bytes is None:
        return None
    return machine.memory.available_bytes + sum(gpu.free_bytes or 0 for gpu in machine.gpus)


def has_amx(machine: Machine) -> bool:
    """Built by GCC 12, llama.cpp's AMX kernels crash on quantized weights: half their tile configuration is unset."""
    return any(extension.startswith("amx") for extension in machine.cpu.vector_extensions or ())


def check_vocabularies(target: Model, draft: Model, plan: Plan) -> None:
    """A draft model must speak the target's tokens. Raises IncompatibleError with the numbers."""
    ours, theirs = target.vocabulary, draft.vocabulary
    differs = next((t for t in range(min(ours.n_tokens, theirs.n_tokens)) if ours.piece(t) != theirs.piece(t)), None)
    if ours.n_tokens == theirs.n_tokens and differs is None:
        return
    detail = f"{theirs.n_tokens} tokens, the target has {ours.n_tokens}"
    if differs is not None:
        detail += f"; they differ from token {differs} on"
    raise IncompatibleError(
        f"the draft model {plan.draft_label} does not share the vocabulary of {plan.target_label}: {detail}",
        hint="a draft model of the same family, or `--draft none`",
    )
