"""Check that what a plan needs on each device is free there. An error gives the sum and hints.

On Linux an allocation succeeds and the process is killed later, so llama.cpp cannot tell. Pure arithmetic: needs come
from dry_run.py (exact) or `minimum_buffers` (immediate), free memory from device_memory.py. Neither includes what a
GPU's own library allocates while it computes: fit.py and memory/estimate.py add that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from eaglelocal.errors import ResourceError
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.memory.cache_bytes import CacheParams, cache_bytes

RAM = "RAM"
CTX_STEP = 256  # a --ctx in a hint is a multiple of this, and at least this
GPU_MARGIN_BYTES = 2**30  # kept free; llama.cpp's own --fit leaves as much
RAM_MARGIN_SHARE, LEAST_RAM_MARGIN_BYTES = 0.05, 2**30 // 2
UNIFIED_MARGIN_SHARE = 0.05  # of what the system lends the GPU, which is only a part of RAM
HINTED_SHARE = 0.9  # of what would just fit: free memory varies, and `minimum_buffers` leaves out buffers


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


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The free memory of a device; None: unknown, and then it never causes a refusal."""

    device: str
    free_bytes: int | None
    in_ram: bool = False  # its memory is part of RAM


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustableSizes:
    """The sizes that a user can change."""

    n_ctx: int
    num_slots: int = 1
    gpu_layers: int | None = None  # None: all
    movable_experts: int = 0  # number of further layers whose experts could stay in RAM

    @property
    def tokens(self) -> str:
        return f"{self.num_slots} x {self.n_ctx} tokens" if self.num_slots > 1 else f"{self.n_ctx} tokens"


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """The memory that one device must hold, by kind."""

    room: FreeMemory
    weights: int
    cache: int
    buffers: int
    images: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.buffers + self.images

    @property
    def missing_bytes(self) -> int:
        """The bytes that are missing; negative if some stay free, zero if unknown."""
        return 0 if self.room.free_bytes is None else self.total - self.room.free_bytes

    @property
    def cache_share(self) -> float:
        """The part of the cache that would fit beside the rest."""
        spare = self.cache - self.missing_bytes
        return max(spare, 0) / self.cache if self.cache else 0.0


def minimum_buffers(shape: ModelShape, sizes: CacheParams, *, of_draft: bool = False) -> Iterator[Buffer]:
    """Yield the exact sizes of weights and cache, as if on one device.

    A check before llama.cpp plans, because planning itself takes 48 bytes per position.
    """
    yield Buffer(RAM, MemoryKind.WEIGHTS, shape.weights_bytes, of_draft)
    yield Buffer(RAM, MemoryKind.CACHE, cache_bytes(shape, sizes), of_draft)


def join_devices(rooms: Iterable[FreeMemory]) -> FreeMemory:
    """Return all memory as if it were one device's."""
    free = [room.free_bytes for room in rooms if not room.in_ram]
    known = [num_bytes for num_bytes in free if num_bytes is not None]
    return FreeMemory(RAM, sum(known) if len(known) == len(free) else None)


def subtract_margins(rooms: Iterable[FreeMemory]) -> tuple[FreeMemory, ...]:
    """Return the rooms without the margin to keep free: other processes' use varies, and libraries allocate more."""
    return tuple(
        room if room.free_bytes is None else replace(room, free_bytes=max(room.free_bytes - margin_bytes(room), 0))
        for room in rooms
    )


def margin_bytes(room: FreeMemory) -> int:
    free = room.free_bytes or 0
    if room.in_ram:
        return int(free * UNIFIED_MARGIN_SHARE)
    if room.device == RAM:
        return max(int(free * RAM_MARGIN_SHARE), LEAST_RAM_MARGIN_BYTES)
    return GPU_MARGIN_BYTES


def check_fits(buffers: Sequence[Buffer], rooms: Sequence[FreeMemory], asked: AdjustableSizes) -> None:
    """Raise ResourceError, with the sum of the device that lacks most, if the buffers do not fit."""
    loads = [device_load(room, buffers, rooms) for room in rooms]
    worst = max(loads, key=lambda load: load.missing_bytes, default=None)
    if worst is None or worst.missing_bytes <= 0:
        return
    what = [f"{format_size(worst.weights)} of weights", f"{format_size(worst.cache)} of cache for {asked.tokens}"]
    if worst.images:
        what.append(f"{format_size(worst.images)} for images")
    if worst.buffers:
        what.append(f"{format_size(worst.buffers)} of buffers")
    place = f" {'in' if worst.room.device == RAM else 'on'} {worst.room.device}" if len(rooms) > 1 else ""
    free = format_size(worst.room.free_bytes or 0)
    message = f"{', '.join(what[:-1])} and {what[-1]} do not fit the {free} that are free{place}"
    raise ResourceError(message, hint=" or ".join(ways_out(worst, loads, asked)))


def device_load(room: FreeMemory, buffers: Sequence[Buffer], rooms: Sequence[FreeMemory]) -> DeviceLoad:
    """Return what the buffers require of a device; RAM includes devices that share it."""
    held = {room.device} | ({other.device for other in rooms if other.in_ram} if room.device == RAM else set())
    sums = dict.fromkeys(MemoryKind, 0)
    for buffer in buffers:
        if buffer.device in held:
            sums[buffer.kind] += buffer.num_bytes
    return DeviceLoad(
        room,
        sums[MemoryKind.WEIGHTS],
        sums[MemoryKind.CACHE],
        sums[MemoryKind.BUFFERS] + sums[MemoryKind.RUNTIME],
        sums[MemoryKind.IMAGES],
    )


def ways_out(short: DeviceLoad, loads: Sequence[DeviceLoad], asked: AdjustableSizes) -> Iterator[str]:
    """Yield the flags that would help the device that is short, least loss first."""
    n_ctx = int(asked.n_ctx * short.cache_share * HINTED_SHARE) // CTX_STEP * CTX_STEP
    if n_ctx:
        yield f"--ctx {n_ctx}"
    num_slots = int(asked.num_slots * short.cache_share * HINTED_SHARE)
    if num_slots:
        yield f"--parallel {num_slots}"
    if short.images:
        yield "--mmproj none"
    if short.room.device != RAM and short.weights:
        yield "a larger --n-cpu-moe" if asked.movable_experts else "a smaller --gpu-layers"
    elif asked.gpu_layers is not None and any(other.missing_bytes < 0 for other in loads if other is not short):
        yield "a larger --gpu-layers"
    if not n_ctx or short.weights > short.cache:
        yield "a smaller model or quantization"


def format_size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
