"""The current load of this machine: CPU, memory, and GPUs with their power and temperature.

Sensors are opened once and read every few seconds. Never raises; what is not known is None. A driver that hangs
blocks only the thread that reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psutil

from eaglelocal.core.records import dataclass
from eaglelocal.probe.nvml_gpus import ask, begin_nvml, decode, import_nvml
from eaglelocal.probe.subprocess_calls import attempt_or

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
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGauge:
    """A reading of the whole machine."""

    cpu_load: float | None = None  # of all cores, 0 to 1, since the last reading
    used_bytes: int | None = None
    total_bytes: int | None = None
    temperature_c: float | None = None  # of the hottest CPU sensor
    gpus: tuple[GpuGauge, ...] = ()


class LoadSensors:
    """Open sensors, which must be closed after use. `nvml`: as imported, or None."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml = begin_nvml(nvml)
        num_gpus = ask(nvml, "nvmlDeviceGetCount") or 0
        self._handles = [ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(num_gpus)]
        attempt_or(_read_cpu_load, None)  # the first call only starts the interval

    def read(self) -> MachineGauge:
        memory = attempt_or(_read_memory, None)
        return MachineGauge(
            cpu_load=attempt_or(_read_cpu_load, None),
            used_bytes=memory[0] if memory else None,
            total_bytes=memory[1] if memory else None,
            temperature_c=attempt_or(_read_cpu_temperature, None),
            gpus=tuple(self._read_gpu(index, handle) for index, handle in enumerate(self._handles)),
        )

    def close(self) -> None:
        ask(self._nvml, "nvmlShutdown")

    def _read_gpu(self, index: int, handle: object) -> GpuGauge:
        if handle is None:
            return GpuGauge(index=index)
        nvml = self._nvml
        memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
        rates = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
        power = ask(nvml, "nvmlDeviceGetPowerUsage", handle)
        temperature = ask(nvml, "nvmlDeviceGetTemperature", handle, TEMPERATURE_GPU)
        return GpuGauge(
            index=index,
            name=decode(ask(nvml, "nvmlDeviceGetName", handle)),
            load=rates.gpu / 100 if rates else None,
            used_bytes=memory.total - memory.free if memory else None,
            total_bytes=memory.total if memory else None,
            power_w=power / 1000 if power is not None else None,
            temperature_c=None if temperature is None else float(temperature),
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
    return LoadSensors(import_nvml())


def _read_cpu_load() -> float:
    return float(psutil.cpu_percent(None)) / 100


def _read_memory() -> tuple[int, int]:
    """Return used and total bytes."""
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available), int(memory.total)


def _read_cpu_temperature() -> float | None:
    sensors = psutil.sensors_temperatures()  # Linux and FreeBSD only
    found = [each.current for name in CPU_SENSORS for each in sensors.get(name, ())]
    return float(max(found)) if found else None
