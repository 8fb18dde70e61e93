"""A probed machine as the planner sees it: which GPUs count, under which names, with which memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.recorded_machines import recorded_machine

from eaglelocal.catalog.catalog import VULKAN, load_catalog
from eaglelocal.memory.budget import RAM, Buffer, MemoryKind, device_load
from eaglelocal.planning.machine_spec import (
    DRIVER_BYTES,
    UNKNOWN_GPU_BYTES_S,
    MachineSpec,
    find_entry,
    free_held_memory,
    make_known_spec,
    make_machine_spec,
)
from eaglelocal.probe.apple import default_working_set
from eaglelocal.probe.machine import Cpu, Gpu, LlamaCpp, Machine, MainMemory, Unified
from eaglelocal.probe.nvml_gpus import apply_visibility

GIB = 2**30
BOTH = LlamaCpp(version="0.3.36", backends=("cpu", "cuda", "vulkan"))
PLAIN = Machine(
    gpus=(),
    unified=None,
    cpu=Cpu(usable_threads=8),
    memory=MainMemory(total_bytes=64 * GIB, available_bytes=50 * GIB),
    cache_free_bytes=None,
    llama_cpp=BOTH,
)
RTX = Gpu(index=0, name="NVIDIA GeForce RTX 3090", total_bytes=24 * GIB, free_bytes=23 * GIB)
RADEON = Gpu(
    index=1,
    name="AMD Radeon RX 7900 XTX",
    vendor="amd",
    backends=("hip", "vulkan"),
    total_bytes=24 * GIB,
    free_bytes=23 * GIB,
)


def spec_of(machine: Machine, **environ: str) -> MachineSpec:
    return make_machine_spec(
        apply_visibility(machine, environ), load_catalog(user_folder=Path("/nonexistent")).machines
    )


def names(machine: Machine, **environ: str) -> list[str]:
    return [device.name for device in spec_of(machine, **environ).gpus]


def test_each_backend_counts_its_own_devices() -> None:
    assert names(replace(PLAIN, gpus=(RTX, RADEON))) == ["CUDA0", "Vulkan0"]
    assert names(replace(PLAIN, gpus=(RTX, RADEON, replace(RADEON, index=2)))) == ["CUDA0", "Vulkan0", "Vulkan1"]


def test_a_card_that_is_hidden_is_not_planned_for(tmp_path: Path) -> None:
    machine = replace(recorded_machine("2x-rtx-4090", tmp_path), llama_cpp=BOTH)
    assert names(machine) == ["CUDA0", "CUDA1"]
    one = spec_of(machine, CUDA_VISIBLE_DEVICES="1")
    assert [device.name for device in one.gpus] == ["CUDA0"]  # CUDA counts what is left
    assert one.gpus[0].free_bytes == machine.gpus[1].free_bytes
    assert any("CUDA_VISIBLE_DEVICES=1 hides it" in note for note in one.notes)
    assert names(machine, CUDA_VISIBLE_DEVICES="") == []


def test_a_mac_whose_llama_cpp_lacks_metal_computes_on_its_processor() -> None:
    chip = Unified(chip="Apple M2 Max", total_bytes=32 * GIB, working_set_bytes=21 * GIB)
    without = replace(PLAIN, unified=chip, llama_cpp=LlamaCpp(version="0.3.36", backends=("cpu",)))
    assert names(without) == []
    assert any("built without Metal" in note for note in spec_of(without).notes)
    assert names(replace(without, llama_cpp=LlamaCpp(version="0.3.36", backends=("cpu", "metal")))) == ["MTL0"]


@pytest.mark.parametrize("reported_bytes", [None, 60 * GIB])
def test_a_card_that_works_in_main_memory_is_planned_there(reported_bytes: int | None) -> None:
    """NVML tells a GB10's memory or says that it is not supported; what is free is the machine's."""
    gb10 = Gpu(
        index=0,
        name="NVIDIA GB10",
        capability="12.1",
        shares_memory=True,
        total_bytes=reported_bytes,
        free_bytes=reported_bytes,
    )
    found = spec_of(replace(PLAIN, gpus=(gb10,)))
    (device,) = found.gpus
    assert (device.name, device.shares_ram, device.free_bytes) == ("CUDA0", True, 50 * GIB)
    held = [Buffer("CUDA0", MemoryKind.WEIGHTS, 30 * GIB), Buffer(RAM, MemoryKind.WEIGHTS, 30 * GIB)]
    assert device_load(found.free_memory[0], held, found.free_memory).missing_bytes == 10 * GIB  # the same memory


def test_a_part_of_a_card_is_known_by_its_drivers_name(tmp_path: Path) -> None:
    """amdgpu states no bandwidth."""
    found = spec_of(recorded_machine("rx-7900-xtx", tmp_path))
    (card,) = found.gpus
    assert (card.name, card.bytes_s) == ("Vulkan0", 960e9)
    assert not any("assumed" in note and "7900" in note for note in found.notes)
    (laptop,) = spec_of(replace(PLAIN, gpus=(replace(RTX, name="NVIDIA GeForce RTX 4070 Laptop GPU"),))).gpus
    assert laptop.bytes_s == 256e9  # not the desktop's
    (other,) = spec_of(replace(PLAIN, gpus=(replace(RTX, name="NVIDIA GeForce RTX 4070 Max-Q"),))).gpus
    assert other.bytes_s == UNKNOWN_GPU_BYTES_S


def test_no_entry_names_the_maker_of_its_card() -> None:
    radeon = load_catalog(user_folder=Path("/nonexistent")).machine("rx-7900-xtx")
    for probed, entry in (
        ("Intel Arc B580", "Arc B580 12GB"),
        ("Intel(R) Arc(TM) B580 Graphics", "Arc B580 12GB"),
        ("AMD Radeon RX 9070", "RX 9070 16GB"),
        ("AMD Radeon 780M Graphics", "Radeon 780M, 32 GB"),
    ):
        known = {"other": radeon, "this": replace(radeon, name=entry)}
        assert find_entry(probed, known, (VULKAN,)) is known["this"]
        assert find_entry(f"{probed} Pro", known, (VULKAN,)) is None


def test_a_known_machine_with_one_memory_shares_it() -> None:
    known = load_catalog(user_folder=Path("/nonexistent"))
    for name, device, kind in (
        ("strix-halo", "Vulkan0", "vulkan"),
        ("dgx-spark", "CUDA0", "cuda"),
        ("m2-16gb", "MTL0", "metal"),
    ):
        (gpu,) = make_known_spec(known.machine(name)).gpus
        assert (gpu.name, gpu.kind, gpu.shares_ram) == (device, kind, True)
        assert gpu.free_bytes == known.machine(name).gpu_limit_bytes
    (card,) = make_known_spec(known.machine("rx-7900-xtx")).gpus
    assert (card.name, card.shares_ram) == ("Vulkan0", False)


def test_each_card_of_an_unequal_pair_is_its_own() -> None:
    known = load_catalog(user_folder=Path("/nonexistent"))
    cards = make_known_spec(known.machine("rtx-4090+arc-b580+rtx-3060")).gpus
    assert {(card.name, card.capability, card.is_published) for card in cards} == {
        ("CUDA0", 8.9, True),
        ("CUDA1", 8.6, True),
        ("Vulkan0", None, False),
    }


def test_apples_limits_are_those_that_the_probe_expects() -> None:
    for machine in load_catalog(user_folder=Path("/nonexistent")).machines.values():
        if machine.kind == "metal":
            assert machine.gpu_limit_bytes == pytest.approx(default_working_set(machine.memory_bytes), rel=0.001), (
                machine.id
            )


def test_other_makers_graphics_in_main_memory_are_left_out_with_the_reason() -> None:
    unknown = replace(RADEON, index=0, name="Intel Arc 140V", shares_memory=True, total_bytes=None, free_bytes=None)
    found = spec_of(replace(PLAIN, gpus=(unknown,)))
    assert not found.gpus
    assert any("works in the main memory" in note for note in found.notes)


STRIX_HALO = replace(
    RADEON,
    index=0,
    name="AMD Radeon 8060S Graphics",
    shares_memory=True,
    total_bytes=62 * GIB,
    free_bytes=61 * GIB,
    bandwidth_bytes_s=256_000_000_000,
)


@pytest.mark.parametrize(
    ("available_gib", "lent_gib", "planned_gib"),
    [(50, 61, 50), (120, 61, 61), (120, None, None)],  # lent is a bound, and so is what is free
)
def test_amds_graphics_are_planned_with_what_is_lent_to_them(
    available_gib: int, lent_gib: int | None, planned_gib: int | None
) -> None:
    lent = None if lent_gib is None else lent_gib * GIB
    memory = MainMemory(total_bytes=128 * GIB, available_bytes=available_gib * GIB)
    found = spec_of(replace(PLAIN, memory=memory, gpus=(replace(STRIX_HALO, free_bytes=lent),)))
    assert [device.free_bytes for device in found.gpus] == ([] if planned_gib is None else [planned_gib * GIB])
    for device in found.gpus:
        assert (device.name, device.shares_ram, device.bytes_s) == ("Vulkan0", True, 256e9)
        assert device.total_bytes == 62 * GIB
    assert not any("assumed" in note and "8060S" in note for note in found.notes)
    assert any("ttm.pages_limit" in note for note in found.notes) == (planned_gib is not None)


def test_graphics_that_no_table_knows_read_as_the_processor_does() -> None:
    graphics = replace(STRIX_HALO, name="AMD Radeon 999M Graphics", bandwidth_bytes_s=None)
    found = spec_of(replace(PLAIN, gpus=(graphics,)))
    assert found.gpus[0].bytes_s == found.host.bytes_s
    assert any("the bandwidth of AMD Radeon 999M Graphics is unknown" in note for note in found.notes)


def test_what_a_driver_keeps_is_held_by_no_program(tmp_path: Path) -> None:
    idle = spec_of(replace(recorded_machine("rtx-a6000", tmp_path), llama_cpp=BOTH))
    assert free_held_memory(idle).gpus == idle.gpus
    (card,) = free_held_memory(spec_of(replace(PLAIN, gpus=(replace(RTX, free_bytes=9 * GIB),)))).gpus
    assert card.free_bytes == 24 * GIB - DRIVER_BYTES


def test_graphics_next_to_a_card_are_left_alone() -> None:
    beside = spec_of(replace(PLAIN, gpus=(RTX, replace(STRIX_HALO, index=1))))
    assert [device.name for device in beside.gpus] == ["CUDA0"]
    assert any("only where there is no card" in note for note in beside.notes)
    unserved = replace(PLAIN, gpus=(RTX, replace(STRIX_HALO, index=1)), llama_cpp=replace(BOTH, backends=("cpu",)))
    assert not names(unserved)
    hidden = spec_of(replace(PLAIN, gpus=(RTX, replace(STRIX_HALO, index=1))), CUDA_VISIBLE_DEVICES="")
    assert [device.name for device in hidden.gpus] == ["Vulkan0"]


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("p40", "CUDA 13 no longer builds for it: use CUDA 12"),
        ("2x-p40", "CUDA 13 no longer builds for it: use CUDA 12"),
        ("rtx-3060+p40", "Tesla P40 24GB: CUDA 13 no longer builds for it: use CUDA 12"),
        ("rtx-3060", ""),
    ],
)
def test_notes_of_the_catalog_are_kept(name: str, note: str) -> None:
    spec = make_known_spec(load_catalog(user_folder=Path("/nonexistent")).machine(name))
    assert spec.notes == (*filter(None, [note]), "free memory as if only the system were running")
