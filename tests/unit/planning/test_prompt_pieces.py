"""Smaller pieces of prompts, where they put more of a model on the GPU than they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.catalog_plans import check_fits, chosen_of, machine_named, machine_of, option, some_options

from eaglelocal.core.amounts import GIB
from eaglelocal.core.plan import PIECES
from eaglelocal.core.run_options import RunOptions
from eaglelocal.gguf.projector import Projector
from eaglelocal.memory.placement import WHOLE, Offload
from eaglelocal.planning.candidate import prompt_factor
from eaglelocal.planning.candidate_evaluation import CacheSetup, CandidateEvaluator
from eaglelocal.planning.no_fit_hints import change_piece, explain_choice
from eaglelocal.planning.plan_search import SearchOutcome, list_small_pieces, search_plan

SMALLEST = PIECES[-1]
LONG = RunOptions(ctx=131072, draft="none")


def plan_long(quant: str, options: RunOptions = LONG) -> SearchOutcome:
    alone = option("qwen3.8-27b", quant)
    alone = replace(alone, drafts=(alone.drafts[-1],))
    return search_plan((alone,), machine_named("rtx-3060"), options)


def test_a_model_that_fits_only_with_small_pieces_is_whole_on_the_card() -> None:
    outcome = plan_long("IQ2_S")
    chosen = chosen_of(outcome)
    check_fits(outcome)
    assert (chosen.setup.n_batch, chosen.offload) == (SMALLEST, WHOLE)
    usual = change_piece(outcome, chosen, PIECES[0])
    assert not usual.offload.is_whole and usual.prediction.plain_tok_s < 0.7 * chosen.prediction.plain_tok_s
    (reason,) = (reason for reason in explain_choice(outcome, chosen) if reason.startswith("prompts are read 128"))
    assert f"all layers on the GPU and {chosen.prediction.spec_tok_s:.1f} tokens/s" in reason
    assert f"512 only {usual.gpu_layers} of 65 layers on the GPU and {usual.prediction.spec_tok_s:.1f}" in reason


def test_a_layer_more_is_not_worth_prompts_that_take_twice_as_long() -> None:
    outcome = plan_long("Q4_K_S")
    chosen = chosen_of(outcome)
    assert chosen.setup.n_batch == PIECES[0] and chosen.gpu_layers is not None
    other = change_piece(outcome, chosen, SMALLEST)
    assert other.gpu_layers is not None and other.gpu_layers > chosen.gpu_layers
    reason = f"would allow {other.gpu_layers} of 65 layers on the GPU and {other.prediction.spec_tok_s:.1f} tokens/s"
    assert any(each.endswith(reason) for each in explain_choice(outcome, chosen))


def test_layers_that_were_asked_for_may_need_small_pieces() -> None:
    outcome = plan_long("IQ2_S", replace(LONG, gpu_layers=65))
    assert (chosen_of(outcome).setup.n_batch, chosen_of(outcome).offload) == (SMALLEST, WHOLE)
    check_fits(outcome)


def test_a_card_with_room_reads_prompts_in_the_usual_pieces() -> None:
    outcome = search_plan((option("qwen3-8b", "Q4_K_M"),), machine_named("rtx-3090"), RunOptions())
    assert chosen_of(outcome).setup.n_batch == PIECES[0]
    assert not any("tokens at a time" in reason for reason in explain_choice(outcome, chosen_of(outcome)))


def test_smaller_pieces_take_less_memory() -> None:
    evaluator = CandidateEvaluator(machine_of(100, (14.0,)), RunOptions())
    for each in some_options():
        for offload in (WHOLE, Offload(1)):
            totals = [
                evaluator.estimate_memory(
                    each, each.drafts[-1], CacheSetup(n_ctx=32768, kv_type="q8_0", n_batch=piece), offload
                ).sum.total_bytes
                for piece in PIECES
            ]
            assert totals == sorted(totals, reverse=True) and totals[0] - totals[-1] > GIB // 100


@pytest.mark.parametrize(("parallel", "pieces"), [(1, (256, 128)), (4, (256, 128)), (8, (256,)), (16, ())])
def test_each_slot_has_room_for_its_draft(parallel: int, pieces: tuple[int, ...]) -> None:
    assert list_small_pieces(option("qwen3-8b", "Q4_K_M"), RunOptions(parallel=parallel)) == pieces


@pytest.mark.parametrize(("kind", "is_unsplit"), [("gemma4v", True), ("qwen3vl_merger", False)])
def test_an_image_that_must_be_read_at_once_keeps_the_usual_piece(kind: str, is_unsplit: bool) -> None:
    projector = Projector(kind, None, 4096, 4, 16, 1152, 4304, 16, has_windows=False, weights_bytes=GIB)
    assert (not list_small_pieces(replace(option("qwen3-8b", "Q4_K_M"), projector=projector), LONG)) is is_unsplit


def test_smaller_pieces_cost_more_where_weights_cross_the_bus() -> None:
    setups = [CacheSetup(n_ctx=8192, kv_type="f16", n_batch=piece) for piece in PIECES]
    whole, split = ([prompt_factor(setup, offload) for setup in setups] for offload in (WHOLE, Offload(10)))
    assert whole[0] == split[0] == 1.0 and whole == sorted(whole) and split == sorted(split)
    assert all(here < there for here, there in zip(whole[1:], split[1:], strict=True))
