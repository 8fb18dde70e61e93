"""Memory in vLLM: contexts, sequences, cards and slices that hold target, draft and both caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.planning.machine_spec import MachineSpec, make_known_spec
from eaglelocal.planning.options import make_catalog_options
from eaglelocal.preparation.vllm.served_pair import (
    DRAFT_MODEL,
    EAGLE3,
    MAX_UTILIZATION,
    ServedPair,
    ServingLimits,
    VllmDraft,
    VllmTarget,
    WeightsPin,
    count_room,
    find_fit,
    find_weight_bits,
    fit_device,
    weigh,
    widen_model,
)

CATALOG = load_catalog()
HEAD = VllmDraft(id="head", method=EAGLE3, most=5, num_bytes=800_000_000, num_layers=1, kv_bytes_per_token=4096)


def pair(id: str, draft: VllmDraft | None = HEAD) -> ServedPair:
    entry = CATALOG.targets[id]
    option = next(make_catalog_options(entry, CATALOG))
    model = widen_model(option.model, is_native="MXFP4" in entry.quantizations)
    pin = WeightsPin("some/repo", "0" * 40)
    target = VllmTarget(id=id, pin=pin, model=model, max_context=entry.outline.max_context)
    return ServedPair(target=target, draft=draft)


def machine(name: str) -> MachineSpec:
    return make_known_spec(CATALOG.machine(name))


def test_both_caches_count() -> None:
    device = machine("h100-sxm").gpus[0]
    with_draft, without = (weigh(pair("qwen3-8b", draft), device, 8192, 16) for draft in (HEAD, None))
    assert with_draft.cache_bytes - without.cache_bytes == 16 * 2048 * 4096
    assert with_draft.draft_bytes == 800_000_000 and without.draft_bytes == 0
    assert weigh(pair("qwen3-8b"), device, 8192, 1).cache_bytes == 8192 * (147_456 + 4096)  # one of full length


@pytest.mark.parametrize(
    ("name", "id"), [("rtx-4090", "qwen3-8b"), ("h100-sxm", "qwen3-32b"), ("cpu-16gb", "qwen3-4b")]
)
@pytest.mark.parametrize("load", ["interactive", "batch"])
def test_a_fit_fits_and_no_further_sequence_does(name: str, id: str, load: str) -> None:
    fit = find_fit(pair(id), machine(name), ServingLimits(load=load))
    room = count_room(fit.device)
    assert fit.needed_bytes <= room and fit.utilization <= MAX_UTILIZATION + 0.01
    more = weigh(pair(id), fit.device, fit.n_ctx, fit.max_num_seqs + 1)
    assert more.needed_bytes > room or fit.max_num_seqs == {"interactive": 32, "batch": 256}[load]


def test_what_was_asked_for_is_kept() -> None:
    fit = find_fit(pair("qwen3-8b"), machine("h100-sxm"), ServingLimits(ctx=4096, parallel=8))
    assert (fit.n_ctx, fit.max_num_seqs, fit.num_cards) == (4096, 8, 1)
    assert fit.needed_bytes / (fit.device.total_bytes or 1) <= fit.utilization < 0.5


def test_each_card_holds_a_head_and_working_memory_of_its_own() -> None:
    device = machine("2x-rtx-4090").gpus[0]
    head = replace(HEAD, pin=WeightsPin("some/head", "0" * 40))
    one, two = (weigh(pair("qwen3-8b", head), device, 8192, 4, count) for count in (1, 2))
    assert two.weights_bytes == one.weights_bytes and two.working_bytes == 2 * one.working_bytes
    assert two.draft_bytes == 2 * one.draft_bytes and two.cache_bytes - one.cache_bytes == 8192 * 4096
    model = replace(head, method=DRAFT_MODEL)
    assert weigh(pair("qwen3-8b", model), device, 8192, 4, 2).draft_bytes == one.draft_bytes  # split as the target


def test_the_share_of_a_card_is_never_more_than_what_is_free() -> None:
    card = machine("rtx-4090").gpus[0]
    total = card.total_bytes or 0
    for free in (total, int(0.9 * total), int(0.855 * total)):
        fit = fit_device(pair("qwen3-8b"), replace(card, free_bytes=free), ServingLimits(load="batch"), 1)
        assert fit is not None and fit.utilization * total <= min(free, MAX_UTILIZATION * total) + 1


def test_a_target_too_large_for_a_card_takes_two() -> None:
    fit = find_fit(pair("qwen3-14b"), machine("2x-rtx-4090"), ServingLimits())
    assert fit.num_cards == 2 and fit.needed_bytes > (machine("rtx-4090").gpus[0].total_bytes or 0)


@pytest.mark.parametrize(
    ("id", "limits", "name"),
    [
        ("qwen3-0.6b", ServingLimits(ctx=2048, parallel=2), "1g.10gb"),
        ("gpt-oss-20b", ServingLimits(ctx=8192, parallel=4), "2g.20gb"),
        ("llama-3.1-8b", ServingLimits(ctx=2048), "2g.20gb"),
        ("llama-3.1-8b", ServingLimits(), "3g.40gb"),  # the smaller slice holds 2048 tokens
        ("qwen3-14b", ServingLimits(ctx=8192, parallel=4), "3g.40gb"),
        ("qwen3-32b", ServingLimits(ctx=4096, parallel=1), "7g.80gb"),
    ],
)
def test_the_smallest_slice_that_fits_is_taken(id: str, limits: ServingLimits, name: str) -> None:
    fit = find_fit(pair(id), machine("h100-sxm"), replace(limits, wants_slice=True))
    assert fit.slice == name
    assert fit.needed_bytes <= (fit.device.total_bytes or 0)
    whole = machine("h100-sxm").gpus[0]
    assert (fit.device.bytes_s < whole.bytes_s) == (name != "7g.80gb")


@pytest.mark.parametrize(
    ("name", "limits", "error", "message"),
    [
        ("rtx-4090", ServingLimits(wants_slice=True), UsageError, "no MIG slices"),
        ("m2-max-32gb", ServingLimits(), UsageError, "NVIDIA cards and processors"),
        ("rtx-4090", ServingLimits(ctx=1 << 20), UsageError, "was trained for"),
        ("rtx-3060", ServingLimits(), ResourceError, "in vLLM, with its draft and both caches"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, limits: ServingLimits, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        find_fit(pair("qwen3-8b"), machine(name), limits)


@pytest.mark.parametrize(
    ("repo", "bits"),
    [
        ("Qwen/Qwen3-8B", 16.0),
        ("Qwen/Qwen3-8B-AWQ", 4.5),
        ("RedHatAI/Qwen3-8B-quantized.w4a16", 4.5),
        ("nvidia/Qwen3-8B-NVFP4", 4.5),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", 8.1),
        ("fp8/model", 16.0),  # its owner's name
    ],
)
def test_quantized_repositories_are_as_large_as_their_bits(repo: str, bits: float) -> None:
    assert find_weight_bits(repo) == bits
    (option,) = [one for one in make_catalog_options(CATALOG.target("qwen3-8b"), CATALOG) if one.quant == "Q8_0"]
    wide, found = (widen_model(option.model, is_native=False, bits=each).shape for each in (16.0, bits))
    outside = wide.embedding_bytes + wide.output_bytes
    assert found.embedding_bytes == wide.embedding_bytes and found.output_bytes == wide.output_bytes
    assert found.weights_bytes - outside == pytest.approx((wide.weights_bytes - outside) * bits / 16, rel=1e-6)
    assert found.weights_bytes <= wide.weights_bytes and found.active_bytes <= wide.active_bytes
