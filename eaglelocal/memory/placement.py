"""Compute the device of each layer as the pinned llama.cpp does (llama_model_base::load_tensors)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import is_rpc_device
from eaglelocal.errors import UsageError
from eaglelocal.gguf.architectures import NO_TENSOR_SPLIT
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.gguf.model_shape import MTP, ModelShape
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind


@dataclass(frozen=True, slots=True)
class Offload:
    """The part of a model that lies on the GPUs.

    gpu_layers  number of layers, counted from the last, the output included, as in llama.cpp; None: all
    n_cpu_moe   number of first layers whose experts stay in RAM
    shares      of the layers on each GPU; empty: as the options say, else by free memory
    """

    gpu_layers: int | None = None
    n_cpu_moe: int = 0
    shares: tuple[float, ...] = ()

    @property
    def is_whole(self) -> bool:
        return self.gpu_layers is None and not self.n_cpu_moe


WHOLE = Offload()
MAPPING = "MTL"  # begins the names of built-in GPUs that use mapped files (caps.mmap_support of the backends)


def place_blocks(
    num_blocks: int, gpus: Sequence[str], shares: Sequence[float], *, gpu_layers: int | None
) -> tuple[str, ...]:
    """Return the device of each block, then the output's. `gpu_layers`: how many, from the last; None: all.

    The output stays on this machine: with only devices of rpc-servers, it lies in RAM (backend/llama_library.py).

    >>> place_blocks(3, ("CUDA0", "CUDA1"), (1.0, 1.0), gpu_layers=3)
    ('RAM', 'CUDA0', 'CUDA0', 'CUDA1')
    """
    total = num_blocks + 1
    num_on_gpus = total if gpu_layers is None else min(gpu_layers, total)
    if not gpus or not num_on_gpus or sum(shares) <= 0:
        return (RAM,) * total
    ends = [end / sum(shares) for end in accumulate(shares[: len(gpus) - 1])]  # the last GPU takes the rest
    placed = [gpus[bisect_right(ends, layer / num_on_gpus)] for layer in range(num_on_gpus)]
    output = RAM if is_rpc_device(placed[-1]) else placed[-1]
    return (*(RAM,) * (total - num_on_gpus), *placed[:-1], output)


def place_layers(
    shape: ModelShape, gpus: Sequence[FreeMemory], shares: Sequence[float], *, gpu_layers: int | None
) -> tuple[str, ...]:
    """Return the device of each layer and of the output. MTP layers count too, though they are not loaded.

    shares  of each GPU; empty: by free memory
    """
    names = [gpu.device for gpu in gpus]
    return place_blocks(shape.n_layer + shape.n_layer_ahead, names, resolve_shares(gpus, shares), gpu_layers=gpu_layers)


def place_experts(devices: Sequence[str], n_cpu_moe: int) -> tuple[str, ...]:
    """Return the device of each layer's experts. `devices`: the device of each layer."""
    return tuple(RAM if layer < n_cpu_moe else device for layer, device in enumerate(devices))


def table_buffers(shape: ModelShape, gpus: Sequence[FreeMemory]) -> Iterator[Buffer]:
    """Yield a table that llama.cpp loads whole: where a built-in GPU, other than Apple's, cannot use mapped files."""
    if any(gpu.in_ram and not gpu.device.startswith(MAPPING) for gpu in gpus):
        yield Buffer(RAM, MemoryKind.WEIGHTS, shape.table_bytes)


def choose_gpus(devices: Sequence[FreeMemory], *, device: str | None, split: str) -> tuple[FreeMemory, ...]:
    """Return the GPUs that a plan uses, in llama.cpp's order. `device`: comma-separated names; None: all."""
    names = None if device is None else [name.strip() for name in device.split(",")]
    gpus = [gpu for gpu in devices if gpu.device != RAM and (names is None or gpu.device in names)]
    gpus.sort(key=lambda gpu: not is_rpc_device(gpu.device))  # those of rpc-servers come first
    if names is not None:
        gpus.sort(key=lambda gpu: names.index(gpu.device))
    elif not all(gpu.in_ram or is_rpc_device(gpu.device) for gpu in gpus):  # as llama.cpp: none beside a discrete one
        gpus = [gpu for gpu in gpus if not gpu.in_ram]
    return tuple(gpus[:1] if split == "none" else gpus)


def single_device_shares(gpus: Sequence[FreeMemory], device: str) -> tuple[float, ...]:
    """Return shares that put all layers on one device; empty if that is RAM.

    A head lies on the device of its target's output, which it may borrow. If it were split over two GPUs, its few rows
    would cross between them for each drafted token.
    """
    return tuple(float(gpu.device == device) for gpu in gpus) if device != RAM else ()


def resolve_shares(gpus: Sequence[FreeMemory], shares: Sequence[float]) -> tuple[float, ...]:
    """Return each GPU's share of the layers: the given shares, or by free memory, or even shares if that is unknown."""
    if shares:
        return tuple(shares[: len(gpus)]) + (0.0,) * (len(gpus) - len(shares))
    free = [gpu.free_bytes for gpu in gpus]
    if None in free or not any(free):
        return (1.0,) * len(gpus)
    return tuple(float(num_bytes or 0) for num_bytes in free)


# ---- adapter bytes: the memory of LoRA adapters: llama.cpp puts their tensors beside the weights that they change
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


# ---- tensor split: divide a model by tensors among several GPUs, as llama.cpp's LLAMA_SPLIT_MODE_TENSOR does
#
# Each GPU holds an equal part of every layer's weights and cache, and all compute at once. A model of its own that
# drafts lies on the first GPU alone: its steps are too small to be worth the exchange.
DIVIDED = (MemoryKind.WEIGHTS, MemoryKind.CACHE)  # at most, each GPU has the other buffers whole

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

    An MTP layer is divided with its target. An assistant in a file of its own brings its own output.
    """
    if draft is None or not draft.is_head or draft.architecture == MTP or draft.read_output_bytes:
        return ""
    return BORROWS_OUTPUT


def divide_buffers(buffers: Iterable[Buffer], gpus: Sequence[FreeMemory]) -> Iterator[Buffer]:
    """Divide the buffers of a model placed on the first GPU among all GPUs."""
    first, *_ = gpus
    for buffer in buffers:
        if buffer.device != first.device:
            yield buffer
            continue
        part = -(-buffer.num_bytes // len(gpus)) if buffer.kind in DIVIDED else buffer.num_bytes
        yield from (replace(buffer, device=gpu.device, num_bytes=part) for gpu in gpus)
