"""Checks for the memory and the disk to train a head for a target, before anything is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from eaglelocal.catalog.catalog import load_machines
from eaglelocal.core.amounts import format_disk, format_memory
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.errors import ResourceError
from eaglelocal.gguf.model_shape import describe_shape
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, device_load, subtract_margins
from eaglelocal.memory.estimate import estimate
from eaglelocal.preparation import machines
from eaglelocal.probe.probe import free_bytes
from eaglelocal.training.batches import Unrolling, make_unrolling
from eaglelocal.training.device import fast_dtype
from eaglelocal.training.draft_head import (
    NEW_VOCABULARY,
    DraftHead,
    HeadSource,
    choose_head_shape,
    choose_vocabulary,
    select_frequent_tokens,
)
from eaglelocal.training.eagle_head import EagleHead, HeadShape, MedusaParts
from eaglelocal.training.loop import uses_muon
from eaglelocal.training.target_capture import held_in


def check_memory_and_disk(
    source: HeadSource,
    plan: Plan,
    folder: Path,
    device: str,
    *,
    draft_vocab: int | None = None,
) -> None:
    """Raise ResourceError, with the numbers, if memory or disk do not suffice.

    plan    loads the target alone, with the most tokens of a text as n_ctx
    folder  where checkpoints are written
    """
    need = estimate_need(source, make_unrolling(source), max_tokens=plan.n_ctx, device=device, draft_vocab=draft_vocab)
    check_disk(need, folder, free_bytes(folder) + held_in(folder))
    memories = machines.this_machine(load_machines()).free_memory
    target_buffers = estimate(plan, describe_shape(source.target), None, memories)
    check_memory(need, target_buffers, subtract_margins(memories), device)


# ---- training memory: estimates of the memory and disk that training needs, made before the first question, because
# answers take hours
#
# The memory of the training state is exact; a step's memory is an upper bound, from the tensors kept for gradients.
# Pure arithmetic on shapes.
FLOAT, HALF = 4, 2
MUON_WORK_BYTES = 16  # bytes per weight, of all matrices of one shape: momentum, stack, and some in bfloat16
LOGIT_BYTES, SUM_BYTES = 4, 10  # for each logit of a step, kept for its gradient, and while one step's loss is computed
CTX_STEP = 256  # a hinted --ctx is a multiple


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The bytes to train a head on conversations of at most `max_tokens`."""

    state_bytes: int  # weights, gradients and what optimizers keep
    step_bytes: int  # besides it, at the peak
    token_bytes: int  # of those, what each token of a conversation takes
    checkpoint_bytes: int
    max_tokens: int

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.step_bytes


def estimate_need(
    source: HeadSource, plan: Unrolling, *, max_tokens: int, device: str, draft_vocab: int | None = None
) -> MemoryNeed:
    """Return the memory needed. A new head's tokens are not chosen yet: without `draft_vocab`, the most are assumed."""
    unused = np.zeros(source.target.n_vocab, np.int64)
    vocabulary = choose_vocabulary(source, select_frequent_tokens(unused, draft_vocab or NEW_VOCABULARY))
    shape = choose_head_shape(source, max_context=max_tokens)
    with torch.device("meta"):  # shapes only
        head = MedusaParts(shape) if source.is_medusa else EagleHead(shape)
        draft_head = DraftHead(head, torch.empty(vocabulary.output_shape), owns_output=vocabulary.owns_output)
    parameters = list(draft_head.named_parameters())
    borrowed = 0 if vocabulary.owns_output else draft_head.output.numel() * fast_dtype(device).itemsize
    token = token_bytes(shape, plan)
    logits = vocabulary.output_shape[0] * (plan.chains * (LOGIT_BYTES * plan.num_steps + SUM_BYTES))
    rows = plan.chains * plan.num_steps * (40 * shape.width + 16 * shape.ffn)
    state = sum(weight.numel() * (2 * FLOAT + optimizer_bytes(name, weight) + HALF) for name, weight in parameters)
    return MemoryNeed(
        state_bytes=state + borrowed,
        step_bytes=max(max_tokens * token + logits + rows, muon_step_bytes(parameters)),
        token_bytes=token,
        checkpoint_bytes=sum(weight.numel() * (FLOAT + optimizer_bytes(name, weight)) for name, weight in parameters),
        max_tokens=max_tokens,
    )


