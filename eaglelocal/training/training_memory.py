"""Estimates of the memory and disk that training needs, made before the first question, because answers take hours.

State is exact; what a step takes is an upper bound, by the tensors that are kept for gradients. Pure arithmetic on
shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from eaglelocal.errors import ResourceError
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, device_load, format_size
from eaglelocal.training.batches import Unrolling
from eaglelocal.training.draft_head import DraftHead, HeadSource, choose_vocabulary, frequent_tokens, head_shape
from eaglelocal.training.eagle_head import EagleHead, HeadShape
from eaglelocal.training.loop import is_table, makes_scores
from eaglelocal.training.precision import quick_type

FLOAT, HALF = 4, 2
MUON_WORK = 16  # bytes per weight, of all matrices of one shape: momentum, stack, and some in bfloat16
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


def estimate_need(school: HeadSource, plan: Unrolling, *, max_tokens: int, device: str) -> MemoryNeed:
    """Return the memory needed. A new head's tokens are not chosen yet, but their number is known."""
    words = choose_vocabulary(school, frequent_tokens(np.zeros(school.info.n_vocab, np.int64)))
    shape = head_shape(school, max_context=max_tokens)
    with torch.device("meta"):  # shapes only
        pupil = DraftHead(EagleHead(shape), torch.empty(words.output_shape), owns_output=words.owns_output)
    learned = list(pupil.named_parameters())
    lent = 0 if words.owns_output else pupil.output.numel() * quick_type(device).itemsize
    token = token_bytes(shape, plan)
    said = words.output_shape[0] * (plan.chains * (10 * plan.num_steps + 20) + max_tokens * HALF)
    rows = plan.chains * plan.num_steps * (40 * shape.width + 16 * shape.ffn)
    kept = sum(weight.numel() * (2 * FLOAT + kept_bytes(name, weight) + HALF) for name, weight in learned)
    return MemoryNeed(
        state_bytes=kept + lent,
        step_bytes=max(max_tokens * token + said + rows, muon_bytes(learned)),
        token_bytes=token,
        checkpoint_bytes=sum(weight.numel() * (FLOAT + kept_bytes(name, weight)) for name, weight in learned),
        max_tokens=max_tokens,
    )


def kept_bytes(name: str, weight: nn.Parameter) -> int:
    """Return the bytes that its optimizer keeps of each number: AdamW keeps two moments, Muon one."""
    return FLOAT if by_muon(name, weight) else 2 * FLOAT


def by_muon(name: str, weight: nn.Parameter) -> bool:
    return weight.ndim == 2 and not is_table(name) and not makes_scores(name)


def muon_bytes(learned: Sequence[tuple[str, nn.Parameter]]) -> int:
    """Return the bytes of Muon's step, which handles all matrices of one shape together."""
    together: Counter[torch.Size] = Counter()
    for name, weight in learned:
        if by_muon(name, weight):
            together[weight.shape] += weight.numel() * MUON_WORK
    return max(together.values(), default=0)


def token_bytes(shape: HeadShape, plan: Unrolling) -> int:
    """Return the bytes of a step for each token.

    Tapped inputs, raw and normalised; the prefix's cells; and the chains' attention scores for it in each draft step.
    """
    reading = 18 * len(shape.taps) * shape.tap_width + 40 * shape.width
    return reading + shape.num_heads * plan.chains * (6 * plan.num_steps + 20)


def check_memory(need: MemoryNeed, held: Sequence[Buffer], rooms: Sequence[FreeMemory], device: str) -> None:
    """Check that training fits in memory. Raises ResourceError with the sum.

    `held`: the target, which is loaded too; `device`: torch's device type.
    """
    room = room_of(device, rooms)
    if room is None or room.free_bytes is None:
        return
    target_bytes = device_load(room, held, rooms).total
    missing = need.total_bytes + target_bytes - room.free_bytes
    if missing <= 0:
        return
    state, step = format_size(need.state_bytes), format_size(need.step_bytes)
    message = (
        f"learning takes {format_size(need.total_bytes)} ({state} for the head, its gradients and moments, "
        f"{step} for a conversation of {need.max_tokens} tokens) beside {format_size(target_bytes)} of the "
        f"target, and {format_size(room.free_bytes)} may be used {'in' if room.device == RAM else 'on'} {room.device}"
    )
    raise ResourceError(message, hint=" or ".join(ways_out(need, missing, device)))


def room_of(device: str, rooms: Sequence[FreeMemory]) -> FreeMemory | None:
    """Return the memory that torch will use: its first GPU is llama.cpp's; None: llama.cpp sees none."""
    if device == "cuda":
        first = next((room for room in rooms if room.device != RAM), None)
        if first is None or not first.in_ram:
            return first
    return next((room for room in rooms if room.device == RAM), None)


def ways_out(need: MemoryNeed, missing: int, device: str) -> Iterator[str]:
    n_ctx = (need.max_tokens - missing // need.token_bytes - 1) // CTX_STEP * CTX_STEP
    if n_ctx > 0:
        yield f"--ctx {n_ctx}"
    if device == "cuda":
        yield "a smaller --gpu-layers"
        yield "`--torch-device cpu`"
    elif n_ctx <= 0:
        yield "a smaller model or quantization"


def check_disk(need: MemoryNeed, folder: Path, free_bytes: int) -> None:
    """Check the space for one checkpoint besides the previous one. Raises ResourceError."""
    wanted = 2 * need.checkpoint_bytes
    if wanted > free_bytes:
        message = (
            f"the state of learning takes {format_size(wanted)}, and {format_size(free_bytes)} are free in {folder}"
        )
        raise ResourceError(message, hint="free some space, or `--work` elsewhere")
