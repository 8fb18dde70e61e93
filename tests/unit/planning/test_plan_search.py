"""Plans for machines of every size: each one fits, and no better candidate was rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from doubles.catalog_plans import (
    GIB,
    catalog,
    check_fits,
    chosen_of,
    every_option,
    machine_named,
    machine_of,
    option,
    planned,
    score_of,
    some_options,
)
from doubles.property_tests import examples
from doubles.tiers import some_of
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.catalog.draft_entries import find_unsupported_reason
from eaglelocal.core.run_options import PLANNED_KV_TYPES, RunOptions
from eaglelocal.core.stats import MeasuredCosts, SizeCost
from eaglelocal.gguf.draft_pairing import branch_problem
from eaglelocal.memory.budget import RAM
from eaglelocal.memory.contexts import PLANNED_ROLLBACK
from eaglelocal.memory.placement import WHOLE, Offload
from eaglelocal.planning.candidate import COMFORTABLE_CTX, GOALS
from eaglelocal.planning.candidate_evaluation import CacheSetup, CandidateEvaluator
from eaglelocal.planning.no_fit_hints import explain_choice, explain_no_fit
from eaglelocal.planning.options import DraftOption, ModelOption
from eaglelocal.planning.plan_search import DOES_NOT_PAY, exceeds_room, list_kv_types, list_setups, search_plan
from eaglelocal.planning.speed import HOST_S

pytestmark = pytest.mark.full

memory = st.floats(0.5, 100.0)
cards = st.lists(st.floats(0.5, 90.0), max_size=3).map(tuple)
goals = st.sampled_from(sorted(GOALS))


@examples(20)
@given(memory, cards, goals, st.none() | st.integers(256, 32768), st.integers(1, 4))
def test_what_is_chosen_always_fits(
    ram_gib: float, gpus: tuple[float, ...], goal: str, ctx: int | None, num_slots: int
) -> None:
    outcome = search_plan(some_options(), machine_of(ram_gib, gpus), RunOptions(goal=goal, ctx=ctx, parallel=num_slots))
    if outcome.chosen is not None:
        check_fits(outcome)
        assert ctx is None or outcome.chosen.setup.n_ctx == ctx
    else:
        message, hint = explain_no_fit(outcome)
        assert "nothing fits" in message and hint
    for each in outcome.rejected:
        assert each.reason


@examples(12)
@given(memory, st.floats(0.5, 90.0), goals, st.floats(0.0, 40.0), st.booleans())
def test_more_memory_is_never_worse(ram_gib: float, gpu_gib: float, goal: str, more: float, on_card: bool) -> None:
    asked = RunOptions(goal=goal)
    small = search_plan(some_options(), machine_of(ram_gib, (gpu_gib,)), asked)
    large = search_plan(some_options(), machine_of(ram_gib + more * (not on_card), (gpu_gib + more * on_card,)), asked)
    if small.chosen is not None:
        assert large.chosen is not None
        assert large.chosen.score >= small.chosen.score - 1e-9


@pytest.mark.parametrize(
    ("ram_gib", "gpus"), [(16, (14.0,)), pytest.param(12, (7.0,), marks=pytest.mark.slow), (40, (8.0, 6.0)), (24, ())]
)
def test_best_first_finds_what_weighing_everything_finds(ram_gib: float, gpus: tuple[float, ...]) -> None:
    """All setups with all numbers of layers, or of their experts; with any on the host, only a comfortable context."""
    targets = ("qwen3-8b", "gemma-4-31b", "qwen3.6-27b", "qwen3-30b-a3b")
    options = [each for each in some_options() if each.target in targets and each.quant == "Q4_K_M"]
    asked, machine = RunOptions(goal="balanced"), machine_of(ram_gib, gpus)
    evaluator, best = CandidateEvaluator(machine, RunOptions()), float("-inf")
    for each, draft, setup, offload in everything(options, asked, has_gpus=bool(gpus)):
        value = score_of(evaluator, each, draft, setup, offload)
        if value > best:
            memory = evaluator.estimate_memory(each, draft, setup, offload)
            if memory.fits and (bool(gpus) or not exceeds_room(setup, memory, asked)):
                best = value
    assert chosen_of(search_plan(options, machine, asked)).score == pytest.approx(best, abs=1e-9)


def everything(
    options: list[ModelOption], asked: RunOptions, *, has_gpus: bool
) -> Iterator[tuple[ModelOption, DraftOption, CacheSetup, Offload]]:
    for each in options:
        counts = range(each.shape.n_layer + 1)
        parted = [*map(partial(Offload, None), counts[1:]), *(Offload(layers, counts[-1]) for layers in counts)]
        offloads = [*map(Offload, counts), *(parted if each.shape.expert_bytes else ())]
        for draft in each.drafts:
            for setup in list_setups(each, asked, () if has_gpus else (RAM,)):
                yield each, draft, setup, WHOLE
                if has_gpus and setup.n_ctx <= COMFORTABLE_CTX:
                    yield from ((each, draft, setup, offload) for offload in offloads)


@pytest.mark.parametrize("gpus", [(7.0,), (14.0,), (8.0, 6.0), (6.0, 10.0, 5.0)])
def test_as_many_layers_are_on_the_gpus_as_they_hold(gpus: tuple[float, ...]) -> None:
    evaluator, setup = (
        CandidateEvaluator(machine_of(100, gpus), RunOptions()),
        CacheSetup(n_ctx=8192, kv_type="f16"),
    )
    for each in some_options():
        for draft in each.drafts:
            offload, memory = evaluator.best_split(each, draft, setup)
            assert memory.fits_gpus
            layers, blocks = offload.gpu_layers or 0, each.shape.n_layer + each.shape.n_layer_ahead + 1
            assert layers == blocks or not evaluator.estimate_memory(each, draft, setup, Offload(layers + 1)).fits_gpus


@pytest.mark.parametrize(
    ("num_slots", "gpus", "layers", "unified"),
    [
        (1, (), None, False),  # quantized weights on a CPU
        (1, (14.0,), None, True),
        (2, (), None, False),
        (2, (14.0,), None, True),
        (2, (14.0,), 0, False),
        (3, (14.0,), 9, False),
    ],
)
def test_two_slots_are_weighed_as_they_are_loaded(
    num_slots: int, gpus: tuple[float, ...], layers: int | None, unified: bool
) -> None:
    """With one cache where layers lie on a GPU and none has a window, as loading/fit.py has it."""
    evaluator, setup = (
        CandidateEvaluator(machine_of(100, gpus), RunOptions(parallel=num_slots)),
        CacheSetup(n_ctx=8192, kv_type="f16"),
    )
    windowed = {each.shape.has_windows for each in some_options()}
    assert windowed == {True, False}
    for each in some_options():
        expected = unified and (num_slots == 1 or not branch_problem(each.shape))
        assert evaluator.make_sizing_plan(each, each.drafts[0], setup, Offload(layers)).unified is expected


# ---- what is said


def test_only_what_the_engine_runs_is_picked() -> None:
    for machine in ("rtx-3090", "a6000", "m2-max-32gb", "cpu-16gb", "rtx-pro-6000"):
        for goal in GOALS:
            candidate = chosen_of(planned(machine, goal))
            assert candidate.draft.kind in ("none", "ngram", "eagle3", "dflash", "mtp", "draft_model")


def test_hybrid_targets_have_short_drafts_and_keep_states_for_them() -> None:
    outcome = search_plan((option("qwen3.6-27b", "Q4_K_M"),), machine_named("rtx-3090"), RunOptions(goal="balanced"))
    chosen = chosen_of(outcome)
    assert chosen.draft.id == "mtp-qwen3.6-27b"
    assert 0 < chosen.prediction.num_draft_tokens <= PLANNED_ROLLBACK
    check_fits(outcome)


def test_states_for_a_lookup_are_not_kept_where_they_cost_layers_on_the_gpu() -> None:
    many = search_plan(
        (option("qwen3.6-27b", "Q4_K_M"),), machine_named("rtx-3090"), RunOptions(goal="balanced", parallel=16)
    )
    candidate = chosen_of(many)
    assert (candidate.draft.kind, candidate.gpu_layers) == ("none", None)
    check_fits(many)


def test_a_draft_with_states_of_its_own_is_no_way() -> None:
    target = catalog().targets["qwen3.6-27b"]
    (entry,) = [draft for draft in catalog().drafts_for(target) if draft.id == "plain-qwen3.5-0.8b"]
    assert "the draft has recurrent state" in find_unsupported_reason(entry, target.outline)
    assert entry.id not in [candidate.id for candidate in option("qwen3.6-27b", "Q4_K_M").drafts]


def test_layers_in_ram_are_shown_and_slow() -> None:
    large = search_plan(
        (option("qwen3-32b", "Q4_K_M"),), machine_named("cuda-16gb"), RunOptions(goal="balanced", ctx=8192)
    )
    candidate = chosen_of(large)
    assert candidate.gpu_layers is not None and 0 < candidate.gpu_layers < 65
    assert candidate.prediction.plain_tok_s < 10
    assert any(
        reason.startswith(f"{candidate.gpu_layers} of 65 layers fit")
        for reason in explain_choice(large, chosen_of(large))
    )
    check_fits(large)


def test_two_cards_hold_what_one_cannot() -> None:
    one, two = (
        search_plan((option("llama-3.3-70b", "IQ4_XS"),), machine_named(name), RunOptions(goal="balanced"))
        for name in ("rtx-3090", "2x-rtx-3090")
    )
    assert chosen_of(one).gpu_layers is not None and chosen_of(two).gpu_layers is None
    cards = [load for load in chosen_of(two).memory.used if load.device != RAM]
    assert [load.device for load in cards] == ["CUDA0", "CUDA1"]
    assert all(15 * GIB < load.total <= (load.free_bytes or 0) for load in cards)


def test_slots_take_memory() -> None:
    asked = RunOptions(goal="quality", ctx=8192)
    one, four = (
        search_plan((option("qwen3-8b", "Q4_K_M"),), machine_named("rtx-3090"), replace(asked, parallel=slots))
        for slots in (1, 4)
    )
    alone, shared = (chosen_of(each).memory.sum.kv_bytes for each in (one, four))
    assert shared == 4 * alone


@pytest.mark.parametrize("machine", ["cuda-8gb", "cuda-12gb", "rtx-3090", "2x-rtx-3090"])
@pytest.mark.parametrize("slots", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("first", some_of(range(4), rest=pytest.mark.slow))
def test_nothing_drafts_no_tokens(machine: str, slots: int, first: int) -> None:
    """A draft that pays with all layers on the GPU may not with some on the host; then neither it nor a lookup is."""
    for each in every_option()[first::4]:
        chosen = search_plan((each,), machine_named(machine), RunOptions(goal="balanced", parallel=slots)).chosen
        if chosen is not None:
            assert (chosen.draft.kind == "none") == (chosen.prediction.num_draft_tokens == 0), each.reference


def test_a_head_that_does_not_pay_from_the_host_is_left_out_with_that_reason() -> None:
    outcome = search_plan((option("gpt-oss-120b", "F16"),), machine_named("2x-rtx-3090"), RunOptions(goal="balanced"))
    candidate = chosen_of(outcome)
    assert not candidate.offload.is_whole and candidate.draft.shape is None
    drafts = {each.draft: each.reason for each in outcome.rejected if each.candidate is not None}
    assert drafts["e3-gpt-oss-120b-lmsys"] == DOES_NOT_PAY


def test_a_draft_that_was_named_is_planned_though_it_does_not_pay() -> None:
    chosen = option("gpt-oss-120b", "F16")
    head = next(draft for draft in chosen.drafts if draft.id == "e3-gpt-oss-120b-lmsys")
    asked = RunOptions(goal="balanced", draft=head.id)
    outcome = search_plan((replace(chosen, drafts=(head,)),), machine_named("2x-rtx-3090"), asked)
    assert chosen_of(outcome).draft is head
    reasons = explain_choice(outcome, chosen_of(outcome))
    assert "the draft is predicted not to pay, and is used because you named it" in reasons
    check_fits(outcome)


def test_no_cache_is_planned_that_llama_cpp_aborts_on() -> None:
    """Phi-4 in 12 GiB for four: with caches of 16 bits or not at all; one slot's may be smaller."""
    phi, machine, asked = (option("phi-4", "Q4_K_M"),), machine_named("cuda-12gb"), RunOptions(goal="balanced")
    kinds = {setup.kv_type for each in phi for setup in list_setups(each, replace(asked, parallel=4))}
    assert kinds == {"f16"}
    assert {setup.kv_type for setup in list_setups(phi[0], replace(asked, parallel=1))} == set(PLANNED_KV_TYPES)
    refused = search_plan(phi, machine, replace(asked, parallel=4, kv_type="q8_0"))
    assert refused.chosen is None
    assert [each.reason for each in refused.rejected] == [
        "llama.cpp cannot give 4 slots of a phi3 model caches of q8_0; --kv-type f16 goes, or --parallel 1"
    ]
    assert list_setups(option("qwen3-8b", "Q4_K_M"), replace(asked, parallel=4, kv_type="q8_0"))


