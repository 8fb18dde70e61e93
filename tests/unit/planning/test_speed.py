"""Predicted speed against published speeds of llama.cpp, and how it must move."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.estimated_shapes import estimate_draft_shape
from eaglelocal.core.stats import MeasuredCosts, SizeCost
from eaglelocal.memory.placement import place_blocks
from eaglelocal.planning.machine_spec import MachineSpec, make_known_spec, make_machine_spec
from eaglelocal.planning.options import ModelOption, make_catalog_options
from eaglelocal.planning.quality import PredictedAcceptance
from eaglelocal.planning.speed import (
    Curve,
    Prediction,
    choose_arithmetic,
    distinct_experts,
    make_curve,
    predict,
)
from eaglelocal.probe.machine import Bandwidth, Cpu, LlamaCpp, Machine, MainMemory


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(user_folder=Path("/nonexistent"))


def option(catalog: Catalog, target: str, quant: str) -> ModelOption:
    return next(iter(make_catalog_options(catalog.target(target), catalog, quant=quant)))


def curve(catalog: Catalog, machine: str, target: str, quant: str, *, gpu_layers: int | None = None) -> Curve:
    spec = make_known_spec(catalog.machine(machine))
    return curve_on(spec, option(catalog, target, quant), gpu_layers)


def curve_on(
    spec: MachineSpec, chosen: ModelOption, gpu_layers: int | None, measured: MeasuredCosts | None = None
) -> Curve:
    names = [gpu.name for gpu in spec.gpus]
    where = place_blocks(chosen.shape.n_layer, names, [1.0] * len(names), gpu_layers=gpu_layers)
    head = next((candidate.shape for candidate in chosen.drafts if candidate.shape is not None), None)
    return make_curve(chosen.model, where, spec, head, kv_type="f16", measured=measured)


# tokens/s, 1024 generated, May 2024 table of GPU benchmarks of llama.cpp, and reports of 2026 for the last ones
@pytest.mark.parametrize(
    ("machine", "target", "quant", "published", "within"),
    [
        ("rtx-3090", "llama-3.1-8b", "Q4_K_M", 111.74, 0.20),
        ("rtx-4090", "llama-3.1-8b", "Q4_K_M", 127.74, 0.15),
        ("a6000", "llama-3.1-8b", "Q4_K_M", 102.22, 0.15),
        ("a6000", "llama-3.3-70b", "Q4_K_M", 14.58, 0.15),
        ("rtx-6000-ada", "llama-3.3-70b", "Q4_K_M", 18.36, 0.15),
        ("2x-rtx-3090", "llama-3.3-70b", "Q4_K_M", 16.29, 0.15),
        ("2x-rtx-4090", "llama-3.3-70b", "Q4_K_M", 19.06, 0.15),
        ("m3-max-48gb", "llama-3.1-8b", "Q4_K_M", 50.7, 0.20),
        ("m3-max-64gb", "llama-3.3-70b", "Q4_K_M", 7.53, 0.20),
        ("m2-ultra-64gb", "llama-3.1-8b", "Q4_K_M", 76.3, 0.20),
        ("m2-ultra-64gb", "llama-3.3-70b", "Q4_K_M", 12.13, 0.20),
        ("cpu-16gb", "llama-3.1-8b", "Q4_K_M", 8.0, 0.30),
        ("rtx-4090", "gpt-oss-20b", "MXFP4", 266.0, 0.35),
        ("rtx-4090", "qwen3.6-35b-a3b", "Q4_K_M", 180.0, 0.20),
        ("rtx-4090", "gemma-4-31b", "Q4_K_M", 35.0, 0.20),
        ("rtx-4090", "qwen3.6-27b", "Q4_K_M", 47.0, 0.20),
        ("rtx-5090", "qwen3-8b", "Q4_K_M", 221.7, 0.35),
        ("rx-7900-xtx", "gpt-oss-20b", "MXFP4", 191.3, 0.20),
        ("rx-7900-xtx", "gemma-4-26b-a4b", "Q6_K", 99.3, 0.30),
        ("ai-pro-r9700", "llama-3.1-8b", "Q3_K_M", 102.5, 0.20),
        ("strix-halo-128gb", "nemotron-3-nano-30b-a3b", "Q4_K_M", 64.5, 0.25),
        ("strix-halo-128gb", "qwen3.5-122b-a10b", "Q4_K_XL", 20.5, 0.60),  # too fast, as is the next
        ("a100-80gb", "qwen3-coder-next", "Q4_K_M", 117.9, 0.50),
    ],
)
def test_published_speeds(
    catalog: Catalog, machine: str, target: str, quant: str, published: float, within: float
) -> None:
    predicted = predict(curve(catalog, machine, target, quant), None).plain_tok_s
    assert published * (1 - within) < predicted < published * (1 + within)


def test_a_row_costs_as_much_on_every_card_with_the_same_chip(catalog: Catalog) -> None:
    """RTX 3090 and A6000: few rows are multiplied by what both have alike, not by the A6000's tensor cores."""
    rows = [
        decode.decode_s(5) - decode.decode_s(1)
        for decode in (curve(catalog, machine, "llama-3.1-8b", "Q4_K_M") for machine in ("rtx-3090", "a6000"))
    ]
    assert rows[1] == pytest.approx(rows[0], rel=0.1)


