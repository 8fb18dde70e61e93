"""NVML through a double that is a real class: full, absent, and failing call by call."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from eaglelocal.probe.apple import unified_from
from eaglelocal.probe.gpus import read_gpus
from eaglelocal.probe.machine import Gpu, Unified


@dataclass(frozen=True)
class Memory:
    total: int
    free: int


@dataclass
class TwoCards:
    """Two devices; the calls named in `failing` raise, as NVML does."""

    failing: frozenset[str] = frozenset()
    calls: list[str] = field(default_factory=list)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise RuntimeError(f"{name}: Not Supported")

    def nvmlInit(self) -> None:
        self._call("init")

    def nvmlShutdown(self) -> None:
        self._call("shutdown")

    def nvmlSystemGetDriverVersion(self) -> bytes:
        self._call("driver")
        return b"550.54.14"

    def nvmlDeviceGetCount(self) -> int:
        self._call("count")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> object:
        self._call("handle")
        return ("NVIDIA GeForce RTX 3090", "Tesla P40")[index]

    def nvmlDeviceGetName(self, handle: object, /) -> str:
        self._call("name")
        return str(handle)

    def nvmlDeviceGetMemoryInfo(self, handle: object, /) -> Memory:
        self._call("memory")
        return Memory(24 << 30, 20 << 30)

    def nvmlDeviceGetCudaComputeCapability(self, handle: object, /) -> tuple[int, int]:
        self._call("capability")
        return (8, 6) if "3090" in str(handle) else (6, 1)


def test_two_cards() -> None:
    nvml = TwoCards()
    size = {"total_bytes": 24 << 30, "free_bytes": 20 << 30}
    assert read_gpus(nvml) == (
        Gpu(index=0, name="NVIDIA GeForce RTX 3090", capability="8.6", driver="550.54.14", **size),
        Gpu(index=1, name="Tesla P40", capability="6.1", driver="550.54.14", **size),
    )
    assert nvml.calls[-1] == "shutdown"


def test_no_library_and_no_driver() -> None:
    assert read_gpus(None) == ()
    assert read_gpus(TwoCards(frozenset({"init"}))) == ()
    assert read_gpus(TwoCards(frozenset({"count"}))) == ()


@pytest.mark.parametrize(
    ("failing", "unknown"),
    [
        ("name", {"name"}),
        ("memory", {"total_bytes", "free_bytes"}),
        ("capability", {"capability"}),
        ("driver", {"driver"}),
        ("handle", {"name", "total_bytes", "free_bytes", "capability"}),
        ("shutdown", set()),
    ],
)
def test_a_failing_call_costs_only_its_figure(failing: str, unknown: set[str]) -> None:
    gpus = read_gpus(TwoCards(frozenset({failing})))
    assert len(gpus) == 2
    names = ("name", "total_bytes", "free_bytes", "capability", "driver")
    assert {name for name in names if getattr(gpus[0], name) is None} == unknown


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("Apple M2 Max", "34359738368", "0"), Unified(chip="Apple M2 Max", total_bytes=32 << 30)),
        (
            ("Apple M1", "17179869184", "12288"),
            Unified(chip="Apple M1", total_bytes=16 << 30, gpu_limit_bytes=12 << 30),
        ),
        ((None, None, None), Unified()),
        (("", "?", "-1"), Unified()),
    ],
)
def test_apple_memory(values: tuple[str | None, str | None, str | None], expected: Unified) -> None:
    assert unified_from(*values) == expected
