"""NVML through a double below the binding: real shapes, failing calls, no driver at all."""

from __future__ import annotations

import dataclasses
import os
import random
import re
from pathlib import Path

import pynvml
import pytest
from doubles.property_tests import examples
from doubles.recorded_machines import NAMES, RecordedNvml, Recording, recording
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.probe import load_gauges, nvml_gpus
from eaglelocal.probe.machine import Gpu, GpuProcess, MigSlice, PcieLink
from eaglelocal.probe.nvml_gpus import compute_bandwidth, format_cuda, format_pci_address, import_nvml, read_gpus

MIB = 1 << 20
WITH_NVML = [name for name in NAMES if (recording(name)["nvml"] or {}).get("devices")]


def nvml_of(name: str) -> RecordedNvml:
    return RecordedNvml(recording(name)["nvml"])


def test_a_desktop_card_that_also_draws_the_screen() -> None:
    nvml = nvml_of("rtx-3090")
    assert read_gpus(nvml) == (
        Gpu(
            index=0,
            name="NVIDIA GeForce RTX 3090",
            total_bytes=24576 * MIB,
            free_bytes=22786 * MIB,
            used_bytes=(24576 - 311 - 22786) * MIB,
            reserved_bytes=311 * MIB,
            capability="8.6",
            driver="550.120",
            max_cuda="12.4",
            processes=(
                GpuProcess(pid=40112, name="firefox", used_bytes=540 * MIB),
                GpuProcess(pid=1523, name="Xorg", used_bytes=412 * MIB),
                GpuProcess(pid=2210, name="gnome-shell", used_bytes=301 * MIB),
            ),
            bandwidth_bytes_s=936_096_000_000,
            uuid="GPU-6f1c2d3e-0000-4a5b-8c7d-1234567890ab",
            pci="0000:0a:00.0",
            pcie=PcieLink(generation=1, width=16, max_generation=4, max_width=16),
            power_limit_w=350.0,
        ),
    )
    assert nvml.calls[-1] == "nvmlShutdown"


def test_an_old_driver_knows_no_reserved_memory_and_no_processes() -> None:
    (gpu,) = read_gpus(nvml_of("rtx-a6000"))
    assert (gpu.total_bytes, gpu.free_bytes, gpu.used_bytes) == (48685 * MIB, 48100 * MIB, 585 * MIB)
    assert (gpu.reserved_bytes, gpu.processes, gpu.mig) == (None, None, None)


def test_under_wsl_a_process_has_no_known_memory_and_a_laptop_no_power_limit() -> None:
    (gpu,) = read_gpus(nvml_of("wsl"))
    assert gpu.processes == (GpuProcess(pid=0),)
    assert gpu.power_limit_w is None


