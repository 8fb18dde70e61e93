"""Divide a model by tensors among several GPUs, as llama.cpp's LLAMA_SPLIT_MODE_TENSOR does.

Each GPU holds an equal part of every layer's weights and cache, and all compute at once. A model of its own that drafts
lies on the first GPU alone: its steps are too small to be worth the exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from eaglelocal.errors import UsageError
from eaglelocal.gguf.architectures import NO_TENSOR_SPLIT
from eaglelocal.gguf.model_shape import MTP, ModelShape
from eaglelocal.memory.budget import Buffer, FreeMemory, MemoryKind

DIVIDED = (MemoryKind.WEIGHTS, MemoryKind.CACHE)  # each GPU has the other buffers whole, at most

BORROWS_OUTPUT = "the head borrows its target's output, which is divided among the GPUs"


def check_tensor_gpus(num_gpus: int) -> None:
    """Raise UsageError if there are fewer than two GPUs to divide a model among."""
    if num_gpus < 2:
        used = "no GPU" if not num_gpus else "1 GPU"
        raise UsageError(f"--split tensor needs two GPUs or more, but this run uses {used}", hint="leave --split out")


def explain_tensor_split(shape: ModelShape) -> str:
    """Return why llama.cpp refuses to divide a target by tensors; empty if it does not."""
    if shape.architecture in NO_TENSOR_SPLIT:
        return f"llama.cpp cannot divide {shape.architecture} models by tensors"
    return ""


def explain_borrowed_output(draft: ModelShape | None) -> str:
    """Return why a head cannot draft for a divided target; empty if it can.

    An MTP layer is divided with its target; the output of an assistant in a file of its own is its own.
    """
    if draft is None or not draft.is_head or draft.architecture == MTP or draft.read_output_bytes:
        return ""
    return BORROWS_OUTPUT


def divide_buffers(buffers: Iterable[Buffer], gpus: Sequence[FreeMemory]) -> Iterator[Buffer]:
    """Yield the buffers of a model that was placed on the first GPU as they lie if all GPUs divide it."""
    first, *_ = gpus
    for buffer in buffers:
        if buffer.device != first.device:
            yield buffer
            continue
        part = -(-buffer.num_bytes // len(gpus)) if buffer.kind in DIVIDED else buffer.num_bytes
        yield from (replace(buffer, device=gpu.device, num_bytes=part) for gpu in gpus)
