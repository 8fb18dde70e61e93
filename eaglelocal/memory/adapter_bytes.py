"""The memory of LoRA adapters: llama.cpp puts their tensors beside the weights that they change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from eaglelocal.core.plan import Plan
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind
from eaglelocal.memory.placement import place_layers

BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.")
EMBEDDING = "token_embd."


def adapter_buffers(
    tensors: Iterable[TensorInfo], plan: Plan, target: ModelShape, gpus: Sequence[FreeMemory]
) -> Iterator[Buffer]:
    """Yield the memory of each of the adapters' tensors. gpus: those that the plan uses, in llama.cpp's order."""
    devices = place_layers(target, gpus, plan.shares, gpu_layers=plan.gpu_layers)
    for tensor in tensors:
        layer = BLOCK_TENSOR.match(tensor.name)
        output = RAM if tensor.name.startswith(EMBEDDING) else devices[-1]
        device = output if layer is None else devices[min(int(layer[1]), len(devices) - 1)]
        yield Buffer(device, MemoryKind.WEIGHTS, tensor.nbytes)
