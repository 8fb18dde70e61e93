"""Shapes of catalog entries against what llama.cpp's logs and papers say of the same models."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.estimated_shapes import (
    compute_expert_share,
    estimate_draft_shape,
    estimate_mtp_shape,
    estimate_target_shape,
)
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.memory.cache_bytes import CacheParams, cache_bytes

MIB = 2**20


def count_kv_bytes(shape: ModelShape) -> int:
    """Return the bytes of a token's keys and values in f16, over all layers, as if none had a window."""
    return 2 * sum(shape.key_width(layer) + shape.value_width(layer) for layer in range(shape.n_layer))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(user_folder=Path("/nonexistent"))


def shape(catalog: Catalog, target: str, quant: str) -> ModelShape:
    entry = catalog.target(target)
    return estimate_target_shape(entry.outline, quant, entry.quantizations[quant].num_bytes)


@pytest.mark.parametrize(
    ("target", "ctx", "mib"),
    [
        ("qwen3-8b", 8192, 1152),  # printed by llama.cpp in f16, as are all of these
        ("qwen3.6-27b", 32768, 2048 + 149.6),  # with one recurrent state
        ("llama-3.1-8b", 8192, 1024),
        ("gemma-4-31b", 16384, 1280 + 1200),  # 10 whole layers, 50 of 1024 + 512 cells
        ("gpt-oss-20b", 32768, 768 + 18),
        ("glm-4.7-flash", 32768, 1692),  # keys alone, of which values are a part
        ("nemotron-3-nano-30b-a3b", 32768, 192 + 47.62),
        ("qwen3.5-122b-a10b", 32768, 768 + 149.06),
        ("qwen3-next-80b", 32768, 768 + 75.37),
    ],
)
def test_caches(catalog: Catalog, target: str, ctx: int, mib: float) -> None:
    known = shape(catalog, target, next(iter(catalog.target(target).quantizations)))
    sizes = CacheParams(n_ctx=ctx, swa_full=False)
    assert cache_bytes(known, sizes) / MIB == pytest.approx(mib, rel=0.002)


@pytest.mark.parametrize(
    ("target", "quant", "mib"),
    [("qwen3-8b", "Q4_K_M", 334), ("qwen3.6-27b", "Q4_K_M", 682), ("llama-3.3-70b", "Q4_K_M", 564)],
)
def test_embeddings_that_stay_in_main_memory(catalog: Catalog, target: str, quant: str, mib: float) -> None:
    assert shape(catalog, target, quant).embedding_bytes / MIB == pytest.approx(mib, rel=0.01)


def test_every_entry_adds_up(catalog: Catalog) -> None:
    for target in catalog.targets.values():
        for quant in target.quantizations:
            known = shape(catalog, target.id, quant)
            layers = sum(known.bytes_of_layer(layer) for layer in range(known.n_layer))
            parts = known.embedding_bytes + known.output_bytes + layers
            assert known.weights_bytes - known.n_layer <= parts <= known.weights_bytes, (target.id, quant)
            assert 0 < known.active_bytes <= known.weights_bytes, (target.id, quant)
            kept = sum(1 for heads in known.kv_heads if heads)
            outline = target.outline
            assert kept == outline.full.num_layers + (outline.windowed.num_layers if outline.windowed else 0)


