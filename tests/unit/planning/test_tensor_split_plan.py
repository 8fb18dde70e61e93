"""What planning predicts for a model that several cards divide by tensors."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.core.run_options import RunOptions
from eaglelocal.planning.candidate_evaluation import join_cards
from eaglelocal.planning.machine_spec import make_known_spec
from eaglelocal.planning.options import make_catalog_options
from eaglelocal.planning.plan_search import SearchOutcome, list_kv_types, search_plan

CARDS = ("2x-rtx-5060-ti-16gb", "2x-rtx-3090")


@cache
def outcome(machine: str, target: str, split: str) -> SearchOutcome:
    catalog = load_catalog(user_folder=Path("/nonexistent"))
    options = list(make_catalog_options(catalog.target(target), catalog, quant="Q4_K_M"))
    return search_plan(options, make_known_spec(catalog.machine(machine)), RunOptions(split=split, ctx=8192))


def plain_tok_s(machine: str, target: str, split: str) -> float:
    chosen = outcome(machine, target, split).chosen
    assert chosen is not None
    return chosen.prediction.plain_tok_s


@pytest.mark.parametrize("machine", CARDS)
@pytest.mark.parametrize("target", ["qwen3-32b", "qwen3.6-27b"])
def test_two_cards_at_once_are_faster_but_less_than_twice_as_fast(machine: str, target: str) -> None:
    gain = plain_tok_s(machine, target, "tensor") / plain_tok_s(machine, target, "layer")
    assert 1.2 < gain < 2.0


def test_the_faster_the_cards_the_less_is_gained() -> None:
    slow, fast = (
        plain_tok_s(machine, "qwen3-32b", "tensor") / plain_tok_s(machine, "qwen3-32b", "layer") for machine in CARDS
    )
    assert slow > fast


def test_heads_go_on_drafting() -> None:
    chosen = outcome(CARDS[0], "qwen3-32b", "tensor").chosen
    assert chosen is not None and chosen.draft.kind == "eagle3"
    assert chosen.prediction.gain > 1.0
    assert chosen.setup.kv_type == "f16"


def test_a_refused_architecture_is_rejected_with_the_reason() -> None:
    refused = outcome(CARDS[1], "nemotron-3-nano-30b-a3b", "tensor")
    assert refused.chosen is None
    assert "nemotron_h_moe models by tensors" in refused.rejected[0].reason


def test_only_f16_is_planned() -> None:
    assert list_kv_types(RunOptions(split="tensor"), ("CUDA0", "CUDA1")) == ("f16",)


def test_the_slowest_card_sets_the_pace() -> None:
    machine = make_known_spec(load_catalog(user_folder=Path("/nonexistent")).machine(CARDS[0]))
    (joined,) = join_cards(machine).gpus
    assert joined.num_cards == 2 and joined.bytes_s == min(gpu.bytes_s for gpu in machine.gpus)
