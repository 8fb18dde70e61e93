"""The current load of this machine: CPU, memory, and GPUs with their power and temperature.

Sensors are opened once and read every few seconds. Never raises; what is not known is None. A driver that hangs
blocks only the thread that reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from eaglelocal.core.records import dataclass
from eaglelocal.probe.nvml_gpus import attempt, decode

CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")  # as Linux names them
INTERVAL_S, FIRST_S = 2.0, 0.3
TEMPERATURE_GPU = 0  # NVML's number for the sensor on the die


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGauge:
    """A reading of one GPU."""

    index: int
    name: str | None = None
    load: float | None = None  # share of the last interval in which it computed, 0 to 1
    used_bytes: int | None = None
    total_bytes: int | None = None
    power_w: float | None = None
    limit_w: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGauge:
    """A reading of the whole machine."""

    cpu_load: float | None = None  # of all cores, 0 to 1, since the last reading
    used_bytes: int | None = None
    total_bytes: int | None = None
    temperature_c: float | None = None  # of the hottest CPU sensor
    gpus: tuple[GpuGauge, ...] = ()


class DeviceMemory(Protocol):
    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


class Utilization(Protocol):
    @property
    def gpu(self) -> int: ...


class LiveNvml(Protocol):
    """The part of pynvml that is used; any call may raise."""

    def nvmlInit(self) -> object: ...
    def nvmlShutdown(self) -> object: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> object: ...
    def nvmlDeviceGetName(self, handle: object, /) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: object, /) -> DeviceMemory: ...
    def nvmlDeviceGetUtilizationRates(self, handle: object, /) -> Utilization: ...
    def nvmlDeviceGetPowerUsage(self, handle: object, /) -> int: ...
    def nvmlDeviceGetEnforcedPowerLimit(self, handle: object, /) -> int: ...
    def nvmlDeviceGetTemperature(self, handle: object, sensor: int, /) -> int: ...


class LoadSensors:
    """Open sensors, which must be closed after use."""

    def __init__(self, nvml: LiveNvml | None) -> None:
        self._nvml = nvml if nvml is not None and _init_nvml(nvml) else None
        count = attempt(self._nvml.nvmlDeviceGetCount) if self._nvml is not None else 0
        self._gpus = [(index, self._handle(index)) for index in range(count or 0)]
        attempt(_read_cpu_load)  # the first call only starts the interval

    def read(self) -> MachineGauge:
        memory = attempt(_read_memory)
        return MachineGauge(
            cpu_load=attempt(_read_cpu_load),
            used_bytes=memory[0] if memory else None,
            total_bytes=memory[1] if memory else None,
            temperature_c=attempt(_read_cpu_temperature),
            gpus=tuple(self._gpu(index, handle) for index, handle in self._gpus),
        )

    def close(self) -> None:
        if self._nvml is not None:
            attempt(self._nvml.nvmlShutdown)

    def _handle(self, index: int) -> object | None:
        nvml = self._nvml
        return None if nvml is None else attempt(lambda: nvml.nvmlDeviceGetHandleByIndex(index))

    def _gpu(self, index: int, handle: object | None) -> GpuGauge:
        nvml = self._nvml
        if nvml is None or handle is None:
            return GpuGauge(index=index)
        memory = attempt(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        rates = attempt(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power = attempt(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit = attempt(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        return GpuGauge(
            index=index,
            name=decode(attempt(lambda: nvml.nvmlDeviceGetName(handle))),
            load=rates.gpu / 100 if rates else None,
            used_bytes=memory.total - memory.free if memory else None,
            total_bytes=memory.total if memory else None,
            power_w=power / 1000 if power is not None else None,
            limit_w=limit / 1000 if limit is not None else None,
            temperature_c=attempt(lambda: float(nvml.nvmlDeviceGetTemperature(handle, TEMPERATURE_GPU))),
        )


class GaugeWatch:
    """A thread that reads the sensors every `interval_s`; `latest` returns its last reading."""

    def __init__(
        self, open_sensors: Callable[[], LoadSensors] | None = None, *, interval_s: float = INTERVAL_S
    ) -> None:
        self._open, self._interval_s = open_sensors or open_gauges, interval_s
        self._is_closing = threading.Event()
        self._latest: MachineGauge | None = None
        self._thread = threading.Thread(target=self._run, name="gauges", daemon=True)
        self._thread.start()

    def latest(self) -> MachineGauge | None:
        """Return the last reading; None before the first."""
        return self._latest

    def close(self) -> None:
        self._is_closing.set()

    def _run(self) -> None:
        sensors = self._open()
        self._is_closing.wait(FIRST_S)  # a load needs an interval
        while not self._is_closing.is_set():
            self._latest = sensors.read()
            self._is_closing.wait(self._interval_s)
        sensors.close()


def open_gauges() -> LoadSensors:
    try:
        import pynvml
    except Exception:  # not installed, or broken
        return LoadSensors(None)
    return LoadSensors(pynvml)


def _init_nvml(nvml: LiveNvml) -> bool:
    try:
        nvml.nvmlInit()
    except Exception:  # no driver, or one that does not fit
        return False
    return True


def _read_cpu_load() -> float:
    import psutil

    return float(psutil.cpu_percent(None)) / 100


def _read_memory() -> tuple[int, int]:
    """Return used and total bytes."""
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total - memory.available), int(memory.total)


def _read_cpu_temperature() -> float | None:
    import psutil

    sensors = psutil.sensors_temperatures()  # Linux and FreeBSD only
    found = [each.current for name in CPU_SENSORS for each in sensors.get(name, ())]
    return float(max(found)) if found else None
