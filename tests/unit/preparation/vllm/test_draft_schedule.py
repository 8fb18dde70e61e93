"""The draft lengths by number of sequences: against an exhaustive search, and where drafting must stop."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.planning.machine_spec import DeviceSpec, make_known_spec
from eaglelocal.planning.options import make_catalog_options
from eaglelocal.planning.quality import PredictedAcceptance
from eaglelocal.preparation.vllm.served_pair import (
    DRAFT_MODEL,
    EAGLE3,
    NGRAM,
    PEAGLE,
    BatchCosts,
    VllmDraft,
    VllmTarget,
    WeightsPin,
    make_batch_costs,
    make_schedule,
    merge_lengths,
    widen_model,
)

CATALOG = load_catalog()
GPU = make_known_spec(CATALOG.machines["rtx-4090"]).gpus[0]
HEAD = VllmDraft(
    id="head",
    method=EAGLE3,
    most=7,
    num_bytes=800_000_000,
    num_layers=1,
    kv_bytes_per_token=4096,
    acceptance=PredictedAcceptance.from_reports(((3, 2.6), (7, 3.2)), default=0.5),
)


def target(id: str = "qwen3-8b") -> VllmTarget:
    option = next(make_catalog_options(CATALOG.targets[id], CATALOG))
    return VllmTarget(
        id=id, pin=WeightsPin("some/repo", "0" * 40), model=widen_model(option.model, is_native=False), max_context=4096
    )


def costs(draft: VllmDraft = HEAD, device: DeviceSpec = GPU) -> BatchCosts:
    return make_batch_costs(target(), draft, device)


def test_a_target_has_two_bytes_for_each_parameter() -> None:
    assert target().shape.weights_bytes == pytest.approx(2 * 8.19e9, rel=1e-3)
    assert target().cache_bytes(1000) == 1000 * 36 * 2 * 8 * 128 * 2


def test_the_length_has_the_best_goodput_of_all_and_never_grows() -> None:
    found = costs()
    schedule = make_schedule(found, 256)
    assert schedule[0][0] == 1 and schedule[-1][1] == 256
    assert all(after[0] == before[1] + 1 for before, after in pairwise(schedule))
    lengths = [length for _, _, length in schedule]
    assert lengths == sorted(set(lengths), reverse=True) and len(lengths) > 2
    for first, last, length in schedule:
        for count in {first, last}:
            assert found.goodput(count, length) == max(found.goodput(count, k) for k in range(lengths[0] + 1))


def test_many_sequences_draft_nothing_if_rows_are_expensive() -> None:
    slow = replace(GPU, flops=GPU.flops / 10)
    assert make_schedule(costs(device=slow), 64)[-1][2] == 0
    assert make_schedule(costs(device=slow), 1)[0][2] > 0


def test_a_draft_that_is_never_accepted_is_off_from_the_first_sequence_on() -> None:
    hopeless = replace(HEAD, acceptance=PredictedAcceptance(((1, 0.0),), is_reported=True))
    assert make_schedule(costs(hopeless), 16) == ((1, 16, 0),)


def test_one_pass_for_all_tokens_drafts_more_than_a_pass_for_each() -> None:
    dear = replace(HEAD, method=DRAFT_MODEL, num_bytes=6_000_000_000)
    assert make_schedule(costs(replace(dear, method=PEAGLE)), 1)[0][2] > make_schedule(costs(dear), 1)[0][2]


def test_a_lookup_costs_at_most_two_plain_steps_if_rejected() -> None:
    found = costs(VllmDraft(id=NGRAM, method=NGRAM, most=7), replace(GPU, flops=GPU.flops / 50))
    for _, last, length in make_schedule(found, 64):
        assert not length or found.step_s(last, length) <= 2 * found.step_s(last, 0)


def test_equal_lengths_become_one_range() -> None:
    assert merge_lengths([5, 5, 3, 0, 0]) == ((1, 2, 5), (3, 3, 3), (4, 5, 0))
