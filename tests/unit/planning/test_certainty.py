"""How sure a prediction is said to be: by the kind and number of its devices, and whether such were published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eaglelocal.catalog.catalog import CPU, CUDA, METAL, VULKAN, Catalog, load_catalog
from eaglelocal.cli.plan_report import certainty_text
from eaglelocal.core.run_options import TENSOR, RunOptions
from eaglelocal.memory.placement import WHOLE, Offload
from eaglelocal.planning.candidate_evaluation import CandidateEvaluator
from eaglelocal.planning.machine_spec import (
    DeviceSpec,
    is_published,
    make_known_spec,
    make_machine_spec,
    read_capability,
)
from eaglelocal.planning.options import NO_DRAFT_OPTION, make_catalog_options
from eaglelocal.planning.speed import (
    KERNELS,
    MOST_CELLS,
    OLDER_CUDA,
    TYPICAL_CELLS,
    UNSEEN_WITHIN,
    Certainty,
    expect_cells,
    name_kernels,
    rate_certainty,
)
from eaglelocal.probe.machine import Bandwidth, Cpu, LlamaCpp, Machine, MainMemory


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(user_folder=Path("/nonexistent"))


def main_device(catalog: Catalog, machine: str) -> DeviceSpec:
    return make_known_spec(catalog.machine(machine)).devices[0]


@pytest.mark.parametrize(
    ("machine", "kernels"),
    [
        ("rtx-4090", CUDA),
        ("rtx-5090", CUDA),
        ("h100-pcie", CUDA),
        ("rtx-3090", OLDER_CUDA),
        ("rtx-2060", OLDER_CUDA),
        ("rx-7900-xtx", VULKAN),
        ("strix-halo-128gb", VULKAN),
        ("dgx-spark", VULKAN),  # NVIDIA's, but in main memory
        ("m2-max-32gb", METAL),
        ("cpu-16gb", CPU),
    ],
)
def test_a_device_has_the_kernels_of_its_kind(catalog: Catalog, machine: str, kernels: str) -> None:
    assert name_kernels(main_device(catalog, machine)) == kernels


@pytest.mark.parametrize(
    ("machine", "certainty"),
    [
        ("rtx-4090", Certainty(KERNELS[CUDA].within, True, "card")),
        ("2x-rtx-3090", Certainty(KERNELS[OLDER_CUDA].within, True, "card")),  # equal cards, one after the other
        ("dgx-spark", Certainty(KERNELS[VULKAN].within, True, "machine")),
        ("m2-max-32gb", Certainty(KERNELS[METAL].within, True, "machine")),
        ("cpu-16gb", Certainty(KERNELS[CPU].within, True, "processor")),
        ("arc-b580", Certainty(UNSEEN_WITHIN, False, "card")),
        ("rtx-3080-laptop-16gb", Certainty(UNSEEN_WITHIN, False, "card")),
        ("cuda-12gb", Certainty(UNSEEN_WITHIN, False, "card")),
        ("m5-max-64gb", Certainty(UNSEEN_WITHIN, False, "machine")),
        ("rtx-3090+rtx-3060", Certainty(UNSEEN_WITHIN, False, "split")),
    ],
)
def test_how_sure_a_prediction_is(catalog: Catalog, machine: str, certainty: Certainty) -> None:
    spec = make_known_spec(catalog.machine(machine))
    assert rate_certainty(spec.gpus or (spec.host,)) == certainty


def test_a_split_between_unequal_devices_was_not_seen(catalog: Catalog) -> None:
    unseen = Certainty(UNSEEN_WITHIN, False, "split")
    card, host = main_device(catalog, "rtx-3090"), main_device(catalog, "cpu-16gb")
    assert rate_certainty([card, host]) == unseen
    assert rate_certainty([card, main_device(catalog, "rtx-3060")]) == unseen
    assert rate_certainty([replace(card, num_cards=2)]) == unseen


@pytest.mark.parametrize(
    ("split", "offload", "device"),
    [("layer", WHOLE, "card"), ("layer", Offload(20, 0), "split"), (TENSOR, WHOLE, "split")],
)
def test_a_prediction_carries_its_certainty(catalog: Catalog, split: str, offload: Offload, device: str) -> None:
    option = next(make_catalog_options(catalog.target("qwen3-8b"), catalog, quant="Q4_K_M"))
    evaluator = CandidateEvaluator(make_known_spec(catalog.machine("2x-rtx-3090")), RunOptions(split=split))
    certainty = evaluator.predict(option, NO_DRAFT_OPTION, offload).certainty
    assert certainty is not None and certainty.device == device


@pytest.mark.parametrize(
    ("certainty", "text"),
    [
        (Certainty(0.09, True, "card"), "fits published speeds of such cards within 9%"),
        (Certainty(0.12, True, "machine"), "fits published speeds of such machines within 12%"),
        (Certainty(0.3, False, "card"), "no card of this kind was seen: within 30%"),
        (Certainty(0.3, False, "split"), "few splits were ever measured: within 30%"),
    ],
)
def test_certainty_in_words(certainty: Certainty, text: str) -> None:
    assert certainty_text(certainty) == text


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("NVIDIA GeForce RTX 3080", True),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", False),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", True),
        ("Intel(R) Arc(tm) A770 Graphics (DG2)", False),
        ("Apple M4 Max", True),
        ("Apple M5 Max", False),
    ],
)
def test_devices_whose_speeds_were_published(catalog: Catalog, name: str, published: bool) -> None:
    assert is_published(name, catalog.machine("rtx-3090")) == published
    assert not is_published(name, None)


def test_no_speeds_of_a_machine_that_the_user_described_were_published(tmp_path: Path) -> None:
    path = tmp_path / "machines" / "own.toml"
    path.parent.mkdir()
    path.write_text('[mine]\nname = "Mine"\nkind = "cpu"\nmemory_mib = 16384\nbandwidth_gb_s = 80.0\n')
    assert not main_device(load_catalog(user_folder=tmp_path), "mine").is_published


@pytest.mark.parametrize("is_measured", [True, False])
def test_a_processor_counts_as_known_where_its_memory_was_measured(is_measured: bool) -> None:
    quick = Bandwidth(bytes_s=5e10, low_bytes_s=5e10, high_bytes_s=5e10, threads=8, measured_at=1e9, others_share=0.0)
    machine = Machine(
        gpus=(),
        unified=None,
        cpu=Cpu(usable_threads=8, bandwidth=quick if is_measured else None),
        memory=MainMemory(),
        cache_free_bytes=None,
        llama_cpp=LlamaCpp(),
    )
    assert make_machine_spec(machine, {}).host.is_published == is_measured


@pytest.mark.parametrize(("text", "number"), [("8.6", 8.6), ("12.0", 12.0), ("", None), (None, None), ("sm_86", None)])
def test_a_capability_is_a_number_or_unknown(text: str | None, number: float | None) -> None:
    assert read_capability(text) == number


@pytest.mark.parametrize(
    ("asked", "cells"), [(None, TYPICAL_CELLS), (1, 1), (4096, 1024), (16384, MOST_CELLS), (131072, MOST_CELLS)]
)
def test_the_cells_of_a_context_that_is_asked_for(asked: int | None, cells: int) -> None:
    assert expect_cells(asked) == cells
