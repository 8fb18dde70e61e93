"""Estimate the memory of a plan on each device from shapes alone, before anything is downloaded.

Weights, caches and states are exact for a shape that was read from a header; compute buffers are upper bounds
(compute_buffers.py). The constants for the process and the GPU runtimes are measured or reported by users. Once the
files are on disk, backend/dry_run.py gives exact figures in the same types (memory/budget.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from eaglelocal.core.plan import Plan
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.projector import Projector
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind
from eaglelocal.memory.cache_bytes import cache_bytes_of_layer
from eaglelocal.memory.compute_buffers import (
    compute_bytes,
    copies_bytes,
    inputs_bytes,
    logits_bytes,
    tap_bytes,
)
from eaglelocal.memory.contexts import ContextJob, contexts_of
from eaglelocal.memory.placement import expert_places, layer_devices, single_device_shares, used_gpus
from eaglelocal.memory.projector_bytes import image_buffers

GIB = 2**30
PROCESS_BYTES = int(0.25 * GIB)  # the engine's interpreter, llama.cpp's code, tokenizer and bookkeeping
# by device name without its number: context, kernels and library workspaces. CUDA: users report 0.35 to 0.8 GiB
RUNTIME_BYTES: Mapping[str, int] = MappingProxyType(
    {"CUDA": int(0.6 * GIB), "ROCm": int(0.6 * GIB), "SYCL": int(0.6 * GIB), "Vulkan": int(0.3 * GIB), "MTL": GIB // 10}
)
LARGEST_MATRIX_SHARE = 2 / 3  # at most, of a layer or its experts: two of three feed-forward matrices may be fused


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """The bytes of a plan by purpose, summed over all devices."""

    weights_bytes: int
    kv_bytes: int
    draft_bytes: int
    draft_kv_bytes: int
    compute_bytes: int  # buffers of target and draft, features and runtimes
    images_bytes: int = 0  # the projector

    @property
    def total_bytes(self) -> int:
        models = self.weights_bytes + self.kv_bytes + self.draft_bytes + self.draft_kv_bytes
        return models + self.compute_bytes + self.images_bytes


def estimate(
    plan: Plan,
    target: ModelShape,
    draft: ModelShape | None,
    rooms: Sequence[FreeMemory],
    projector: Projector | None = None,
) -> tuple[Buffer, ...]:
    """Return the buffers that the plan would allocate on each device.

    rooms  RAM and each GPU, as llama.cpp names it

    Raises UsageError on an unknown KV type.
    """
    gpus = used_gpus(rooms, device=plan.device, split=plan.split)
    jobs = contexts_of(plan, target, draft)
    output = layer_devices(target, gpus, plan.shares, gpu_layers=plan.gpu_layers)[-1]
    held: list[Buffer] = []
    for job in jobs:
        with_output = single_device_shares(gpus, output) if job.shape.is_head else ()
        held += buffers_of(job, gpus, with_output or plan.shares)
    held += image_buffers(projector, plan, gpus)
    return (*held, *runtimes(held))


def buffers_of(job: ContextJob, gpus: Sequence[FreeMemory], shares: Sequence[float]) -> Iterator[Buffer]:
    """Yield the buffers of one model, without those of runtimes."""
    shape = job.shape
    where = layer_devices(shape, gpus, shares, gpu_layers=job.gpu_layers)
    experts = expert_places(where[: shape.n_layer], job.n_cpu_moe)
    held = (
        *weights(shape, where, experts),
        *caches(job, where),
        *computing(job, where, experts),
        *rows(job, where),
    )
    for buffer in held:
        if buffer.num_bytes:
            yield replace(buffer, of_draft=job.of_draft)


def weights(shape: ModelShape, where: Sequence[str], experts: Sequence[str]) -> Iterator[Buffer]:
    """Yield the weights. Embeddings stay in RAM; if they are the output too, its device holds a copy.

    where    the device of each layer, then that of the output
    experts  the device of each layer's experts
    """
    output = where[-1]
    yield Buffer(RAM, MemoryKind.WEIGHTS, shape.embedding_bytes)
    yield Buffer(output, MemoryKind.WEIGHTS, shape.output_bytes)
    if output != RAM:
        yield Buffer(output, MemoryKind.WEIGHTS, shape.tied_output_bytes)
    for layer in range(shape.n_layer):
        routed = shape.experts_of_layer(layer)
        yield Buffer(where[layer], MemoryKind.WEIGHTS, shape.bytes_of_layer(layer) - routed)
        yield Buffer(experts[layer], MemoryKind.WEIGHTS, routed)


def caches(job: ContextJob, where: Sequence[str]) -> Iterator[Buffer]:
    for layer in range(job.shape.n_layer):
        yield Buffer(where[layer], MemoryKind.CACHE, cache_bytes_of_layer(job.shape, layer, job.sizes))


def computing(job: ContextJob, where: Sequence[str], experts: Sequence[str]) -> Iterator[Buffer]:
    """Yield the compute buffer of each device that computes, and that of RAM, where inputs are always prepared."""
    shape, sizes = job.shape, job.sizes
    computes = {*where, *experts}
    cards = computes - {RAM}
    copies = copies_bytes(shape, sizes) if len(cards) > 1 else 0
    if cards:
        yield Buffer(
            next(device for device in where if device != RAM), MemoryKind.BUFFERS, lent_bytes(job, where, experts)
        )
    for device in sorted(computes):
        max_outputs = job.max_outputs if device == where[-1] else None
        num_bytes = compute_bytes(shape, sizes, max_outputs=max_outputs, device=device)
        yield Buffer(device, MemoryKind.BUFFERS, num_bytes + (0 if device == RAM else copies))
    if RAM not in computes:
        yield Buffer(RAM, MemoryKind.BUFFERS, inputs_bytes(shape, sizes) + copies)


def lent_bytes(job: ContextJob, where: Sequence[str], experts: Sequence[str]) -> int:
    """Return the bytes on the first GPU for computing long prompts with layers that lie in RAM.

    llama.cpp copies one matrix or one layer's cache at a time, with its inputs, into that GPU's compute buffer. Of a
    layer with only its experts in RAM, their matrices count.
    """
    shape = job.shape
    on_host = [layer for layer in range(shape.n_layer) if where[layer] == RAM]
    routed = [layer for layer in range(shape.n_layer) if experts[layer] == RAM != where[layer]]
    parts = [shape.bytes_of_layer(layer) for layer in on_host] + [shape.experts_of_layer(layer) for layer in routed]
    if not any(parts):
        return 0
    cache = max((cache_bytes_of_layer(shape, layer, job.sizes) for layer in on_host), default=0)
    return max(int(max(parts) * LARGEST_MATRIX_SHARE), cache) + inputs_bytes(shape, job.sizes)


def rows(job: ContextJob, where: Sequence[str]) -> Iterator[Buffer]:
    """Yield logits, a head's hidden states, and tapped rows; the latter in RAM and on the device that computes them."""
    shape = job.shape
    state_width = shape.n_embd if shape.is_head else 0
    yield Buffer(RAM, MemoryKind.BUFFERS, logits_bytes(job.max_outputs, shape.n_vocab, state_width=state_width))
    tapped = job.num_taps * tap_bytes(job.sizes.n_batch, shape.n_embd)
    yield Buffer(RAM, MemoryKind.BUFFERS, tapped)
    yield Buffer(where[shape.n_layer // 2], MemoryKind.BUFFERS, tapped)  # at worst all on one device


def runtimes(held: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the memory of the process, and of the runtime of each GPU that is used."""
    yield Buffer(RAM, MemoryKind.RUNTIME, PROCESS_BYTES)
    for device in sorted({buffer.device for buffer in held} - {RAM}):
        yield Buffer(device, MemoryKind.RUNTIME, runtime_bytes(device))


def runtime_bytes(device: str) -> int:
    """Return the bytes of a GPU's runtime, by the device's name; of an unknown backend the largest known."""
    stem = device.rstrip("0123456789")
    return RUNTIME_BYTES.get(stem, max(RUNTIME_BYTES.values()))


def sum_by_purpose(buffers: Iterable[Buffer]) -> MemorySummary:
    """Return the bytes of the buffers by purpose."""
    sums: dict[tuple[MemoryKind, bool], int] = {}
    for buffer in buffers:
        key = buffer.kind, buffer.of_draft
        sums[key] = sums.get(key, 0) + buffer.num_bytes
    return MemorySummary(
        weights_bytes=sums.get((MemoryKind.WEIGHTS, False), 0),
        kv_bytes=sums.get((MemoryKind.CACHE, False), 0),
        draft_bytes=sums.get((MemoryKind.WEIGHTS, True), 0),
        draft_kv_bytes=sums.get((MemoryKind.CACHE, True), 0),
        compute_bytes=sum(size for (kind, _), size in sums.items() if kind in (MemoryKind.BUFFERS, MemoryKind.RUNTIME)),
        images_bytes=sums.get((MemoryKind.IMAGES, False), 0),
    )
