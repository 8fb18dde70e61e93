"""NVIDIA devices through NVML. No driver, no library or a failing call is an answer, not an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from eaglelocal.probe.machine import Gpu

T = TypeVar("T")


class MemoryInfo(Protocol):
    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


class Nvml(Protocol):
    """The part of pynvml that is used; any call may raise."""

    def nvmlInit(self) -> object: ...
    def nvmlShutdown(self) -> object: ...
    def nvmlSystemGetDriverVersion(self) -> str | bytes: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> object: ...
    def nvmlDeviceGetName(self, handle: object, /) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: object, /) -> MemoryInfo: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: object, /) -> tuple[int, int]: ...


def installed_nvml() -> Nvml | None:
    try:
        import pynvml
    except Exception:  # not installed, or broken in a way of its own
        return None
    return pynvml


def read_gpus(nvml: Nvml | None) -> tuple[Gpu, ...]:
    """Empty without a driver."""
    if nvml is None:
        return ()
    try:
        nvml.nvmlInit()
    except Exception:  # NVML's own errors share no base that is safe to import here
        return ()
    try:
        return _devices(nvml)
    finally:
        _attempt(nvml.nvmlShutdown)


def _devices(nvml: Nvml) -> tuple[Gpu, ...]:
    driver = _text(_attempt(nvml.nvmlSystemGetDriverVersion))
    num_devices = _attempt(nvml.nvmlDeviceGetCount) or 0
    return tuple(_device(nvml, index, driver) for index in range(num_devices))


def _device(nvml: Nvml, index: int, driver: str | None) -> Gpu:
    handle = _attempt(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:  # fallen off the bus, or forbidden
        return Gpu(index=index, driver=driver)
    memory = _attempt(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    capability = _attempt(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return Gpu(
        index=index,
        name=_text(_attempt(lambda: nvml.nvmlDeviceGetName(handle))),
        total_bytes=memory.total if memory else None,
        free_bytes=memory.free if memory else None,
        capability=f"{capability[0]}.{capability[1]}" if capability else None,
        driver=driver,
    )


def _attempt(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Exception:  # one figure that a driver does not give must not cost the others
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
