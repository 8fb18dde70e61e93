"""The variables that hide GPUs, read as CUDA and ROCm read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.recorded_machines import recorded_machine
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.probe.machine import Cpu, Gpu, LlamaCpp, Machine, MainMemory
from eaglelocal.probe.nvml_gpus import apply_visibility, select_gpus

CARDS = tuple(
    Gpu(index=index, name=name, uuid=uuid, bandwidth_bytes_s=quick, total_bytes=1, free_bytes=1)
    for index, (name, uuid, quick) in enumerate(
        [("slow", "GPU-aa01", 300), ("quick", "GPU-aa02", 1000), ("middle", "GPU-bb03", 600)]
    )
)


def machine_with(cards: tuple[Gpu, ...], *backends: str) -> Machine:
    return Machine(
        gpus=cards,
        unified=None,
        cpu=Cpu(),
        memory=MainMemory(),
        cache_free_bytes=None,
        llama_cpp=LlamaCpp(version="0.3.36", backends=backends or ("cpu", "cuda")),
    )


def seen(**environ: str) -> list[str | None]:
    """Names in the order in which CUDA counts the cards."""
    gpus = apply_visibility(machine_with(CARDS), environ).gpus
    left = [gpu for gpu in gpus if not gpu.hidden_by]
    assert all(gpu.device_index is None for gpu in gpus if gpu.hidden_by)
    return [gpu.name for gpu in sorted(left, key=lambda gpu: gpu.device_index or 0)]


def test_the_fastest_card_is_cudas_first() -> None:
    assert seen() == ["quick", "slow", "middle"]
    assert seen(CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["slow", "quick", "middle"]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("0", ["quick"]),
        ("2,0", ["middle", "quick"]),
        (" 1 , 2 ", ["slow", "middle"]),
        ("", []),
        ("-1", []),
        ("9", []),
        ("9" * 5000, []),
        ("0,9,1", ["quick"]),  # nothing is read behind what there is not
        ("0,0", []),
        ("NoDevFiles", []),
        ("GPU-bb", ["middle"]),
        ("GPU-aa", []),  # which of the two?
        ("GPU-aa01,0", ["slow", "quick"]),
        ("MIG-unknown", []),
    ],
)
def test_values(value: str, names: list[str]) -> None:
    assert seen(CUDA_VISIBLE_DEVICES=value) == names


@given(st.text(max_size=30))
def test_anything_may_stand_there(value: str) -> None:
    assert set(seen(CUDA_VISIBLE_DEVICES=value)) <= {"slow", "quick", "middle"}


def test_names_that_the_driver_did_not_tell_hide_nothing() -> None:
    nameless = [replace(card, uuid=None) for card in CARDS]
    assert select_gpus("GPU-aa01", nameless) == nameless


def test_an_instance_of_a_partitioned_card(tmp_path: Path) -> None:
    machine = recorded_machine("a100-mig", tmp_path)
    whole = machine.gpus[0]
    small = whole.slices[1]
    (gpu,) = apply_visibility(machine, {"CUDA_VISIBLE_DEVICES": small.uuid or ""}).gpus
    assert gpu.slices == (small,)
    assert gpu.usable_bytes == small.free_bytes != whole.usable_bytes
    (both,) = apply_visibility(machine, {"CUDA_VISIBLE_DEVICES": f"{small.uuid},{whole.slices[0].uuid}"}).gpus
    assert both.slices == (small,)  # a process gets one
    (old,) = apply_visibility(machine, {"CUDA_VISIBLE_DEVICES": f"MIG-{whole.uuid}/1/0"}).gpus
    assert not old.hidden_by
    (hidden,) = apply_visibility(machine, {"CUDA_VISIBLE_DEVICES": "MIG-00000000-0000-5000-8000-000000000000"}).gpus
    assert hidden.hidden_by


def test_rocm_reads_two_variables_and_leaves_nvidias_alone() -> None:
    cards = (CARDS[0], *(Gpu(index=i, name=f"amd{i}", vendor="amd", backends=("hip",)) for i in (1, 2, 3)))
    machine = machine_with(cards, "cpu", "cuda", "hip")

    def left(**environ: str) -> list[str | None]:
        return [gpu.name for gpu in apply_visibility(machine, environ).gpus if not gpu.hidden_by]

    assert left(ROCR_VISIBLE_DEVICES="1,2", HIP_VISIBLE_DEVICES="1") == ["slow", "amd3"]
    assert left(CUDA_VISIBLE_DEVICES="0") == ["slow", "amd1"]
    assert left(CUDA_VISIBLE_DEVICES="0", HIP_VISIBLE_DEVICES="2") == ["slow", "amd3"]


def test_a_variable_of_cuda_hides_nothing_from_vulkan() -> None:
    machine = machine_with(CARDS, "cpu", "vulkan")
    gpus = apply_visibility(machine, {"CUDA_VISIBLE_DEVICES": ""}).gpus
    assert [(gpu.hidden_by, gpu.device_index) for gpu in gpus] == [("", 0), ("", 1), ("", 2)]