def test_few_experts_are_read(catalog: Catalog) -> None:
    """Bytes of a token by the share of active parameters, as pages state them."""
    for target in (
        *("qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "qwen3.6-35b-a3b", "qwen3-next-80b", "qwen3-coder-next"),
        *("qwen3.5-122b-a10b", "glm-4.5-air", "glm-4.7-flash", "nemotron-3-nano-30b-a3b"),
        *("nemotron-3.5-lightning-30b-a3b", "qwen3-coder-30b-a3b", "qwen3-30b-a3b-2507", "qwen3.5-35b-a3b"),
        *("laguna-xs-2.1", "mellum2-12b-a2.5b", "lfm2.5-8b-a1b", "lfm2-24b-a2b", "llama-4-scout"),
    ):
        entry = catalog.target(target)
        for quant in entry.quantizations:
            known = shape(catalog, target, quant)
            share = entry.outline.active_parameters_b / entry.outline.parameters_b
            assert 0.5 * share < known.active_bytes / known.weights_bytes < 2.0 * share, (target, quant)
    dense = shape(catalog, "qwen3-8b", "Q4_K_M")
    assert dense.active_bytes == dense.weights_bytes - dense.embedding_bytes


@pytest.mark.parametrize(
    ("target", "in_experts_b", "in_embeddings_b"),
    [
        ("glm-4.7-flash", 46 * 64 * 3 * 2048 * 1536 / 1e9, 2 * 154_880 * 2048 / 1e9),  # the first layer is dense
        ("nemotron-3-nano-30b-a3b", 23 * 128 * 2 * 2688 * 1856 / 1e9, 2 * 131_072 * 2688 / 1e9),  # others have none
    ],
)
def test_experts_of_some_layers(catalog: Catalog, target: str, in_experts_b: float, in_embeddings_b: float) -> None:
    outline = catalog.target(target).outline
    assert compute_expert_share(outline) == pytest.approx(in_experts_b / (outline.parameters_b - in_embeddings_b))


def test_heads(catalog: Catalog) -> None:
    target = catalog.target("qwen3-8b").outline
    head = estimate_draft_shape(catalog.drafts["e3-qwen3-8b-angelslim"], target)
    assert head is not None and head.is_head
    assert count_kv_bytes(head) == 4096  # bytes of a token in f16, as published
    published = catalog.drafts["e3-qwen3-8b-angelslim"].sizes["q8_0"]
    assert head.weights_bytes == pytest.approx(published * 4.5 / 8.5, abs=1), "it is loaded as a copy in four bits"
    assert estimate_draft_shape(catalog.drafts["e3-qwen3-next-80b-specforge"], target) is None  # its size is unknown


def test_an_mtp_layer_is_as_large_as_what_it_adds_to_a_published_file(catalog: Catalog) -> None:
    outline = catalog.target("qwen3.6-27b").outline
    layer = estimate_mtp_shape(outline, shape(catalog, "qwen3.6-27b", "Q4_K_M"))
    entry = catalog.drafts["mtp-qwen3.6-27b"]
    assert layer.weights_bytes == pytest.approx(entry.sizes["file"], rel=0.15)
    assert count_kv_bytes(layer) == entry.kv_bytes_per_token
    assert layer.is_head and layer.num_taps == 1


@pytest.mark.parametrize(
    ("target", "quant", "parameters"),
    [("nemotron-3.5-lightning-30b-a3b", "Q8_0", 1.3e9), ("hy3", "Q4_K_M", 3.8e9)],
)
def test_an_mtp_layer_has_experts_though_not_every_layer_has(
    catalog: Catalog, target: str, quant: str, parameters: float
) -> None:
    """Parameters: what Lightning has more than Nano, whose backbone it has; what Hy3's makers state."""
    entry = catalog.target(target)
    layer = estimate_mtp_shape(entry.outline, shape(catalog, target, quant))
    bits = 8 * entry.quantizations[quant].num_bytes / (entry.outline.parameters_b * 1e9)
    assert layer.weights_bytes == pytest.approx(parameters * bits / 8, rel=0.15)
    assert (
        count_kv_bytes(layer)
        == catalog.drafts[next(each for each in entry.drafts if each.startswith("mtp"))].kv_bytes_per_token
    )
    assert layer.active_bytes < layer.weights_bytes


def test_a_small_model_keeps_what_is_published(catalog: Catalog) -> None:
    target = catalog.target("qwen3-8b").outline
    small = estimate_draft_shape(catalog.drafts["plain-qwen3-0.6b"], target)
    assert small is not None and not small.is_head
    assert count_kv_bytes(small) == 114688
    for draft in catalog.drafts.values():
        drawn = estimate_draft_shape(draft, target) if draft.kind in ("draft_model", "eagle3") else None
        if drawn is not None:
            kept = count_kv_bytes(drawn)
            assert draft.kv_bytes_per_token is not None
            assert draft.kv_bytes_per_token <= kept <= 1.25 * draft.kv_bytes_per_token, draft.id
            assert drawn.n_head <= 64, draft.id


def test_a_parallel_head_is_four_layers_whose_output_lies_in_ram_too(catalog: Catalog) -> None:
    target, draft = catalog.target("gpt-oss-20b").outline, catalog.drafts["peagle-gpt-oss-20b"]
    head = estimate_draft_shape(draft, target)
    assert head is not None
    assert (head.n_layer, head.block_size, head.upper_vocab, head.is_head) == (4, 7, target.n_vocab, True)
    assert head.max_depth == head.block_size
    assert count_kv_bytes(head) == 8192
    values = target.n_vocab * target.n_embd
    assert head.tied_output_bytes == pytest.approx(values * 4.5 / 8, rel=1e-6)
    assert head.embedding_bytes - head.tied_output_bytes == pytest.approx(values * 8.5 / 8, rel=1e-6)
    assert head.active_bytes == head.weights_bytes - (head.embedding_bytes - head.tied_output_bytes)
    parameters = 8 * (head.active_bytes / 4.5 + values * 8.5 / 8 / 8.5)
    assert parameters == pytest.approx(1.8e9, rel=0.01)
