"""Gauges: every figure that a driver gives, None for each that it does not, and never an exception."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from doubles.timeouts import wait_until

from eaglelocal.probe.load_gauges import GaugeWatch, GpuGauge, LoadSensors, open_gauges


@dataclass(frozen=True)
class CardReadings:
    total: int = 24 * 2**30
    free: int = 6 * 2**30
    gpu: int = 87


@dataclass
class FakeNvml:
    """Two cards; calls whose names are in `broken` raise, as drivers do for what a card cannot say."""

    broken: set[str] = field(default_factory=set)
    num_open: int = 0

    def _call(self, name: str) -> None:
        if name in self.broken:
            raise RuntimeError("Not Supported")

    def nvmlInit(self) -> None:
        self._call("init")
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._call("count")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> object:
        if index == 1:
            self._call("handle of 1")
        return index

    def nvmlDeviceGetName(self, handle: object, /) -> bytes:
        self._call("name")
        return b"RTX 4090"

    def nvmlDeviceGetMemoryInfo(self, handle: object, /) -> CardReadings:
        self._call("memory")
        return CardReadings()

    def nvmlDeviceGetUtilizationRates(self, handle: object, /) -> CardReadings:
        self._call("load")
        return CardReadings()

    def nvmlDeviceGetPowerUsage(self, handle: object, /) -> int:
        self._call("power")
        return 312_000

    def nvmlDeviceGetTemperature(self, handle: object, sensor: int, /) -> int:
        self._call("temperature")
        return 66


WHOLE = GpuGauge(
    index=0, name="RTX 4090", load=0.87, used_bytes=18 * 2**30, total_bytes=24 * 2**30, power_w=312.0,
    temperature_c=66.0,
)  # fmt: skip


def test_everything_that_is_reported() -> None:
    nvml = FakeNvml()
    gauges = LoadSensors(nvml)
    read = gauges.read()
    assert read.gpus[0] == WHOLE and read.gpus[1].index == 1
    assert nvml.num_open == 1
    gauges.close()
    assert nvml.num_open == 0


@pytest.mark.parametrize(
    ("broken", "absent"),
    [
        ("name", ("name",)),
        ("load", ("load",)),
        ("memory", ("used_bytes", "total_bytes")),
        ("power", ("power_w",)),
        ("temperature", ("temperature_c",)),
    ],
)
def test_a_figure_that_is_not_reported_costs_no_other(broken: str, absent: tuple[str, ...]) -> None:
    read = LoadSensors(FakeNvml({broken})).read().gpus[0]
    assert {name for name in GpuGauge.__dataclass_fields__ if getattr(read, name) is None} == set(absent)


@pytest.mark.parametrize("broken", ["init", "count"])
def test_no_driver_is_no_gpu(broken: str) -> None:
    gauges = LoadSensors(FakeNvml({broken}))
    assert gauges.read().gpus == ()
    gauges.close()


def test_a_card_that_is_gone_stays_in_the_list() -> None:
    assert LoadSensors(FakeNvml({"handle of 1"})).read().gpus[1] == GpuGauge(index=1)


def test_this_machine_is_reported() -> None:
    gauges = open_gauges()
    gauges.read()
    read = gauges.read()
    gauges.close()
    assert read.cpu_load is not None and 0.0 <= read.cpu_load <= 1.0
    assert read.used_bytes is not None and read.total_bytes is not None
    assert 0 < read.used_bytes <= read.total_bytes


def test_a_watch_reports_what_it_knows_and_closes_what_it_opened() -> None:
    nvml = FakeNvml()
    watch = GaugeWatch(lambda: LoadSensors(nvml), interval_s=0.01)
    assert watch.latest() is None
    wait_until(lambda: watch.latest() is not None, "it reads")
    assert (watch.latest() or LoadSensors(None).read()).gpus[0] == WHOLE
    watch.close()
    wait_until(lambda: nvml.num_open == 0, "it is closed")


def test_a_driver_that_hangs_delays_no_caller() -> None:
    over = threading.Event()

    def hangs() -> LoadSensors:
        over.wait(30)
        return LoadSensors(None)

    watch = GaugeWatch(hangs)
    assert watch.latest() is None
    watch.close()
    over.set()