def measured_plan(factor: float, noise: float) -> list[str]:
    """Return the reasons of a plan whose decodes took so many times the computed time."""
    chosen, machine = option("qwen3-8b", "Q4_K_M"), machine_named("rtx-3090")
    found = chosen_of(search_plan((chosen,), machine, RunOptions(draft="none"))).prediction
    one_s = factor * (1 / found.plain_tok_s - HOST_S)
    costs = MeasuredCosts(decodes=(SizeCost(1, one_s, 9), SizeCost(16, 2 * one_s, 9)), noise=noise)
    outcome = search_plan((chosen,), machine, RunOptions(draft="none"), measured={chosen.reference: costs})
    assert chosen_of(outcome).prediction.is_measured
    return list(explain_choice(outcome, chosen_of(outcome)))


@pytest.mark.parametrize(
    ("factor", "noise", "said"),
    [
        (1.0, 0.05, ""),
        (1.2, 0.0, ""),
        (2.5, 0.05, "decodes took 2.5 times as long as predicted when they were measured here"),
        (1.0, 0.41, "equal decodes differed by a factor of 1.5 when they were measured here"),
    ],
)
def test_costs_measured_on_a_busy_machine_are_marked(factor: float, noise: float, said: str) -> None:
    reasons = [reason for reason in measured_plan(factor, noise) if "measured here" in reason]
    command = "`eaglelocal tune --target qwen3-8b:Q4_K_M` measures again"
    assert reasons == ([f"{said}: if other programs ran then, {command}"] if said else [])


@pytest.mark.parametrize(
    ("device", "kinds"),
    [
        ("CUDA0", ("f16", "q8_0", "q4_0")),
        ("MTL0", ("f16", "q8_0", "q5_1", "q4_0")),
        ("Vulkan0", PLANNED_KV_TYPES),
        (RAM, ("f16", "q8_0", "q8_0,q4_0", "q4_0")),
    ],
)
def test_types_of_the_cache_that_a_device_computes_with_fast(device: str, kinds: tuple[str, ...]) -> None:
    assert list_kv_types(RunOptions(), (device,)) == kinds
    assert list_kv_types(RunOptions(kv_type="iq4_nl"), (device,)) == ("iq4_nl",)
