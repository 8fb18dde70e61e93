"""Read the headers of a plan's models, place them on devices, and make the parameters of their contexts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.dry_run import DryRunPart
from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.backend.model import D2T, Placement
from eaglelocal.backend.weight_loading import has_plenty, is_moved, is_read
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import LOOKUPS, TENSOR, is_rpc_device
from eaglelocal.errors import UsageError
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.draft_pairing import check_rolls_back, read_draft, read_model
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.model_shape import DraftInfo, ModelShape, describe_shape
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.upper_layers import find_upper_layers, list_loaded_tensors
from eaglelocal.memory.budget import RAM, FreeMemory, may_read, subtract_margins
from eaglelocal.memory.contexts import PlannedContext, plan_contexts
from eaglelocal.memory.estimate import sum_apart_bytes
from eaglelocal.memory.placement import choose_gpus, place_layers, single_device_shares
from eaglelocal.probe.machine import Machine
from eaglelocal.processes.child_process import glibc_version, has_huge_pages

PROCESSOR = "CPU"  # as llama.cpp names it
DRAFT_KINDS = ("none", "ngram", "eagle3", "dflash", "mtp", "draft_model")


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """A model as the header of its file describes it, and its sizes."""

    info: DraftInfo
    shape: ModelShape

    @property
    def header(self) -> Header:
        return self.info.header


def read_models(plan: Plan) -> tuple[ModelHeader, ...]:
    """Return the header of the target, and of the draft if it has a file, checked against the target.

    Raises UsageError, ModelFileError or IncompatibleError.
    """
    info = read_model(read_header(plan.target))
    target = ModelHeader(info, describe_shape(info))
    if plan.draft_kind not in DRAFT_KINDS:
        raise UsageError(f"unknown draft kind {plan.draft_kind!r}", hint=f"one of: {', '.join(DRAFT_KINDS)}")
    if unknown := set(plan.lookups).difference(LOOKUPS):
        raise UsageError(f"unknown drafter {unknown.pop()!r}", hint=f"one of: {', '.join(LOOKUPS)}")
    if not plan.speculates:
        return (target,)
    check_rolls_back(info)
    if plan.draft_kind == "ngram":
        return (target,)
    if plan.draft is None:
        raise UsageError(f"a draft of kind {plan.draft_kind} needs a file", hint="--draft auto")
    header = target.header if plan.draft == plan.target else read_header(plan.draft)
    draft = read_draft(header, info, kind=plan.draft_kind)
    return target, ModelHeader(draft, describe_shape(draft))


def make_placements(
    plan: Plan, machine: Machine, library: LlamaLibrary, models: Sequence[ModelHeader], free: Sequence[FreeMemory]
) -> list[Placement]:
    """Return the placement of the target, and of the draft if there is one."""
    setting = machine.memory.huge_pages
    in_huge_pages = has_huge_pages(setting, os.environ, glibc_version())
    repacks = library.can_repack and machine.cpu.has_avx2
    fits_twice = has_plenty(sum(model.shape.weights_bytes for model in models), free, plan.gpu_layers)
    gpus = choose_gpus(free, device=plan.device, split=plan.split)
    shares = plan.shares or find_shares(plan, free)
    placements = [
        make_placement(
            plan,
            of_draft=index > 0,
            no_mmap=(fits_twice and is_read(model.header.main_type, huge_pages=in_huge_pages, repacks=repacks))
            or (index == 0 and reads_apart(plan, model, free)),
            moves_weights=fits_twice and is_moved(model.header.main_type, huge_pages=setting, is_brief=plan.is_brief),
            shares=shares,
        )
        for index, model in enumerate(models)
    ]
    if plan.split == TENSOR:
        placements, gpus, shares = place_divided(placements, gpus), gpus[:1], ()
    if len(models) > 1 and models[1].shape.is_head:
        output = place_layers(models[0].shape, gpus, shares, gpu_layers=plan.gpu_layers)[-1]
        placements[1] = place_head(placements[1], models[1], gpus, output)
    return keep_from_rpc(placements, gpus) if plan.rpc else placements


def reads_apart(plan: Plan, target: ModelHeader, free: Sequence[FreeMemory]) -> bool:
    """Return whether the target is read into memory because experts or other tensors lie in RAM, apart from a GPU."""
    apart_bytes = find_apart_bytes(plan, target, free)
    return bool(apart_bytes) and may_read(apart_bytes, next(each.free_bytes for each in free if each.device == RAM))


def find_apart_bytes(plan: Plan, target: ModelHeader, free: Sequence[FreeMemory]) -> int:
    """Return the bytes that lie in RAM apart from layers on a GPU; 0 where the GPU works in RAM too."""
    gpus = [gpu for gpu in choose_gpus(free, device=plan.device, split=plan.split) if not gpu.in_ram]
    tensors = list(list_loaded_tensors(target.header, n_layer=target.shape.n_layer)) if plan.overrides else []
    return sum_apart_bytes(plan, target.shape, gpus, tensors) if gpus and plan.gpu_layers != 0 else 0


def place_divided(placements: Sequence[Placement], gpus: Sequence[FreeMemory]) -> list[Placement]:
    """Place a target so that all GPUs divide it evenly, and its draft whole on the first of them.

    The GPUs are named explicitly, because llama.cpp would otherwise include others, such as an integrated one.
    """
    target, *drafts = placements
    names = ",".join(gpu.device for gpu in gpus)
    kept = [dataclasses.replace(each, devices=gpus[0].device, split="layer", shares=()) for each in drafts]
    return [dataclasses.replace(target, devices=names, shares=()), *kept]


def keep_from_rpc(placements: Sequence[Placement], gpus: Sequence[FreeMemory]) -> list[Placement]:
    """Keep the output and the draft on this machine: only layers may go to rpc-servers."""
    target, *drafts = placements
    own = [gpu.device for gpu in gpus if not is_rpc_device(gpu.device)]
    kept = [
        dataclasses.replace(each, devices=",".join(own), shares=each.shares[-len(own) :])
        if own
        else dataclasses.replace(each, devices=PROCESSOR, gpu_layers=0, shares=(), d2t_device=None)
        for each in drafts
    ]
    return [dataclasses.replace(target, keeps_output=not own), *kept]


def place_head(placement: Placement, head: ModelHeader, gpus: Sequence[FreeMemory], output: str) -> Placement:
    """Return a head's placement, all of it on the device of its target's output."""
    if len(gpus) > 1:
        placement = dataclasses.replace(placement, shares=single_device_shares(gpus, output) or placement.shares)
    own = place_layers(head.shape, gpus, placement.shares, gpu_layers=placement.gpu_layers)[-1]
    has_d2t = D2T in head.header.tensors or find_upper_layers(head.header) is not None
    return dataclasses.replace(placement, d2t_device=own if own != RAM and has_d2t else None)


def find_shares(plan: Plan, free: Sequence[FreeMemory]) -> tuple[float, ...]:
    """Set the share of full GPUs to 0, because llama.cpp would give them layers; empty if no GPU is full."""
    free_bytes = [gpu.free_bytes for gpu in subtract_margins(choose_gpus(free, device=plan.device, split=plan.split))]
    if None in free_bytes or all(free_bytes) or not any(free_bytes):
        return ()
    return tuple(float(num_bytes or 0) for num_bytes in free_bytes)


def make_placement(
    plan: Plan,
    *,
    of_draft: bool = False,
    no_mmap: bool = False,
    moves_weights: bool = False,
    shares: tuple[float, ...] = (),
) -> Placement:
    return Placement(
        gpu_layers=plan.num_draft_gpu_layers if of_draft else plan.gpu_layers,
        n_cpu_moe=0 if of_draft else plan.n_cpu_moe,
        overrides=() if of_draft else plan.overrides,
        devices=plan.device,
        split=plan.split,
        shares=shares or plan.shares,
        no_mmap=no_mmap,
        moves_weights=moves_weights,
    )


def make_parts(
    plan: Plan, models: Sequence[ModelHeader], placements: Sequence[Placement], *, threads: int
) -> tuple[DryRunPart, ...]:
    """Return the model, context and placement of the target, and of the draft if there is one."""
    draft = models[-1].info
    is_mtp = isinstance(draft, MtpInfo)
    jobs = plan_contexts(plan, *(model.shape for model in models))
    return tuple(
        DryRunPart(
            info=model.info,
            context=make_context_params(
                job, flash_attn=plan.flash_attn, threads=threads, is_mtp=is_mtp and job.of_draft
            ),
            taps=() if job.of_draft else find_taps(draft, models[0]),
            tap_width=job.tap_width,
            placement=dataclasses.replace(placement, has_mtp=is_mtp and model.header.path == models[-1].header.path),
        )
        for model, job, placement in zip(models, jobs, placements, strict=False)
    )


def find_taps(draft: DraftInfo, target: ModelHeader) -> tuple[int, ...]:
    """Return the target's layers whose inputs the draft reads.

    Layer n_layer is the state after the last layer, for an MTP layer; layer n_layer + 1 is the state after the output
    norm.
    """
    if isinstance(draft, MtpInfo):
        return (target.shape.n_layer,)
    return draft.target_layers if isinstance(draft, EagleInfo | MedusaInfo | BlockInfo) else ()


def make_context_params(job: PlannedContext, *, flash_attn: str, threads: int, is_mtp: bool = False) -> ContextParams:
    sizes = job.sizes
    return ContextParams(
        n_ctx=sizes.n_ctx,
        num_sequences=sizes.num_slots,
        num_branches=sizes.num_slots * sizes.num_branches,
        unified=sizes.unified,
        n_batch=sizes.n_batch,
        max_outputs=job.max_outputs,
        threads=threads,
        kv_type=sizes.kv_type,
        flash_attn=flash_attn,
        swa_full=sizes.swa_full,
        num_snapshots=sizes.num_snapshots,
        is_mtp=is_mtp,
    )
