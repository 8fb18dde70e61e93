"""Check that each device has the free memory that a plan needs. An error gives the sum and hints.

llama.cpp cannot check it: on Linux an allocation succeeds and the process is killed later. Pure arithmetic: needs come
from dry_run.py (exact) or `minimum_buffers` (immediate), free memory from llama_library.py. Neither includes what a
GPU's own library allocates while it computes: fit.py and memory/estimate.py add that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from eaglelocal.core.amounts import format_memory
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import CTX_STEP
from eaglelocal.errors import ResourceError
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.memory.cache_bytes import CacheParams, cache_bytes

RAM = "RAM"
GPU_MARGIN_BYTES = 2**30  # kept free; llama.cpp's own --fit leaves as much
RAM_MARGIN_SHARE, MIN_RAM_MARGIN_BYTES = 0.05, 2**30 // 2
UNIFIED_MARGIN_SHARE = 0.05  # of what the system lends the GPU, which is only a part of RAM
READ_SHARE = 0.8  # of the free RAM, that weights may take which are read into it instead of mapped from their file
FILE_PAGES = "are pages of the file, which the system may drop: speed varies, and more free memory steadies it"
HINT_SHARE = 0.9  # of what would just fit: free memory varies, and `minimum_buffers` leaves out buffers


class MemoryKind(StrEnum):
    """The purposes of memory."""

    WEIGHTS = "weights"
    CACHE = "cache"
    IMAGES = "images"  # weights and compute buffers of the projector
    BUFFERS = "buffers"  # compute, output and features
    RUNTIME = "runtime"  # taken by drivers and the process itself


@dataclass(frozen=True, slots=True)
class Buffer:
    """An amount of memory on a device, for one purpose."""

    device: str  # RAM, or a device as llama.cpp names it
    kind: MemoryKind
    num_bytes: int
    of_draft: bool = False


Needs = Sequence[Buffer]  # what a model holds


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The free memory of a device: RAM, or a GPU as llama.cpp names it."""

    device: str
    free_bytes: int | None  # None: unknown, and then it never causes a refusal
    in_ram: bool = False  # its memory is part of RAM


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustableSizes:
    """The sizes that a user can change."""

    n_ctx: int
    num_slots: int = 1
    gpu_layers: int | None = None  # None: all
    num_layers: int = 0  # that --gpu-layers counts; 0: unknown
    n_cpu_moe: int = 0
    movable_experts: int = 0  # number of layers with experts on a GPU that could stay in RAM
    expert_layer_bytes: int = 0  # of the experts of one layer

    @property
    def description(self) -> str:
        return f"{self.num_slots} x {self.n_ctx} tokens" if self.num_slots > 1 else f"{self.n_ctx} tokens"


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """The bytes that one device must hold, by kind, and its free bytes (None: unknown)."""

    device: str
    free_bytes: int | None
    in_ram: bool
    weights: int
    cache: int
    buffers: int
    images: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.buffers + self.images

    @property
    def missing_bytes(self) -> int:
        """The bytes that are missing; negative if some stay free, 0 if the free memory is unknown."""
        return 0 if self.free_bytes is None else self.total - self.free_bytes

    @property
    def cache_share(self) -> float:
        """The part of the cache, from 0 to 1, that would fit beside everything else."""
        spare = self.cache - self.missing_bytes
        return max(spare, 0) / self.cache if self.cache else 0.0


def minimum_buffers(shape: ModelShape, sizes: CacheParams) -> Iterator[Buffer]:
    """Yield the exact sizes of weights and cache, as if on one device.

    They are checked before a dry run, because a dry run itself takes 48 bytes per position.
    """
    yield Buffer(RAM, MemoryKind.WEIGHTS, shape.weights_bytes)
    yield Buffer(RAM, MemoryKind.CACHE, cache_bytes(shape, sizes))


def join_devices(devices: Iterable[FreeMemory]) -> FreeMemory:
    """Add up the free memory of all devices; unknown if any device's is unknown."""
    free = [device.free_bytes for device in devices if not device.in_ram]
    known = [num_bytes for num_bytes in free if num_bytes is not None]
    return FreeMemory(RAM, sum(known) if len(known) == len(free) else None)


def subtract_margins(devices: Iterable[FreeMemory]) -> tuple[FreeMemory, ...]:
    """Return the memory that a plan may use: other processes' use varies, and libraries allocate more."""
    return tuple(
        device
        if (free := device.free_bytes) is None
        else replace(device, free_bytes=max(free - margin_bytes(device), 0))
        for device in devices
    )


def margin_bytes(device: FreeMemory) -> int:
    """Return the bytes of the device to keep free."""
    free = device.free_bytes or 0
    if device.in_ram:
        return int(free * UNIFIED_MARGIN_SHARE)
    if device.device == RAM:
        return max(int(free * RAM_MARGIN_SHARE), MIN_RAM_MARGIN_BYTES)
    return GPU_MARGIN_BYTES


