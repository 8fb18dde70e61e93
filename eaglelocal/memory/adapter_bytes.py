"""The memory of LoRA adapters: llama.cpp puts their tensors beside the weights that they change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from eaglelocal.gguf.header import TensorInfo
from eaglelocal.memory.budget import RAM, Buffer, MemoryKind

BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.")
EMBEDDING = "token_embd."


def adapter_buffers(tensors: Iterable[TensorInfo], devices: Sequence[str]) -> Iterator[Buffer]:
    """Yield the memory of each tensor. devices: that of each layer, then that of the output."""
    for tensor in tensors:
        layer = BLOCK_TENSOR.match(tensor.name)
        output = RAM if tensor.name.startswith(EMBEDDING) else devices[-1]
        device = output if layer is None else devices[min(int(layer[1]), len(devices) - 1)]
        yield Buffer(device, MemoryKind.WEIGHTS, tensor.nbytes)