def test_layers_on_the_host_cost_what_the_host_reads(catalog: Catalog) -> None:
    """A 32 B at half on a card and half in main memory: the host's half alone takes a fifth of a second."""
    whole, half, none = (curve(catalog, "rtx-3090", "qwen3-32b", "Q4_K_M", gpu_layers=n) for n in (65, 33, 0))
    assert whole.decode_s(1) < half.decode_s(1) < none.decode_s(1)
    host_s = option(catalog, "qwen3-32b", "Q4_K_M").shape.active_bytes / 2 / (0.69 * 51.2e9)
    assert half.decode_s(1) == pytest.approx(host_s + whole.decode_s(1) / 2, rel=0.15)


def test_experts_on_the_host_cost_what_a_token_reads_of_them(catalog: Catalog) -> None:
    """The card keeps what every token reads: quicker than as many bytes in whole layers, the same for all of them."""
    spec, chosen = make_known_spec(catalog.machine("rtx-3090")), option(catalog, "qwen3-30b-a3b", "Q4_K_M")
    shape = chosen.shape

    def decode_s(num_rows: int, n_cpu_moe: int, gpu_layers: int | None = None) -> float:
        where = place_blocks(shape.n_layer, ["CUDA0"], [1.0], gpu_layers=gpu_layers)
        curve = make_curve(chosen.model, where, spec, None, n_cpu_moe=n_cpu_moe, kv_type="f16", measured=None)
        return curve.decode_s(num_rows)

    half, layers = 24, range(shape.n_layer)
    read_s = sum(shape.expert_bytes[:half]) * 8 / 128 / (0.6 * 0.69 * 51.2e9)
    assert decode_s(1, half) - decode_s(1, 0) * 0.8 == pytest.approx(read_s, rel=0.2)
    moved = sum(shape.expert_bytes[:half])
    as_layers = next(count for count in layers if sum(map(shape.bytes_of_layer, layers[:count])) >= moved)
    assert decode_s(1, half) < decode_s(1, 0, gpu_layers=shape.n_layer + 1 - as_layers)
    assert decode_s(4, half) > 2.5 * decode_s(1, half)  # of four tokens, which hardly meet
    assert [decode_s(1, n) for n in (0, 12, 24, 48)] == sorted(decode_s(1, n) for n in (0, 12, 24, 48))
    assert decode_s(1, 48, gpu_layers=0) == decode_s(1, 0, gpu_layers=0)


@pytest.mark.parametrize(
    ("machine", "target", "gpu_layers"),
    [("rtx-3060", "gpt-oss-20b", 12), ("cpu-16gb", "gpt-oss-20b", None), ("cpu-16gb", "qwen3-8b", None)],
)
def test_rows_together_never_cost_more_than_one_by_one(
    catalog: Catalog, machine: str, target: str, gpu_layers: int | None
) -> None:
    """Also with experts in RAM: the bytes that all rows read together are read once."""
    quant = "MXFP4" if target == "gpt-oss-20b" else "Q4_K_M"
    chosen = curve(catalog, machine, target, quant, gpu_layers=gpu_layers)
    assert all(chosen.decode_s(count) <= count * chosen.decode_s(1) for count in (2, 8, 64))


@cache
def curves() -> tuple[Curve, ...]:
    known = load_catalog(user_folder=Path("/nonexistent"))
    machines = (("rtx-3090", "qwen3-30b-a3b"), ("cpu-16gb", "qwen3-8b"), ("m2-max-32gb", "qwen3-14b"))
    return tuple(curve(known, machine, target, "Q4_K_M") for machine, target in machines)


