"""Estimate the memory of a plan on each device from shapes alone, before anything is downloaded.

Weights, caches and states are exact for a shape that was read from a header; compute buffers are upper bounds
(contexts.py). The constants for the process and the GPU runtimes are measured or reported by users. Once the
files are on disk, backend/dry_run.py gives exact figures in the same types (memory/budget.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from eaglelocal.core.amounts import GIB
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import TENSOR, is_rpc_device
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.projector import Projector, max_image_tokens
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind
from eaglelocal.memory.cache_bytes import list_cache_bytes
from eaglelocal.memory.contexts import (
    FLOAT_BYTES,
    HALF_BYTES,
    PlannedContext,
    compute_bytes,
    copies_bytes,
    inputs_bytes,
    logits_bytes,
    plan_contexts,
    tap_bytes,
)
from eaglelocal.memory.placement import (
    adapter_buffers,
    choose_gpus,
    divide_buffers,
    place_experts,
    place_layers,
    single_device_shares,
    table_buffers,
)
from eaglelocal.memory.tensor_moves import find_moves, moved_buffers

PROCESS_BYTES = int(0.25 * GIB)  # the engine's interpreter, llama.cpp's code, tokenizer and bookkeeping
# by device name without its number: context, kernels and library workspaces. CUDA: users report 0.35 to 0.8 GiB
RUNTIME_BYTES: Mapping[str, int] = MappingProxyType(
    {"CUDA": int(0.6 * GIB), "ROCm": int(0.6 * GIB), "SYCL": int(0.6 * GIB), "Vulkan": int(0.3 * GIB), "MTL": GIB // 10}
)
# largest share of one matrix in a layer or its experts: two of three feed-forward matrices may be fused
LARGEST_MATRIX_SHARE = 2 / 3


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
    devices: Sequence[FreeMemory],
    projector: Projector | None = None,
    adapters: Sequence[TensorInfo] = (),
    tensors: Sequence[TensorInfo] = (),
) -> tuple[Buffer, ...]:
    """Return the buffers that the plan would allocate on each device.

    devices   RAM and each GPU
    adapters  the tensors of LoRA adapters
    tensors   those of the target, for the plan's overrides; empty: not known, and nothing is counted for them

    Raises UsageError on an unknown KV type.
    """
    gpus = choose_gpus(devices, device=plan.device, split=plan.split)
    buffers = [*adapter_buffers(adapters, plan, target, gpus), *table_buffers(target, gpus)]
    dividing = gpus if plan.split == TENSOR else ()
    gpus = gpus[:1] if dividing else gpus
    contexts = plan_contexts(plan, target, draft)
    layers = place_layers(target, gpus, plan.shares, gpu_layers=plan.gpu_layers)
    experts, output = place_experts(layers, plan.n_cpu_moe), layers[-1]
    buffers += moved_buffers([*find_moves(tensors, plan.overrides, layers, experts)], contexts[0])
    for context in contexts:
        head_shares = single_device_shares(gpus, output) if context.shape.is_head else ()
        near = [gpu for gpu in gpus if not (context.of_draft and is_rpc_device(gpu.device))]  # drafts stay here
        shares = head_shares or plan.shares
        found = estimate_context(context, near, shares[-len(near) :] if near else ())
        buffers += divide_buffers(found, dividing) if dividing and not context.of_draft else found
    buffers += image_buffers(projector, plan, gpus)
    return (*buffers, *runtime_buffers(buffers))


def estimate_context(context: PlannedContext, gpus: Sequence[FreeMemory], shares: Sequence[float]) -> Iterator[Buffer]:
    """Yield the buffers of one model and its context, but not of runtimes."""
    shape = context.shape
    devices = place_layers(shape, gpus, shares, gpu_layers=context.gpu_layers)
    expert_devices = place_experts(devices[: shape.n_layer], context.n_cpu_moe)
    buffers = (
        *weight_buffers(shape, devices, expert_devices),
        *sum_buffers(MemoryKind.CACHE, zip(devices, list_cache_bytes(shape, context.sizes), strict=False)),
        *compute_buffers(context, devices, expert_devices),
        *output_buffers(context, devices),
    )
    for buffer in buffers:
        if buffer.num_bytes:
            yield replace(buffer, of_draft=True) if context.of_draft else buffer


def weight_buffers(shape: ModelShape, devices: Sequence[str], expert_devices: Sequence[str]) -> Iterator[Buffer]:
    """Yield the weights. Embeddings stay in RAM; if they are the output too, its device holds a copy.

    devices         the device of each layer, then that of the output
    expert_devices  the device of each layer's experts
    """
    output = devices[-1]
    yield Buffer(RAM, MemoryKind.WEIGHTS, shape.embedding_bytes)
    yield Buffer(output, MemoryKind.WEIGHTS, shape.output_bytes)
    if output != RAM:
        yield Buffer(output, MemoryKind.WEIGHTS, shape.tied_output_bytes)
    routed = [shape.experts_of_layer(layer) for layer in range(shape.n_layer)]
    others = [shape.bytes_of_layer(layer) - routed[layer] for layer in range(shape.n_layer)]
    yield from sum_buffers(MemoryKind.WEIGHTS, zip(devices, others, strict=False))
    yield from sum_buffers(MemoryKind.WEIGHTS, zip(expert_devices, routed, strict=False))


def sum_buffers(kind: MemoryKind, parts: Iterable[tuple[str, int]]) -> Iterator[Buffer]:
    """Yield a buffer for each device with the bytes of all its parts."""
    sums = Counter[str]()
    for device, num_bytes in parts:
        sums[device] += num_bytes
    return (Buffer(device, kind, num_bytes) for device, num_bytes in sums.items())


def sum_apart_bytes(plan: Plan, target: ModelShape, gpus: Sequence[FreeMemory], tensors: Sequence[TensorInfo]) -> int:
    """Return the bytes of the weights in RAM if experts or other tensors lie there apart from their layer; else 0."""
    layers = place_layers(target, gpus, plan.shares, gpu_layers=plan.gpu_layers)
    experts = place_experts(layers, plan.n_cpu_moe)
    moves = [*find_moves(tensors, plan.overrides, layers, experts)]
    moved_bytes = sum(move.tensor.nbytes for move in moves if move.device == RAM)
    if not moved_bytes and all(experts[layer] == layers[layer] for layer in range(target.n_layer)):
        return 0
    there = (each.num_bytes for each in weight_buffers(target, layers, experts) if each.device == RAM)
    return sum(there) + moved_bytes


def compute_buffers(context: PlannedContext, devices: Sequence[str], expert_devices: Sequence[str]) -> Iterator[Buffer]:
    """Yield the compute buffers of each device that computes, and of RAM, where inputs are always prepared."""
    shape, sizes = context.shape, context.sizes
    computing = {*devices, *expert_devices}
    gpus = computing - {RAM}
    copies = copies_bytes(shape, sizes) if len(gpus) > 1 else 0
    if gpus:
        first_gpu = next(device for device in devices if device != RAM)
        yield Buffer(first_gpu, MemoryKind.BUFFERS, staging_bytes(context, devices, expert_devices))
    for device in sorted(computing):
        max_outputs = context.max_outputs if device == devices[-1] else None
        num_bytes = compute_bytes(shape, sizes, max_outputs=max_outputs, device=device)
        yield Buffer(device, MemoryKind.BUFFERS, num_bytes + (0 if device == RAM else copies))
    if RAM not in computing:
        yield Buffer(RAM, MemoryKind.BUFFERS, inputs_bytes(shape, sizes) + copies)


def staging_bytes(context: PlannedContext, devices: Sequence[str], expert_devices: Sequence[str]) -> int:
    """Return the bytes on the first GPU for computing long prompts with layers that are in RAM.

    llama.cpp copies one matrix or one layer's cache at a time, with its inputs, into that GPU's compute buffer. If only
    a layer's experts are in RAM, only their matrices count.
    """
    shape = context.shape
    on_host = [layer for layer in range(shape.n_layer) if devices[layer] == RAM]
    routed = [layer for layer in range(shape.n_layer) if expert_devices[layer] == RAM != devices[layer]]
    parts = [shape.bytes_of_layer(layer) for layer in on_host] + [shape.experts_of_layer(layer) for layer in routed]
    if not any(parts):
        return 0
    caches = list_cache_bytes(shape, context.sizes)
    cache = max((caches[layer] for layer in on_host), default=0)
    return max(int(max(parts) * LARGEST_MATRIX_SHARE), cache) + inputs_bytes(shape, context.sizes)


def output_buffers(context: PlannedContext, devices: Sequence[str]) -> Iterator[Buffer]:
    """Yield logits and a head's states, in RAM; and tapped rows, in RAM and on the device that computes them."""
    shape = context.shape
    state_width = shape.n_embd if shape.is_head else 0
    yield Buffer(RAM, MemoryKind.BUFFERS, logits_bytes(context.max_outputs, shape.n_vocab, state_width=state_width))
    for upper in shape.list_upper():
        yield Buffer(RAM, MemoryKind.BUFFERS, logits_bytes(context.max_outputs, upper.n_vocab))
    tapped = context.num_taps * tap_bytes(context.sizes.n_batch, context.tap_width or shape.n_embd)
    yield Buffer(RAM, MemoryKind.BUFFERS, tapped)
    yield Buffer(devices[shape.n_layer // 2], MemoryKind.BUFFERS, tapped)  # at worst all on one device


def runtime_buffers(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the memory of the process, and of the runtime of each GPU that is used."""
    yield Buffer(RAM, MemoryKind.RUNTIME, PROCESS_BYTES)
    for device in sorted({buffer.device for buffer in buffers} - {RAM}):
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


# ---- projector bytes: estimate the memory for reading images: a projector's weights, and the buffers for encoding
# one image. Pure
CHANNELS = 3
ATTENTION_ROWS, FEED_FORWARD_ROWS = 8, 3  # rows alive at once in a layer, the residual included


def image_buffers(projector: Projector | None, plan: Plan, gpus: Sequence[FreeMemory]) -> Iterator[Buffer]:
    """Yield a projector's buffers: on the first GPU if the target uses one, else in RAM. None without a projector."""
    if projector is None:
        return
    projector = projector.limit_tokens(max_image_tokens(projector.kind, n_ctx=plan.n_ctx, n_batch=plan.n_batch))
    device = gpus[0].device if gpus and plan.gpu_layers != 0 and not plan.rpc else RAM
    yield Buffer(device, MemoryKind.IMAGES, projector.weights_bytes + encoding_bytes(projector))
    if device != RAM:
        yield Buffer(RAM, MemoryKind.IMAGES, image_bytes(projector))


def image_bytes(projector: Projector) -> int:
    """Return the bytes of the largest image as floats, and of the rows it is encoded to."""
    pixels = projector.num_patches * projector.patch_size**2
    return FLOAT_BYTES * (CHANNELS * pixels + projector.num_patches * (projector.width or projector.n_embd))


def encoding_bytes(projector: Projector, *, flash_attn: bool = True) -> int:
    """Return an upper bound of the buffer for encoding the largest image; llama.cpp reserves it for the first image.

    Layers reuse the buffer, so one layer counts. For each patch at most these are alive: the residual row, its norm,
    queries, keys and values, their permuted copies, and the attention's output (8 rows of the width); or the residual,
    its norm and the sum, plus three rows of the feed-forward's width: gate, up, product. Before the first layer the
    image is there by patches, as it came and unfolded. A mask (window attention) has a float and a half float for each
    pair of patches; scores (no flash attention) two floats for each pair and head. llama.cpp uses flash attention
    wherever the device has it.
    """
    layer = max(ATTENTION_ROWS * projector.n_embd, FEED_FORWARD_ROWS * (projector.n_embd + projector.n_ff))
    unfolded = 2 * CHANNELS * projector.patch_size**2
    pairs = projector.num_patches**2
    mask = pairs * (FLOAT_BYTES + HALF_BYTES) if projector.has_windows else 0
    scores = 0 if flash_attn else 2 * FLOAT_BYTES * pairs * projector.n_head
    return projector.num_patches * FLOAT_BYTES * max(layer, unfolded) + image_bytes(projector) + mask + scores
