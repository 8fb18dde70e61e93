"""What fits where, as sums over tables: main memory alone, two GPUs, and memory that is shared or unknown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from eaglelocal.errors import ResourceError
from eaglelocal.memory.budget import (
    RAM,
    AdjustableSizes,
    Buffer,
    FreeMemory,
    MemoryKind,
    check_fits,
    device_load,
    join_devices,
)

GIB = 2**30
ASKED = AdjustableSizes(n_ctx=8192)


def buffers(**gib: tuple[float, float, float]) -> list[Buffer]:
    """Device -> GiB of weights, cache and buffers."""
    return [
        Buffer(device, kind, int(amount * GIB))
        for device, amounts in gib.items()
        for kind, amount in zip((MemoryKind.WEIGHTS, MemoryKind.CACHE, MemoryKind.BUFFERS), amounts, strict=True)
    ]


def rooms(**gib: float | None) -> list[FreeMemory]:
    return [FreeMemory(device, None if free is None else int(free * GIB)) for device, free in gib.items()]


def refused(held: Sequence[Buffer], there: Sequence[FreeMemory], asked: AdjustableSizes = ASKED) -> ResourceError:
    with pytest.raises(ResourceError) as caught:
        check_fits(held, there, asked)
    return caught.value


SPREAD = buffers(RAM=(2, 0, 1), CUDA0=(6, 1, 0.5), CUDA1=(5, 1, 0.5))


@pytest.mark.parametrize(
    "there",
    [
        rooms(RAM=3, CUDA0=7.5, CUDA1=6.5),  # to the byte
        rooms(RAM=64, CUDA0=24, CUDA1=24),
        rooms(RAM=None, CUDA0=8, CUDA1=8),
        rooms(RAM=4, CUDA0=None, CUDA1=8),
        rooms(RAM=None, CUDA0=None, CUDA1=None),
    ],
)
def test_what_fits_on_every_device_passes(there: list[FreeMemory]) -> None:
    check_fits(SPREAD, there, ASKED)


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (
            rooms(RAM=64, CUDA0=7, CUDA1=24),
            "6.0 GiB of weights, 1.0 GiB of cache for 8192 tokens and 512 MiB of buffers do not fit the 7.0 GiB that "
            "are free on CUDA0",
        ),
        (rooms(RAM=64, CUDA0=24, CUDA1=6), "5.0 GiB of weights"),
        (rooms(RAM=2.5, CUDA0=24, CUDA1=24), "2.0 GiB of weights, 0 MiB of cache"),
        (rooms(RAM=2.9, CUDA0=7, CUDA1=3), "free on CUDA1"),  # the one that lacks most
        (rooms(RAM=None, CUDA0=None, CUDA1=3), "free on CUDA1"),
        (rooms(RAM=64, CUDA0=0, CUDA1=24), "do not fit the 0 MiB that are free on CUDA0"),
    ],
)
def test_room_on_one_device_is_no_help_to_another(there: list[FreeMemory], says: str) -> None:
    assert says in refused(SPREAD, there).message


def test_without_a_gpu_the_memory_has_no_name() -> None:
    error = refused(buffers(RAM=(4, 8, 1)), rooms(RAM=8), AdjustableSizes(n_ctx=8192, num_slots=4))
    assert error.message == (
        "4.0 GiB of weights, 8.0 GiB of cache for 4 x 8192 tokens and 1.0 GiB of buffers do not fit "
        "the 8.0 GiB that are free"
    )


@pytest.mark.parametrize(
    ("held", "there", "asked", "hint"),
    [
        # 3 of 8 GiB of cache have room, less a tenth
        (buffers(RAM=(4, 8, 1)), rooms(RAM=8), AdjustableSizes(n_ctx=8192), "--ctx 2560"),
        (buffers(RAM=(4, 8, 1)), rooms(RAM=8), AdjustableSizes(n_ctx=8192, num_slots=4), "--ctx 2560 or --parallel 1"),
        (
            buffers(RAM=(7, 2, 1)),
            rooms(RAM=9),
            AdjustableSizes(n_ctx=8192),
            "--ctx 3584 or a smaller model or quantization",
        ),
        # weights alone are too much
        (buffers(RAM=(9, 1, 1)), rooms(RAM=8), AdjustableSizes(n_ctx=8192), "a smaller model or quantization"),
        (
            buffers(CUDA0=(9, 1, 1)),
            rooms(RAM=8, CUDA0=8),
            AdjustableSizes(n_ctx=8192, num_layers=33),
            "--gpu-layers 22 or a smaller model or quantization",  # 3.3 of 10 GiB go
        ),
        (
            buffers(CUDA0=(2, 8, 1)),
            rooms(RAM=8, CUDA0=8),
            AdjustableSizes(n_ctx=8192, num_layers=33),
            "--ctx 4608 or --gpu-layers 22",
        ),
        (
            buffers(CUDA0=(9, 1, 1)),
            rooms(RAM=8, CUDA0=8),
            AdjustableSizes(n_ctx=8192, num_layers=33, n_cpu_moe=2, movable_experts=30, expert_layer_bytes=GIB // 2),
            "--n-cpu-moe 9 or a smaller model or quantization",
        ),
        # more experts than there are: whole layers
        (
            buffers(CUDA0=(9, 1, 1)),
            rooms(RAM=8, CUDA0=8),
            AdjustableSizes(n_ctx=8192, num_layers=33, movable_experts=6, expert_layer_bytes=GIB // 2),
            "--gpu-layers 22 or a smaller model or quantization",
        ),
        # RAM has no room for what would leave the GPU
        (
            buffers(RAM=(1, 0, 0), CUDA0=(9, 1, 1)),
            rooms(RAM=4, CUDA0=8),
            AdjustableSizes(n_ctx=8192, num_layers=33),
            "a smaller model or quantization",
        ),
        # layers were kept off a GPU that has room
        (
            buffers(RAM=(9, 1, 1), CUDA0=(1, 1, 1)),
            rooms(RAM=8, CUDA0=24),
            AdjustableSizes(n_ctx=8192, gpu_layers=4, num_layers=33),
            "--gpu-layers 14 or a smaller model or quantization",  # 3.3 of 10 GiB in 29 layers
        ),
        (
            buffers(RAM=(9, 1, 1), CUDA0=(1, 1, 1)),
            rooms(RAM=8, CUDA0=3),
            AdjustableSizes(n_ctx=8192, gpu_layers=4, num_layers=33),
            "a smaller model or quantization",
        ),
    ],
)
def test_the_hint_names_what_would_help(
    held: list[Buffer], there: list[FreeMemory], asked: AdjustableSizes, hint: str
) -> None:
    assert refused(held, there, asked).hint == hint


def test_shared_memory_is_taken_from_both() -> None:
    there = [FreeMemory(RAM, 16 * GIB), FreeMemory("MTL0", 12 * GIB, in_ram=True)]
    held = buffers(RAM=(5, 0, 1), MTL0=(8, 2, 1))
    assert device_load(there[0], held, there).total == 17 * GIB
    assert "free in RAM" in refused(held, there).message
    assert "free on MTL0" in refused(buffers(MTL0=(12, 1, 1)), there).message
    check_fits(buffers(MTL0=(8, 2, 1)), there, ASKED)


@pytest.mark.parametrize(
    ("there", "free"),
    [
        (rooms(RAM=8, CUDA0=4, CUDA1=4), 16 * GIB),
        (rooms(RAM=8, CUDA0=None), None),
        ([FreeMemory(RAM, 8 * GIB), FreeMemory("MTL0", 6 * GIB, in_ram=True)], 8 * GIB),
    ],
)
def test_all_memory_as_one(there: list[FreeMemory], free: int | None) -> None:
    assert join_devices(there) == FreeMemory(RAM, free)