def test_a_partitioned_card_shows_its_instances_and_has_the_room_of_the_roomiest() -> None:
    (gpu,) = read_gpus(nvml_of("a100-mig"))
    assert gpu.mig
    assert [(part.index, part.name, part.free_bytes) for part in gpu.slices] == [
        (0, "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20058 * MIB),
        (2, "NVIDIA A100-SXM4-40GB MIG 2g.10gb", 1203 * MIB),
    ]
    assert gpu.usable_bytes == 20058 * MIB


def test_room_of_a_whole_card_is_what_is_free_and_of_an_unknown_one_unknown() -> None:
    assert Gpu(index=0, free_bytes=5).usable_bytes == 5
    assert Gpu(index=0).usable_bytes is None
    assert Gpu(index=0, free_bytes=5, mig=True).usable_bytes is None
    assert Gpu(index=0, mig=True, slices=(MigSlice(index=0), MigSlice(index=1, free_bytes=3))).usable_bytes == 3


def test_a_machine_in_which_the_processor_and_the_gpu_share_memory() -> None:
    spark = recording("rtx-3090")["nvml"]
    del spark["devices"][0]["memory"]
    spark["devices"][0]["name"] = "NVIDIA GB10"
    (gpu,) = read_gpus(RecordedNvml(spark))
    assert (gpu.shares_memory, gpu.total_bytes, gpu.free_bytes, gpu.used_bytes) == (True, None, None, None)


def test_our_own_process_is_not_another() -> None:
    recorded = recording("rtx-3090")["nvml"]
    recorded["devices"][0]["compute"] = [[os.getpid(), MIB], [7, (1 << 64) - 1]]
    recorded["devices"][0]["graphics"] = []
    (gpu,) = read_gpus(RecordedNvml(recorded))
    assert gpu.processes == (GpuProcess(pid=7),)


def test_no_library_and_no_driver() -> None:
    assert read_gpus(None) == ()
    assert read_gpus(nvml_of("container-without-nvml")) == ()


@pytest.mark.parametrize(
    ("failing", "unknown"),
    [
        ("nvmlDeviceGetName", {"name"}),
        ("nvmlDeviceGetMemoryInfo_v2", {"reserved_bytes"}),
        ("nvmlDeviceGetCudaComputeCapability", {"capability"}),
        ("nvmlSystemGetDriverVersion", {"driver"}),
        ("nvmlDeviceGetMaxClockInfo", {"bandwidth_bytes_s"}),
        ("nvmlDeviceGetPciInfo", {"pci"}),
        ("nvmlShutdown", set()),
    ],
)
def test_a_failing_call_costs_only_its_figure(failing: str, unknown: set[str]) -> None:
    whole = dataclasses.asdict(read_gpus(nvml_of("rtx-3090"))[0])
    gpus = read_gpus(RecordedNvml(recording("rtx-3090")["nvml"], works=lambda name: name != failing))
    assert {
        name for name, value in dataclasses.asdict(gpus[0]).items() if value is None and whole[name] is not None
    } == (unknown)


def test_a_card_that_fell_off_the_bus_is_still_counted() -> None:
    nvml = RecordedNvml(recording("2x-rtx-4090")["nvml"], works=lambda name: name != "nvmlDeviceGetHandleByIndex")
    assert [(gpu.index, gpu.name, gpu.total_bytes) for gpu in read_gpus(nvml)] == [(0, None, None), (1, None, None)]


@given(name=st.sampled_from(WITH_NVML), seed=st.integers(0, 2**32), share=st.floats(0.05, 1.0))
def test_whatever_fails_nothing_is_raised_and_nothing_made_up(name: str, seed: int, share: float) -> None:
    chance = random.Random(seed)
    recorded = recording(name)["nvml"]
    whole = {gpu.index: dataclasses.asdict(gpu) for gpu in read_gpus(RecordedNvml(recorded))}
    for gpu in read_gpus(RecordedNvml(recorded, works=lambda _: chance.random() > share)):
        for key, value in dataclasses.asdict(gpu).items():
            assert value is None or agrees(value, whole[gpu.index], key), (key, value)


def agrees(value: object, whole: dict[str, object], key: str) -> bool:
    """Is a figure what it is when nothing fails, or less of it?"""
    if key == "used_bytes":  # without the newer call, what the driver keeps counts as used
        reserved = whole["reserved_bytes"] or 0
        assert isinstance(reserved, int)
        assert isinstance(whole[key], int)
        return value in (whole[key], whole[key] + reserved)
    if key in ("processes", "slices", "pcie"):
        return True  # parts of it may be missing
    return value == whole[key] or (key == "shares_memory" and value is False)


JUNK = st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.lists(st.integers(), max_size=3)


@examples(200)
@given(data=st.data())
def test_a_driver_that_answers_nonsense_raises_nothing(data: st.DataObject) -> None:
    recorded = recording("a100-mig")["nvml"]
    device: Recording = recorded["devices"][0]
    for key in data.draw(st.lists(st.sampled_from(sorted(device)), max_size=4)):
        device[key] = data.draw(JUNK)
    read_gpus(RecordedNvml(recorded))


def test_a_driver_that_claims_millions_of_instances_is_not_asked_for_each() -> None:
    recorded = recording("a100-mig")["nvml"]
    recorded["devices"][0]["maxSlices"] = 1 << 60
    assert [part.index for part in read_gpus(RecordedNvml(recorded))[0].slices] == [0, 2]


def test_the_binding_has_every_function_that_is_called() -> None:
    """As installed here."""
    sources = [Path(module.__file__).read_text() for module in (nvml_gpus, load_gauges)]
    names = {name for source in sources for name in re.findall(r'"(nvml\w+)"', source)}
    assert len(names) > 20
    assert [name for name in names if not hasattr(pynvml, name)] == []
    assert import_nvml() is pynvml


@pytest.mark.parametrize(
    ("width", "clock", "gigabytes"),
    [(384, 9751, 936), (384, 10501, 1008), (384, 8001, 768), (5120, 1593, 2039), (512, 14001, 1792)],
)
def test_bandwidth_as_the_makers_state_it(width: int, clock: int, gigabytes: int) -> None:
    """RTX 3090, RTX 4090, RTX A6000, A100 80 GB, RTX 5090."""
    assert round(compute_bandwidth(width, clock) / 1e9) == gigabytes


def test_words_of_the_driver() -> None:
    assert format_pci_address("00000000:0A:00.0") == "0000:0a:00.0"
    assert (format_cuda(12040), format_cuda(11080), format_cuda(13000)) == ("12.4", "11.8", "13.0")