def may_read(weights_bytes: int, free_bytes: int | None) -> bool:
    """Return whether weights in RAM can be read into memory of their own, and leave some for caches and buffers.

    The system may drop pages of a mapped file, which then come back from the disk in the middle of an answer.
    """
    return free_bytes is not None and 0 < weights_bytes <= READ_SHARE * free_bytes


def check_fits(buffers: Sequence[Buffer], devices: Sequence[FreeMemory], sizes: AdjustableSizes) -> None:
    """Raise ResourceError, with the sum of the device that lacks most, if the buffers do not fit."""
    loads = [device_load(device, buffers, devices) for device in devices]
    worst = max(loads, key=lambda load: load.missing_bytes, default=None)
    if worst is None or worst.missing_bytes <= 0:
        return
    parts = [
        f"{format_memory(worst.weights)} of weights",
        f"{format_memory(worst.cache)} of cache for {sizes.description}",
    ]
    if worst.images:
        parts.append(f"{format_memory(worst.images)} for images")
    if worst.buffers:
        parts.append(f"{format_memory(worst.buffers)} of buffers")
    place = f" {'in' if worst.device == RAM else 'on'} {worst.device}" if len(devices) > 1 else ""
    free = format_memory(worst.free_bytes or 0)
    message = f"{', '.join(parts[:-1])} and {parts[-1]} do not fit the {free} that are free{place}"
    raise ResourceError(message, hint=" or ".join(suggest_flags(worst, loads, sizes)))


def device_load(device: FreeMemory, buffers: Sequence[Buffer], devices: Sequence[FreeMemory]) -> DeviceLoad:
    """Return the memory that the buffers need on one device; RAM includes devices that share it."""
    sharing = {other.device for other in devices if other.in_ram} if device.device == RAM else set()
    sums = dict.fromkeys(MemoryKind, 0)
    for buffer in buffers:
        if buffer.device in {device.device, *sharing}:
            sums[buffer.kind] += buffer.num_bytes
    return DeviceLoad(
        device.device,
        device.free_bytes,
        device.in_ram,
        weights=sums[MemoryKind.WEIGHTS],
        cache=sums[MemoryKind.CACHE],
        buffers=sums[MemoryKind.BUFFERS] + sums[MemoryKind.RUNTIME],
        images=sums[MemoryKind.IMAGES],
    )


def suggest_flags(short: DeviceLoad, loads: Sequence[DeviceLoad], sizes: AdjustableSizes) -> Iterator[str]:
    """Yield the flags that would help the device that is short of memory, the least costly for the user first."""
    n_ctx = int(sizes.n_ctx * short.cache_share * HINT_SHARE) // CTX_STEP * CTX_STEP
    if n_ctx:
        yield f"--ctx {n_ctx}"
    num_slots = int(sizes.num_slots * short.cache_share * HINT_SHARE)
    if num_slots:
        yield f"--parallel {num_slots}"
    if short.images:
        yield "--mmproj none"
    if short.device != RAM and short.weights:
        yield from suggest_more_in_ram(short, loads, sizes)
    elif sizes.gpu_layers is not None:
        yield from suggest_more_on_gpus(short, loads, sizes)
    if not n_ctx or short.weights > short.cache:
        yield "a smaller model or quantization"


def suggest_more_in_ram(short: DeviceLoad, loads: Sequence[DeviceLoad], sizes: AdjustableSizes) -> Iterator[str]:
    """Yield the flag that moves enough experts or layers off a GPU, if RAM has room for them."""
    moved_bytes = short.missing_bytes / HINT_SHARE
    ram = next((load for load in loads if load.device == RAM), None)
    if ram is not None and ram.free_bytes is not None and ram.missing_bytes + moved_bytes > 0:
        return
    num_experts = math.ceil(moved_bytes / sizes.expert_layer_bytes) if sizes.expert_layer_bytes else 0
    if 0 < num_experts <= sizes.movable_experts:
        yield f"--n-cpu-moe {sizes.n_cpu_moe + num_experts}"
        return
    layers = sizes.num_layers if sizes.gpu_layers is None else min(sizes.gpu_layers, sizes.num_layers)
    if layers:
        kept_share = 1 - moved_bytes / (short.weights + short.cache)
        yield f"--gpu-layers {max(int(layers * kept_share), 0)}"


def suggest_more_on_gpus(short: DeviceLoad, loads: Sequence[DeviceLoad], sizes: AdjustableSizes) -> Iterator[str]:
    """Yield the --gpu-layers that would free enough RAM, if the GPUs have room for the layers."""
    in_ram = sizes.num_layers - (sizes.gpu_layers or 0)
    if in_ram <= 0:
        return
    layer_bytes = (short.weights + short.cache) / in_ram
    num_moved = math.ceil(short.missing_bytes / HINT_SHARE / layer_bytes)
    spare_bytes = sum(max(-load.missing_bytes, 0) for load in loads if load is not short)
    if num_moved <= in_ram and num_moved * layer_bytes <= spare_bytes * HINT_SHARE:
        yield f"--gpu-layers {(sizes.gpu_layers or 0) + num_moved}"