def optimizer_bytes(name: str, weight: nn.Parameter) -> int:
    """Return the optimizer's bytes for each weight: AdamW keeps two moments, Muon one."""
    return FLOAT if uses_muon(name, weight) else 2 * FLOAT


def muon_step_bytes(parameters: Sequence[tuple[str, nn.Parameter]]) -> int:
    """Return the bytes of Muon's step, which handles all matrices of one shape together."""
    by_shape: Counter[torch.Size] = Counter()
    for name, weight in parameters:
        if uses_muon(name, weight):
            by_shape[weight.shape] += weight.numel() * MUON_WORK_BYTES
    return max(by_shape.values(), default=0)


def token_bytes(shape: HeadShape, plan: Unrolling) -> int:
    """Return the bytes of a step for each token.

    Tapped inputs, raw and normalised; the prefix's cells; and the chains' attention scores for it in each draft step.
    """
    reading = 18 * len(shape.taps) * shape.tap_width + 40 * shape.width
    return reading + shape.num_heads * plan.chains * (6 * plan.num_steps + 20)


def check_memory(need: MemoryNeed, target: Sequence[Buffer], memories: Sequence[FreeMemory], device: str) -> None:
    """Check that training fits in memory. Raises ResourceError with the sum.

    `target`: the buffers of the target, which is loaded too; `device`: torch's device type.
    """
    memory = find_memory(device, memories)
    if memory is None or memory.free_bytes is None:
        return
    target_bytes = device_load(memory, target, memories).total
    missing = need.total_bytes + target_bytes - memory.free_bytes
    if missing <= 0:
        return
    preposition = "in" if memory.device == RAM else "on"
    state, step = format_memory(need.state_bytes), format_memory(need.step_bytes)
    message = (
        f"training needs {format_memory(need.total_bytes)} ({state} for the head, its gradients and moments, "
        f"{step} for a conversation of {need.max_tokens} tokens) and {format_memory(target_bytes)} for the target, "
        f"but only {format_memory(memory.free_bytes)} can be used {preposition} {memory.device}"
    )
    raise ResourceError(message, hint=" or ".join(suggest_flags(need, missing, device)))


def find_memory(device: str, memories: Sequence[FreeMemory]) -> FreeMemory | None:
    """Return the memory that torch will use: its first GPU is also llama.cpp's first. None if llama.cpp sees no GPU."""
    if device == "cuda":
        first = next((memory for memory in memories if memory.device != RAM), None)
        if first is None or not first.in_ram:
            return first
    return next((memory for memory in memories if memory.device == RAM), None)


def suggest_flags(need: MemoryNeed, missing: int, device: str) -> Iterator[str]:
    n_ctx = (need.max_tokens - missing // need.token_bytes - 1) // CTX_STEP * CTX_STEP
    if n_ctx > 0:
        yield f"--ctx {n_ctx}"
    if device == "cuda":
        yield "--gpu-layers 0"
        yield "`--torch-device cpu`"
    elif n_ctx <= 0:
        yield "a smaller model or quantization"


def check_disk(need: MemoryNeed, folder: Path, free_bytes: int) -> None:
    """Check the space for one checkpoint besides the previous one. Raises ResourceError."""
    needed_bytes = 2 * need.checkpoint_bytes
    if needed_bytes > free_bytes:
        message = (
            f"checkpoints need {format_disk(needed_bytes)}, but only {format_disk(free_bytes)} are free in {folder}"
        )
        raise ResourceError(message, hint=f"free {format_disk(needed_bytes - free_bytes)} in {folder}")