@given(st.integers(1, 20), st.integers(1, 20))
def test_more_rows_never_take_less(first: int, second: int) -> None:
    low, high = sorted((first, second))
    assert all(each.decode_s(low) <= each.decode_s(high) for each in curves())


def test_experts_of_several_tokens(catalog: Catalog) -> None:
    shape = option(catalog, "qwen3-30b-a3b", "Q4_K_M").shape
    assert distinct_experts(shape, 1) == pytest.approx(1.0)
    assert 3.0 < distinct_experts(shape, 4) < 3.5  # 8 of 128 hardly meet, but neighbours share some
    assert distinct_experts(shape, 10_000) == pytest.approx(16.0)  # all of them
    moe, dense = (curve(catalog, "rtx-3090", target, "Q4_K_M") for target in ("qwen3-30b-a3b", "qwen3-14b"))
    assert moe.decode_s(4) / moe.decode_s(1) > dense.decode_s(4) / dense.decode_s(1)  # why drafting may not pay there


def test_the_length_that_pays_is_the_best_of_all(catalog: Catalog) -> None:
    chosen = curve(catalog, "a6000", "llama-3.3-70b", "Q4_K_M")
    acceptance = PredictedAcceptance.from_reports([(3, 2.9), (7, 3.9)], default=0.5)
    best = predict(chosen, acceptance)
    speeds = [acceptance.tokens(count) / chosen.drafted_s(count) for count in range(1, 8)]
    assert best.spec_tok_s == pytest.approx(max(speeds))
    assert speeds[best.num_draft_tokens - 1] == max(speeds)
    assert best.gain > 1.5


def test_a_draft_that_is_never_accepted_does_not_pay(catalog: Catalog) -> None:
    chosen = curve(catalog, "rtx-3090", "qwen3-8b", "Q4_K_M")
    bad = predict(chosen, PredictedAcceptance.from_reports([(3, 1.0)], default=0.5))
    assert (bad.num_draft_tokens, bad.spec_tok_s) == (0, bad.plain_tok_s)


def test_a_lookup_promises_nothing_and_is_bounded(catalog: Catalog) -> None:
    slow, quick = curve(catalog, "cpu-16gb", "qwen3-8b", "Q4_K_M"), curve(catalog, "h100-sxm", "qwen3-8b", "Q4_K_M")
    found: list[Prediction] = [predict(each, None, looks_up=True) for each in (slow, quick)]
    assert all(each.spec_tok_s == each.plain_tok_s for each in found)
    assert 1 <= found[0].num_draft_tokens < found[1].num_draft_tokens
    for each, chosen in zip(found, (slow, quick), strict=True):
        assert chosen.decode_s(each.num_draft_tokens + 1) <= 2.0 * chosen.decode_s(1)


@pytest.mark.parametrize(
    ("block_size", "max_depth", "length"),
    [(1, 16, 7), (1, 3, 3), (1, 2, 2), (1, 1, 1), (8, 8, 7), (5, 5, 5)],
)
@pytest.mark.parametrize("is_measured", [False, True])
def test_no_draft_is_planned_deeper_than_the_draft_model_can_draft(
    catalog: Catalog, block_size: int, max_depth: int, length: int, is_measured: bool
) -> None:
    """Seven tokens would pay on this card, but MTP layers for one position each have three, and blocks have an end."""
    spec, chosen = make_known_spec(catalog.machine("a6000")), option(catalog, "llama-3.3-70b", "Q4_K_M")
    head = next(draft.shape for draft in chosen.drafts if draft.shape is not None)
    head = replace(head, block_size=block_size, max_depth=max_depth)
    decodes = tuple(SizeCost(rows, 0.07 + 0.001 * rows, 9) for rows in range(1, 9))
    measured = MeasuredCosts(decodes=decodes) if is_measured else None
    where = place_blocks(chosen.shape.n_layer, ["CUDA0"], [1.0], gpu_layers=None)
    drafting = make_curve(chosen.model, where, spec, head, kv_type="f16", measured=measured)
    acceptance = PredictedAcceptance.from_reports([(7, 7.0)], default=0.5)
    found = predict(drafting, acceptance)
    assert found.num_draft_tokens == length
    assert found.spec_tok_s == pytest.approx(acceptance.tokens(length) / drafting.drafted_s(length))


