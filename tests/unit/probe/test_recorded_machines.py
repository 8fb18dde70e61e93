"""Complete recorded machines: what the probe reads from their files, drivers and programs."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from doubles.recorded_machines import NAMES, recorded_machine
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.cli.output import WIDTH
from eaglelocal.cli.probe import machine_lines
from eaglelocal.probe.apple import default_working_set, parse_displays, parse_unified
from eaglelocal.probe.machine import Bandwidth, Gpu, Machine, PcieLink, Unified, to_json
from eaglelocal.probe.pci_cards import find_largest_window, find_pci_name, parse_link_generation, read_cards
from eaglelocal.probe.probe import find_wsl_version

GIB, MIB = 1 << 30, 1 << 20
MachineOf = Callable[[str], Machine]
NOW = 1_800_000_000.0


@pytest.fixture
def machine_of(tmp_path: Path) -> MachineOf:
    return lambda name: recorded_machine(name, tmp_path)


def summary(gpu: Gpu) -> tuple[object, ...]:
    return (gpu.index, gpu.name, gpu.vendor, gpu.total_bytes and round(gpu.total_bytes / GIB, 1), gpu.driver)


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("rtx-3090", [(0, "NVIDIA GeForce RTX 3090", "nvidia", 24.0, "550.120")]),
        (
            "2x-rtx-4090",
            [
                (0, "NVIDIA GeForce RTX 4090", "nvidia", 24.0, "560.35.03"),
                (1, "NVIDIA GeForce RTX 4090", "nvidia", 24.0, "560.35.03"),
            ],
        ),
        ("container-without-nvml", [(0, "NVIDIA GeForce RTX 3090", "nvidia", None, "nvidia")]),
        ("wsl", [(0, "NVIDIA GeForce RTX 4070 Laptop GPU", "nvidia", 8.0, "566.14")]),
        (
            "rx-7900-xtx",
            [(0, "AMD Radeon RX 7900 XTX", "amd", 24.0, "amdgpu"), (1, "AMD Radeon Graphics", "amd", 31.0, "amdgpu")],
        ),
        (
            "arc-a770",
            [(0, "Intel UHD Graphics 630", "intel", None, "i915"), (1, "Intel Arc A770", "intel", 16.0, "xe")],
        ),
        ("cpu-only", []),
        ("cgroup-limited", []),
        ("m2-max", []),
    ],
)
def test_which_gpus_there_are(name: str, gpus: list[tuple[object, ...]], machine_of: MachineOf) -> None:
    assert [summary(gpu) for gpu in machine_of(name).gpus] == gpus


@pytest.mark.parametrize(
    ("name", "backends"),
    [
        ("rtx-3090", ["cuda"]),
        ("2x-rtx-4090", [None, None]),
        ("container-without-nvml", [None]),
        ("rx-7900-xtx", ["vulkan", "vulkan"]),
        ("arc-a770", [None, None]),
    ],
)
def test_which_backend_serves_them(name: str, backends: list[str | None], machine_of: MachineOf) -> None:
    machine: Machine = machine_of(name)
    assert [machine.backend_of(gpu) for gpu in machine.gpus] == backends


def test_an_amd_card_by_its_drivers_files(machine_of: MachineOf) -> None:
    card, graphics = machine_of("rx-7900-xtx").gpus
    assert (card.free_bytes, card.used_bytes, card.power_limit_w) == (23250 * MIB, 1310 * MIB, 339.0)
    assert card.pcie == PcieLink(generation=4, width=4, max_generation=4, max_width=16)  # of the slot, not on board
    assert (card.backends, card.shares_memory, graphics.shares_memory) == (("hip", "vulkan"), False, True)


def test_graphics_of_an_amd_processor_next_to_a_card_work_in_main_memory(machine_of: MachineOf) -> None:
    _, graphics = machine_of("rx-7900-xtx").gpus
    assert (graphics.total_bytes, graphics.used_bytes, graphics.bandwidth_bytes_s) == (31744 * MIB, 16 * MIB, None)


@pytest.mark.parametrize(
    ("carved_mib", "lent_mib", "shares", "total_mib", "free_mib"),
    [
        (512, 63488, True, 63488, 63360),  # as it is sold: half of the main memory is lent
        (512, 126976, True, 126976, 126848),  # ttm.pages_limit was raised
        (98304, 16384, False, 98304, 98048),  # most was carved out in the firmware
        (512, None, True, None, None),  # a driver that does not say
    ],
)
@pytest.mark.parametrize("name", ["AMD Radeon 8060S Graphics", None])
def test_strix_halo_by_its_drivers_files(
    tmp_path: Path, name: str | None, carved_mib: int, lent_mib: int | None, shares: bool, total_mib: int, free_mib: int
) -> None:
    files = {"class": "0x030000", "vendor": "0x1002", "device": "0x1586", "revision": "0xc1"}
    files |= {"mem_info_vram_total": str(carved_mib * MIB), "mem_info_vram_used": str(256 * MIB)}
    if lent_mib is not None:
        files |= {"mem_info_gtt_total": str(lent_mib * MIB), "mem_info_gtt_used": str(128 * MIB)}
    device = tmp_path / "sys/bus/pci/devices/0000:c4:00.0"
    device.mkdir(parents=True)
    for key, text in files.items():
        (device / key).write_text(text + "\n")
    if name is not None:
        (tmp_path / "usr/share/libdrm").mkdir(parents=True)
        (tmp_path / "usr/share/libdrm/amdgpu.ids").write_text(f"1.0.0\n1586,\tC1,\t{name}\n")
    (gpu,) = read_cards(tmp_path)
    assert gpu.name == (name or "AMD GPU 1002:1586")
    assert (gpu.shares_memory, gpu.bandwidth_bytes_s) == (shares, 256e9)
    in_mib = [None if size is None else size / MIB for size in (gpu.total_bytes, gpu.free_bytes)]
    assert in_mib == [total_mib, free_mib]


def test_an_intel_card_is_reported_from_the_processors_own_graphics(machine_of: MachineOf) -> None:
    graphics, card = machine_of("arc-a770").gpus
    assert (graphics.shares_memory, card.shares_memory) == (True, False)
    assert card.pcie == PcieLink(generation=4, width=16, max_generation=4, max_width=16)
    assert (graphics.backends, card.free_bytes) == (("sycl", "vulkan"), None)


def test_systems(machine_of: MachineOf) -> None:
    wsl = machine_of("wsl").system
    assert (wsl.wsl, wsl.container, wsl.distribution) == (2, None, "ubuntu")


@pytest.mark.parametrize(
    ("name", "container"), [("container-without-nvml", "docker"), ("cgroup-limited", "kubernetes")]
)
def test_containers(name: str, container: str, machine_of: MachineOf) -> None:
    assert machine_of(name).system.container == container


def test_limits_of_a_pod(machine_of: MachineOf) -> None:
    machine = machine_of("cgroup-limited")
    assert (machine.cpu.quota_cores, machine.cpu.usable_threads) == (1.5, 1)
    memory = machine.memory
    assert (memory.total_bytes, memory.available_bytes, memory.installed_bytes) == (4 * GIB, 3328 * MIB, 256 * GIB)


def test_an_apple_laptop(machine_of: MachineOf) -> None:
    assert machine_of("m2-max").unified == Unified(
        chip="Apple M2 Max", total_bytes=32 * GIB, working_set_bytes=22906503168, gpu_cores=38, metal="Metal 3"
    )


@pytest.mark.parametrize(
    ("working_set", "limit", "expected"),
    [
        ("22906503168", "0", 22906503168),
        (None, "0", 32 * GIB * 2 // 3),
        (None, "28672", 28 * GIB),
        ("undefined", "28672", 28 * GIB),
        ("1", "0", 32 * GIB * 2 // 3),  # Metal's figure cannot be that
        ("99999999999999", None, 32 * GIB * 2 // 3),
    ],
)
def test_what_the_gpu_of_an_apple_chip_may_use(working_set: str | None, limit: str | None, expected: int) -> None:
    recorded = parse_unified(chip="M", memory_bytes=str(32 * GIB), limit_mib=limit, working_set=working_set)
    assert recorded.working_set_bytes == pytest.approx(expected, abs=1)


def test_large_apple_memories_lend_more() -> None:
    assert default_working_set(128 * GIB) == 96 * GIB
    assert default_working_set(None) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["SPDisplaysDataType", "sppci_cores", "x"]), inner)
        ),
    )
)
def test_displays_of_any_shape(value: object) -> None:
    cores, metal = parse_displays(json.dumps(value))
    assert cores is None or cores >= 0
    assert metal is None or metal.startswith("Metal ")


# ---- how it is shown
@pytest.mark.parametrize("name", NAMES)
def test_shown_in_80_columns_and_as_json(name: str, machine_of: MachineOf) -> None:
    machine = machine_of(name)
    lines = machine_lines(machine, now=NOW)
    assert [line for line in lines if len(line) > WIDTH] == []
    assert len(lines) <= 23
    recorded = json.loads(json.dumps(to_json(machine)))
    assert {"gpus", "unified", "cpu", "memory", "disk", "llama_cpp", "system", "unanswered"} == set(recorded)
    assert [gpu["name"] for gpu in recorded["gpus"]] == [gpu.name for gpu in machine.gpus]


def test_the_screen_of_two_cards_without_their_backend(machine_of: MachineOf) -> None:
    machine = machine_of("2x-rtx-4090")
    assert machine_lines(machine, now=NOW)[5:11] == [
        "gpu 1    NVIDIA GeForce RTX 4090",
        "         24.0 GiB, 11.7 GiB free, 11.8 GiB used by others, 1008 GB/s",
        "         capability 8.9, driver 560.35.03 (up to CUDA 12.6), PCIe 4 x4 of 16,",
        "         limit 450 W",
        "         used by python3 11.8 GiB",
        "         not used: this llama.cpp is built without CUDA; see eaglelocal doctor",
    ]


@pytest.mark.parametrize(
    ("share", "age", "words"),
    [
        (None, 5, "memory read at 43.1 GB/s (40.0 to 45.0) by 2 threads, measured just now"),
        (0.1, 90 * 60, "measured 1 hour ago"),
        (0.46, 3 * 86400, "measured 3 days ago, while others used 46% of the processors"),
    ],
)
def test_bandwidth_is_shown_with_spread_and_age(
    share: float | None, age: float, words: str, machine_of: MachineOf
) -> None:
    machine = machine_of("cpu-only")
    measured = Bandwidth(
        bytes_s=43.1e9, low_bytes_s=40e9, high_bytes_s=45e9, threads=2, measured_at=NOW - age, others_share=share
    )
    shown = dataclasses.replace(machine, cpu=dataclasses.replace(machine.cpu, bandwidth=measured))
    assert words in " ".join(" ".join(machine_lines(shown, now=NOW)).split())


# ---- words of systems
def test_small_parsers() -> None:
    assert [parse_link_generation(text) for text in ("16.0 GT/s PCIe", "2.5 GT/s", "Unknown", "")] == [4, 1, None, None]
    assert [find_wsl_version(text) for text in ("6.8.0-49-generic", "4.4.0-19041-Microsoft", "")] == [None, 1, None]
    assert find_largest_window("0x0 0x0 0x0\n0x1000 0x1fff 0x200\n") == 4096


def test_a_name_is_looked_for_at_its_maker_only() -> None:
    lines = [
        "1002  AMD\n",
        "\t3e98  Wrong\n",
        "8086  Intel\n",
        "\t3e98  Right [UHD]\n",
        "\t\t3e98 1  Sub\n",
        "9999  X\n",
        "\t3e99  No\n",
    ]
    assert find_pci_name(lines, vendor="8086", device="3e98") == "UHD"
    assert find_pci_name(lines, vendor="8086", device="3e99") is None


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "device",
                "revision",
                "resource",
                "product_name",
                "max_link_speed",
                "max_link_width",
                "mem_info_vram_total",
                "mem_info_vram_used",
                "mem_info_gtt_total",
                "mem_info_gtt_used",
            ]
        ),
        st.text(st.characters(codec="utf-8"), max_size=30),
    ),
    st.sampled_from(["0x10de", "0x1002", "0x8086"]),
)
def test_cards_whose_files_say_anything(files: dict[str, str], vendor: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        device = Path(folder) / "sys/bus/pci/devices/0000:01:00.0"
        device.mkdir(parents=True)
        for name, text in ({"class": "0x030000", "vendor": vendor} | files).items():
            (device / name).write_text(text)
        (card,) = read_cards(Path(folder))
    assert card.name
    assert card.total_bytes is None or card.total_bytes >= 0
