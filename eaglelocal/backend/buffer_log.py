"""Parse the memory use that llama.cpp logs, of a real load or of a dry run.

Knows the log lines of the pinned build. A dry run (dry_run.py) logs layers and their devices but not the size of
weights, so those are computed from the file's header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from eaglelocal.backend.llama_library import LlamaLog
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.gguf.loaded_tensors import find_block, is_expert, is_input
from eaglelocal.memory.budget import RAM, Buffer, MemoryKind

# Each begins with the name of the function that logs it, so that a line that only quotes one does not match.
BUFFER_LINE = re.compile(r"\w+: +(\S+) +(model|KV|compute|output|RS|DSV4 \w+ state) +buffer size *= *([\d.]+) *MiB")
COMPRESSOR_STATE = "DSV4"  # begins the kind of buffers with DeepSeek V4's recurrent state
LAYER_LINE = re.compile(r"load_tensors: layer +(\d+) assigned to device ([^,]+),")
CACHE_LAYER_LINE = re.compile(r"\w+[:,] +layer +\d+: dev = (\S+)")
CACHE_SIZE_LINE = re.compile(
    r"\w+: (?:\w+ ratio = .* )?size = *([\d.]+) MiB(?: \( *\d+ cells,|$)"
)  # of the layers logged before it
MIB = 2**20


def sum_buffer_bytes(log: LlamaLog) -> dict[str, int]:
    """Return bytes by kind of buffer, summed over devices, as far as the log holds them."""
    totals: dict[str, int] = {}
    for line in log.buffer_lines:
        if match := BUFFER_LINE.match(line):
            kind = "RS" if match.group(2).startswith(COMPRESSOR_STATE) else match.group(2)
            totals[kind] = totals.get(kind, 0) + int(float(match.group(3)) * MIB)
    return totals


def sum_host_bytes(log: LlamaLog, devices: Sequence[str], *, lends_memory: bool) -> int:
    """Return the bytes of all logged buffers that lie in RAM.

    devices       the GPUs' names
    lends_memory  the GPUs use RAM too
    """
    gpus = () if lends_memory else devices
    found = (match for line in log.buffer_lines if (match := BUFFER_LINE.match(line)))
    return sum(int(float(match.group(3)) * MIB) for match in found if find_device(match.group(1), gpus) == RAM)


def find_device(name: str, devices: Sequence[str]) -> str:
    """Return the device of a buffer by its name: `MTL0_Private` is on `MTL0`, `CUDA_Host` in RAM."""
    return max((device for device in devices if name.startswith(device)), key=len, default=RAM)


def parse_layer_devices(lines: Iterable[str], devices: Sequence[str]) -> dict[int, str]:
    """Return the device of each layer; the layer after the last one is the output."""
    found = (match for line in lines if (match := LAYER_LINE.match(line)))
    return {int(match.group(1)): find_device(match.group(2), devices) for match in found}


def weight_buffers(
    tensors: Iterable[TensorInfo], layers: Mapping[int, str], *, borrows: bool, n_cpu_moe: int = 0
) -> Iterator[Buffer]:
    """Yield the weights by device. Embeddings that are the output too count on its device as well.

    layers     the device of each layer; the layer after the last one is the output
    borrows    True for a head that uses its target's output
    n_cpu_moe  as in Placement
    """
    output = layers[max(layers)] if layers else RAM
    names = {tensor.name: tensor for tensor in tensors}
    for name, tensor in names.items():
        block = find_block(name)
        device = layers.get(block, RAM) if block is not None else RAM if is_input(name) else output
        if block is not None and block < n_cpu_moe and is_expert(name):
            device = RAM
        yield Buffer(device, MemoryKind.WEIGHTS, tensor.nbytes)
    embeddings = names.get("token_embd.weight")
    if embeddings is not None and "output.weight" not in names and output != RAM and not borrows:
        yield Buffer(output, MemoryKind.WEIGHTS, embeddings.nbytes)


def parse_cache_buffers(lines: Iterable[str], devices: Sequence[str]) -> Iterator[Buffer]:
    """Yield the caches by device. The log names a cache's layers, then their total; a model may have several caches."""
    layers: list[str] = []
    for line in lines:
        if match := CACHE_LAYER_LINE.match(line):
            layers.append(find_device(match.group(1), devices))
        elif (match := CACHE_SIZE_LINE.match(line)) and layers:
            share = float(match.group(1)) * MIB / len(layers)
            yield from (Buffer(device, MemoryKind.CACHE, int(share)) for device in layers)
            layers = []


def parse_compute_buffers(lines: Iterable[str], devices: Sequence[str]) -> Iterator[Buffer]:
    for line in lines:
        if (match := BUFFER_LINE.match(line)) and match.group(2) == "compute":
            yield Buffer(find_device(match.group(1), devices), MemoryKind.BUFFERS, int(float(match.group(3)) * MIB))
