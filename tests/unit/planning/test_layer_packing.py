"""Layers are divided among unequal GPUs so that two cards are never slower than the larger of them alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.catalog_plans import check_fits, chosen_of, machine_of, some_options
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.cli.plan_report import commands
from eaglelocal.core.run_options import RunOptions
from eaglelocal.planning.candidate_evaluation import CandidateEvaluator, pack_blocks
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.planning.no_fit_hints import explain_choice
from eaglelocal.planning.plan_search import SearchOutcome, search_plan
from eaglelocal.preparation.autoplan import plan_target
from eaglelocal.preparation.decision import Decision

pytestmark = pytest.mark.full

sizes = st.lists(st.integers(0, 20), min_size=1, max_size=30)
rooms = st.lists(st.integers(-5, 200), min_size=2, max_size=4)


@given(sizes, rooms, st.booleans())
def test_every_block_has_a_device_and_only_the_last_to_choose_may_lack_room(
    blocks: list[int], free: list[int], from_last: bool
) -> None:
    counts = pack_blocks(blocks, free, from_last=from_last)
    assert sum(counts) == len(blocks) and len(counts) == len(free)
    start = 0
    for index, count in enumerate(map(int, counts)):
        is_last = index == (0 if from_last else len(free) - 1)
        assert is_last or not count or sum(blocks[start : start + count]) <= free[index]
        start += count


def plan_here(target: str, machine: str, options: RunOptions | None = None) -> SearchOutcome:
    return plan_target(replace(options or RunOptions(), target=target), machine_name=machine, ram_gib=128)


@pytest.mark.parametrize("target", ["qwen3.5-122b-a10b", "gpt-oss-120b", "qwen3-30b-a3b", "qwen3.8-27b"])
@pytest.mark.parametrize(("pair", "larger"), [("rtx-3090+rtx-3060", "rtx-3090"), ("rtx-5090+rtx-3060", "rtx-5090")])
def test_a_smaller_card_beside_a_larger_one_makes_no_plan_worse(target: str, pair: str, larger: str) -> None:
    both, alone = chosen_of(plan_here(target, pair)), chosen_of(plan_here(target, larger))
    assert both.score >= alone.score - 1e-6
    same = chosen_of(plan_here(alone.option.reference, pair))
    assert same.prediction.spec_tok_s >= 0.98 * alone.prediction.spec_tok_s or same.score >= alone.score


def test_a_card_that_would_slow_answers_down_holds_nothing_and_the_plan_says_so() -> None:
    outcome = plan_here("qwen3-8b:Q8_0", "rtx-3090+rtx-3060")
    chosen = chosen_of(outcome)
    assert chosen.offload.shares == (37.0, 0.0)
    assert any("all layers are on CUDA0" in reason for reason in explain_choice(outcome, chosen))
    assert " --split 37,0" in (commands(outcome.options, chosen)["run"] or "")


def test_the_division_reaches_the_engine() -> None:
    outcome = plan_here("gpt-oss-120b", "rtx-3090+rtx-3060")
    chosen = chosen_of(outcome)
    assert all(chosen.offload.shares) and chosen.n_cpu_moe
    assert any("faster than by free memory" in reason for reason in explain_choice(outcome, chosen))
    assert Decision(outcome.options, candidate=chosen).shares == chosen.offload.shares
    assert Decision(replace(outcome.options, split="3,1"), candidate=chosen).shares == (3.0, 1.0)


def test_a_division_that_was_asked_for_stays() -> None:
    chosen = chosen_of(plan_here("qwen3-8b:Q8_0", "rtx-3090+rtx-3060", RunOptions(split="1,1")))
    assert not chosen.offload.shares


def test_equal_cards_divide_a_whole_model_by_free_memory() -> None:
    assert not chosen_of(plan_here("qwen3-8b:Q8_0", "2x-rtx-3090")).offload.shares


def unequal(free_gib: tuple[float, ...], *, is_last_faster: bool) -> MachineSpec:
    machine = machine_of(64.0, free_gib)
    fast = len(free_gib) - 1 if is_last_faster else 0
    cards = (replace(gpu, bytes_s=1000e9) if index == fast else gpu for index, gpu in enumerate(machine.gpus))
    return replace(machine, gpus=tuple(cards))


@examples(15)
@given(st.lists(st.floats(6.0, 20.0), min_size=2, max_size=3).map(tuple), st.booleans())
def test_a_division_fits_and_is_no_slower_than_by_free_memory(
    free_gib: tuple[float, ...], is_last_faster: bool
) -> None:
    models = [each for each in some_options() if each.reference == "qwen3-8b:Q8_0"]
    outcome = search_plan(models, unequal(free_gib, is_last_faster=is_last_faster), RunOptions())
    chosen = chosen_of(outcome)
    check_fits(outcome)
    evaluator, by_memory = CandidateEvaluator(outcome.machine, RunOptions()), replace(chosen.offload, shares=())
    if evaluator.estimate_memory(chosen.option, chosen.draft, chosen.setup, by_memory).fits:
        speed = evaluator.predict(chosen.option, chosen.draft, by_memory).plain_tok_s
        assert chosen.prediction.plain_tok_s >= 0.98 * speed
