"""Convert a plan and its files into contexts and placements for this machine, checked against its memory.

Runs in the engine's process, before anything is loaded. Decides what the plan leaves open, because the machine is known
here: flash attention (memory/contexts.py), one cache or several, and whether layers with a sliding window keep
all positions.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from eaglelocal.backend.cpu_attention import is_supported
from eaglelocal.backend.dry_run import DryRunPart, plan_buffers
from eaglelocal.backend.llama_library import LlamaLibrary, free_memory
from eaglelocal.backend.weight_loading import FLOAT_TYPES
from eaglelocal.core.amounts import format_memory
from eaglelocal.core.plan import NO_ROOM_FOR_IMAGES, Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import DraftPolicy
from eaglelocal.core.run_options import TENSOR, suggest_split
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.hazards import graph_problem
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.lora_adapter import read_adapter_tensors
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.model_shape import DraftInfo, ModelShape
from eaglelocal.gguf.projector import Projector, check_projector
from eaglelocal.gguf.reader import read_header
from eaglelocal.loading.context_parts import ModelHeader, find_apart_bytes, make_parts, make_placements, read_models
from eaglelocal.memory.budget import (
    FILE_PAGES,
    RAM,
    AdjustableSizes,
    Buffer,
    FreeMemory,
    MemoryKind,
    check_fits,
    join_devices,
    minimum_buffers,
    subtract_margins,
)
from eaglelocal.memory.cache_types import check_kernels, explain_refused_type
from eaglelocal.memory.contexts import (
    ROLLBACKS,
    plan_contexts,
    plan_rollback,
    settle_plan,
)
from eaglelocal.memory.estimate import estimate, image_buffers
from eaglelocal.memory.placement import (
    BORROWS_OUTPUT,
    adapter_buffers,
    check_tensor_gpus,
    choose_gpus,
    explain_tensor_split,
    table_buffers,
)
from eaglelocal.memory.tensor_moves import check_overrides, find_unmatched
from eaglelocal.probe.machine import Machine

# Memory of a GPU while it computes: workspaces, and rows and caches converted for matrix products. If llama.cpp cannot
# allocate them, it aborts in the middle of an answer. The driver's context is already excluded from the free memory.
COMPUTING_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class FittedPlan:
    """A plan in which everything is decided, and its parts, which fit."""

    plan: Plan
    target: DryRunPart
    draft: DryRunPart | None
    shape: ModelShape  # the target's
    draft_shape: ModelShape | None
    gpus: tuple[str, ...]  # that llama.cpp can use
    apart_bytes: int  # in RAM, apart from layers on a GPU
    uses_gpu: bool  # even without layers on it: llama.cpp computes large batches there

    @property
    def num_branches(self) -> int:
        """The number of branches in each slot's trees."""
        return self.target.context.num_branches // self.plan.num_slots

    @property
    def has_gpu_layers(self) -> bool:
        """True if any layer of the target lies on a GPU, which then computes beside the processor."""
        return self.uses_gpu and self.plan.gpu_layers != 0

    @property
    def spares_windows(self) -> bool:
        """True if layers with a sliding window keep only the window."""
        return self.shape.has_windows and self.plan.swa_full is False

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user about differences between the plan and the request."""
        notes = []
        if self.spares_windows:
            notes.append(
                "the cache keeps only sliding windows: an edited conversation is prefilled again from its beginning"
            )
        requested = self.plan.spec.max_draft if self.plan.spec.drafting is DraftPolicy.FIXED else ROLLBACKS[0]
        if self.plan.rollback is not None and self.plan.rollback < requested:
            notes.append(f"at most {self.plan.rollback} tokens are drafted: each needs a copy of this model's state")
        for flag, count in (("--gpu-layers", self.plan.gpu_layers), ("--n-cpu-moe", self.plan.n_cpu_moe)):
            if count and not self.gpus:
                notes.append(f"{flag} {count} has no effect: llama.cpp finds no GPU on this machine")
        if self.apart_bytes and not self.target.placement.no_mmap:
            notes.append(f"{format_memory(self.apart_bytes)} of weights in main memory {FILE_PAGES}")
        return tuple(notes)

    @property
    def can_swap(self) -> bool:
        """True if copies of cells restore a text completely, and faster than a new prefill.

        A draft model with sliding windows would lose cells. Without flash attention values are stored transposed:
        llama.cpp then copies every row of every layer separately from a GPU, in pieces if slots ran concurrently.
        If several GPUs divide the cache, llama.cpp aborts on copies of parts that are not contiguous.
        """
        if self.plan.split == TENSOR:
            return False
        if self.plan.flash_attn == "off" and self.has_gpu_layers:
            return False
        is_model = self.plan.draft_kind == "draft_model"
        return not (is_model and self.draft_shape is not None and self.draft_shape.has_windows)

    @property
    def can_cut(self) -> bool:
        """True if the end of a sequence can be cut off anywhere; not so with recurrent states or window-only caches."""
        return not self.shape.has_state and not self.spares_windows


def fit_plan(plan: Plan, machine: Machine, library: LlamaLibrary, *, threads: int) -> FittedPlan:
    """Return the plan as it fits this machine.

    Raises ResourceError with the numbers if it does not fit, and the errors of `read_draft` and llama.cpp.
    """
    free = free_memory(library, ram_bytes=machine.memory.available_bytes, unified=machine.lends_memory)
    check_shares(plan, free)
    models = read_models(plan)
    check_experts(plan, models[0].shape)
    check_moves(plan, models[0].header, free)
    check_tensor_split(plan, [model.shape for model in models], free)
    check_own_output(plan, models[-1].info)
    plan = decide_open_settings(plan, models, free)
    check_graph(plan, models[0].shape)
    check_cache_type(plan, [model.shape for model in models], free)
    placements = make_placements(plan, machine, library, models, free)

    def attempt(candidate: Plan) -> FittedPlan:
        parts = make_parts(candidate, models, placements, threads=threads)
        # states beyond those that the planner assumed must leave its reserve free
        exceeds_plan = (candidate.rollback or 0) > plan_rollback(candidate.draft_kind)
        usable = subtract_margins(free) if exceeds_plan else free
        check_memory(candidate, models, parts, library, usable)
        draft = parts[1] if len(parts) > 1 else None
        used = choose_gpus(free, device=candidate.device, split=candidate.split)
        return FittedPlan(
            candidate,
            parts[0],
            draft,
            models[0].shape,
            draft_shape=models[1].shape if draft is not None else None,
            gpus=tuple(memory.device for memory in free if memory.device != RAM),
            apart_bytes=find_apart_bytes(candidate, models[0], free),
            uses_gpu=bool(used),
        )

    target = models[0].shape
    *earlier, last = (
        candidate
        for with_images in list_image_choices(plan)
        for with_windows in list_window_choices(with_images, target)
        for candidate in list_rollback_choices(with_windows, target)
    )  # each needs less memory than the one before, as far as the settings leave a choice
    for candidate in earlier:
        with contextlib.suppress(ResourceError):
            return attempt(candidate)
    return attempt(last)


def check_graph(plan: Plan, target: ModelShape) -> None:
    """Raise ResourceError for a graph on which llama.cpp would abort."""
    num_caches = 1 if plan.is_unified else plan.num_slots
    if problem := graph_problem(target.architecture, kv_type=plan.kv_type, num_caches=num_caches):
        raise ResourceError(problem, hint="--kv-type f16")


def check_moves(plan: Plan, target: Header, free: Sequence[FreeMemory]) -> None:
    """Raise UsageError if an override names a device that is not used, or finds no tensor."""
    gpus = choose_gpus(free, device=plan.device, split=plan.split)
    check_overrides(plan.overrides, (gpu.device for gpu in gpus), plan.split)
    if unmatched := find_unmatched(target.tensors.values(), plan.overrides):
        message = f"--override-tensor {unmatched}: no tensor of {target.path.name} has such a name"
        raise UsageError(message, hint=f"eaglelocal show {quote_path(target.path)}")


def check_cache_type(plan: Plan, shapes: Sequence[ModelShape], free: Sequence[FreeMemory]) -> None:
    """Raise UsageError if llama.cpp refuses the types of the cache, or would compute attention on the processor."""
    gpus = choose_gpus(free, device=plan.device, split=plan.split) if plan.gpu_layers != 0 else ()
    check_kernels(plan.kv_type, plan.flash_attn, (gpu.device for gpu in gpus))
    for shape in shapes:
        if problem := explain_refused_type(shape, plan.kv_type, plan.flash_attn):
            raise UsageError(f"--kv-type {plan.kv_type}: {problem}", hint="--kv-type f16")


def check_experts(plan: Plan, target: ModelShape) -> None:
    """Raise UsageError if the experts of `n_cpu_moe` layers do not exist."""
    if problem := target.experts_problem(plan.n_cpu_moe):
        hint = f"--n-cpu-moe {target.n_layer}" if target.expert_bytes else "leave --n-cpu-moe out"
        raise UsageError(f"--n-cpu-moe {plan.n_cpu_moe}: {problem}", hint=hint)


def check_tensor_split(plan: Plan, shapes: Sequence[ModelShape], free: Sequence[FreeMemory]) -> None:
    """Raise UsageError with the reason if llama.cpp cannot divide the target by tensors. `shapes`: target, draft."""
    if plan.split != TENSOR:
        return
    check_tensor_gpus(len(choose_gpus(free, device=plan.device, split=plan.split)))
    target, *_ = shapes
    if problem := explain_tensor_split(target):
        raise UsageError(f"--split tensor: {problem}", hint="--split layer")


def check_own_output(plan: Plan, draft: DraftInfo) -> None:
    """Raise UsageError if a head borrows the output of a target that is divided by tensors."""
    if plan.split == TENSOR and isinstance(draft, EagleInfo | MedusaInfo | BlockInfo) and not draft.has_own_output:
        raise UsageError(f"--split tensor: {BORROWS_OUTPUT}", hint="--split layer")


def check_shares(plan: Plan, free: Sequence[FreeMemory]) -> None:
    """Raise UsageError unless there is a share for each GPU in use."""
    gpus = choose_gpus(free, device=plan.device, split=plan.split)
    if plan.shares and len(plan.shares) != len(gpus):
        names = ", ".join(gpu.device for gpu in gpus) or "no GPU"
        shares = ",".join(f"{share:g}" for share in plan.shares)
        message = f"--split {shares} gives {len(plan.shares)} shares, but llama.cpp uses {names}"
        raise UsageError(message, hint=suggest_split(len(gpus)))


def decide_open_settings(plan: Plan, models: Sequence[ModelHeader], free: Sequence[FreeMemory]) -> Plan:
    """Return the plan with what depends on this machine decided: one cache or several, and flash attention."""
    target, *drafts = models
    return settle_plan(
        plan,
        target.shape,
        drafts[0].shape if drafts else None,
        free,
        is_quantized=target.header.main_type not in FLOAT_TYPES,
        has_kernel=is_supported(),
    )


def list_image_choices(plan: Plan) -> Iterator[Plan]:
    """Yield the plan, then without its projector if the user did not ask for one."""
    yield plan
    if plan.projector is not None and not plan.is_projector_required:
        yield dataclasses.replace(plan, projector=None, projector_note=NO_ROOM_FOR_IMAGES)


def list_rollback_choices(plan: Plan, target: ModelShape) -> Iterator[Plan]:
    """Yield the plan with fewer and fewer drafted rows, if each needs a copy of the recurrent state.

    For a lookup the last choice is to draft nothing.
    """
    if plan.rollback is not None or not (plan.speculates and target.has_state):
        yield plan
        return
    if plan.n_batch < ROLLBACKS[-1] + 2:
        raise ResourceError(f"a batch of {plan.n_batch} rows is too small for drafts", hint="`--draft none`")
    for num_rows in ROLLBACKS:
        if num_rows + 2 <= plan.n_batch:  # llama.cpp needs them and the root in one ubatch, else it aborts
            yield dataclasses.replace(plan, rollback=num_rows)
    if plan.draft_kind == "ngram":
        size = f"{target.state_bytes / 2**20:.0f} MiB each"
        reason = f"there is no memory for copies of this model's state ({size}), which drafting needs"
        yield dataclasses.replace(plan, draft_kind="none", draft_label="none", draft_reason=reason)


def list_window_choices(plan: Plan, target: ModelShape) -> Iterator[Plan]:
    """Yield the plan with all positions kept first: a conversation can then be edited anywhere and reuse its prefix."""
    if plan.swa_full is not None or not target.has_windows:
        yield plan
        return
    yield dataclasses.replace(plan, swa_full=True)
    yield dataclasses.replace(plan, swa_full=False)


def check_memory(
    plan: Plan,
    models: Sequence[ModelHeader],
    parts: Sequence[DryRunPart],
    library: LlamaLibrary,
    free: Sequence[FreeMemory],
) -> None:
    """Check the minimum memory first; if it fits, check what llama.cpp would really allocate on each device."""
    shape = models[0].shape
    sizes = AdjustableSizes(
        n_ctx=plan.n_ctx,
        num_slots=plan.num_slots,
        gpu_layers=plan.gpu_layers,
        num_layers=shape.n_layer + 1,
        n_cpu_moe=plan.n_cpu_moe,
        movable_experts=shape.n_layer - plan.n_cpu_moe if shape.expert_bytes else 0,
        expert_layer_bytes=sum(shape.expert_bytes) // shape.n_layer,
    )
    jobs = plan_contexts(plan, *(model.shape for model in models))
    beside = list(list_side_buffers(plan, models[0], free))
    least = [buffer for job in jobs for buffer in minimum_buffers(job.shape, job.sizes)]
    check_fits([*least, *beside], [join_devices(free)], sizes)
    devices = [memory.device for memory in free if memory.device != RAM]
    if plan.split == TENSOR:  # the log that a dry run parses does not name single GPUs then
        estimated = estimate(plan, shape, models[1].shape if len(models) > 1 else None, free)
        buffers = [*(each for each in estimated if each.kind is not MemoryKind.RUNTIME), *beside]
    else:
        buffers = [*plan_buffers(library, parts, devices=devices), *beside]
    used = {buffer.device for buffer in buffers if buffer.num_bytes}
    gpus = [memory.device for memory in free if memory.device in used - {RAM} and not memory.in_ram]
    runtime = [Buffer(gpu, MemoryKind.RUNTIME, COMPUTING_BYTES) for gpu in gpus]
    check_fits([*buffers, *runtime], free, sizes)


def list_side_buffers(plan: Plan, target: ModelHeader, free: Sequence[FreeMemory]) -> Iterator[Buffer]:
    """Yield the memory for reading images, of LoRA adapters, and of a table that is loaded whole.

    Raises ModelFileError if a file cannot be read, or IncompatibleError for an unsuitable projector.
    """
    gpus = choose_gpus(free, device=plan.device, split=plan.split)
    yield from table_buffers(target.shape, gpus)
    if plan.projector is not None:
        projector = Projector.from_header(read_header(plan.projector))
        check_projector(projector, target.header, name=plan.projector.name)
        yield from image_buffers(projector, plan, gpus)
    tensors = read_adapter_tensors(adapter.path for adapter in plan.adapters)
    yield from adapter_buffers(tensors, plan, target.shape, gpus)