def test_what_was_measured_takes_the_place_of_the_arithmetic(catalog: Catalog) -> None:
    measured = MeasuredCosts(
        decodes=(SizeCost(1, 0.050, 9), SizeCost(4, 0.055, 9), SizeCost(5, 0.200, 9)),
        draft_steps=(("eagle3", SizeCost(1, 0.002, 9)),),
        plain_overhead_s=0.001,
        drafted_overhead_s=0.003,
    )
    spec = make_known_spec(catalog.machine("rtx-3090"))
    chosen = curve_on(spec, option(catalog, "qwen3-8b", "Q4_K_M"), None, measured)
    found = predict(chosen, PredictedAcceptance.from_reports([(3, 3.4)], default=0.5))
    assert found.is_measured
    assert found.plain_tok_s == pytest.approx(1 / 0.051)
    assert found.num_draft_tokens == 3  # the step to five rows is a cliff
    assert chosen.drafted_s(3) == pytest.approx(0.055 + 3.5 * 0.002 + 0.003)


def test_a_heavier_draft_is_slower(catalog: Catalog) -> None:
    spec, chosen = make_known_spec(catalog.machine("rtx-3090")), option(catalog, "qwen3-8b", "Q4_K_M")
    head = estimate_draft_shape(catalog.drafts["e3-qwen3-8b-angelslim"], catalog.target("qwen3-8b").outline)
    assert head is not None
    heavy = replace(head, active_bytes=10 * head.active_bytes)
    where = place_blocks(36, ["CUDA0"], [1.0], gpu_layers=None)
    light_s, heavy_s = (
        make_curve(chosen.model, where, spec, each, kv_type="f16", measured=None).drafted_s(4) for each in (head, heavy)
    )
    assert heavy_s > light_s


@pytest.mark.parametrize(
    ("quant", "bits", "share"), [("Q8_0", 8.5, 1.0), ("BF16", 16.0, 0.8), ("UD-Q4_K_XL", 4.9, 1.7), ("Q4_0", 4.5, 1.3)]
)
def test_few_cores_are_bound_by_their_clock(catalog: Catalog, quant: str, bits: float, share: float) -> None:
    """Two cores at 2.6 GHz with memory to spare: 26 GFLOP/s on 8 bits, four fifths of it on halves, more on layouts."""
    chosen = option(catalog, "qwen3-4b", "Q4_K_M")
    chosen = replace(chosen, model=replace(chosen.model, arithmetic=choose_arithmetic(quant, bits)))
    took = curve_on(two_cores(clock_mhz=2600.0), chosen, 0).decode_s(1)
    assert took == pytest.approx(2 * chosen.model.active_parameters / (26e9 * share), rel=0.05)
    assert curve_on(two_cores(clock_mhz=None), chosen, 0).decode_s(1) == pytest.approx(took * 2.6 / 3.2, rel=0.05)
    old = curve_on(two_cores(clock_mhz=2600.0, extensions=("avx",)), chosen, 0).decode_s(1)
    assert old == pytest.approx(took * max(share, 1.0), rel=0.05), "no layouts for a processor without AVX2"


def test_experts_that_stay_as_they_were_trained_are_no_quicker_in_another_file(catalog: Catalog) -> None:
    """gpt-oss in Q4_K_M is smaller by its embeddings and attention; its experts are MXFP4 there too."""
    native, other = (option(catalog, "gpt-oss-20b", quant).model.arithmetic for quant in ("MXFP4", "Q4_K_M"))
    assert native == other != option(catalog, "qwen3-30b-a3b", "Q4_K_M").model.arithmetic


def two_cores(*, clock_mhz: float | None, extensions: tuple[str, ...] = ("avx", "avx2")) -> MachineSpec:
    quick = Bandwidth(bytes_s=5e11, low_bytes_s=5e11, high_bytes_s=5e11, threads=2, measured_at=1.8e9, others_share=0.0)
    machine = Machine(
        gpus=(),
        unified=None,
        cpu=Cpu(usable_threads=2, clock_mhz=clock_mhz, vector_extensions=extensions, bandwidth=quick),
        memory=MainMemory(),
        cache_free_bytes=None,
        llama_cpp=LlamaCpp(),
    )
    return make_machine_spec(machine, {})
