"""Quality and goals as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from doubles.catalog_plans import option
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.catalog.target_entries import QuantLoss
from eaglelocal.memory.placement import WHOLE, Offload
from eaglelocal.planning.candidate import GOALS, Term, compute_terms
from eaglelocal.planning.candidate_evaluation import CacheSetup
from eaglelocal.planning.options import ModelOption
from eaglelocal.planning.quality import KV_LOSS, Age, effective_b, estimate_divergence, estimate_kv_loss

SETUP = CacheSetup(n_ctx=8192, kv_type="f16")


class OfWorth(Age):
    """An age of any worth."""

    @property
    def worth(self) -> float:
        return float(self.released)


def rated(quality_b: float = 8.0, age_worth: float = 1.0) -> ModelOption:
    return replace(option("qwen3-8b", "Q4_K_M"), quality_b=quality_b, age=OfWorth(str(age_worth)), is_unseen=False)


def scored(goal: str, quality_b: float, tok_s: float, age_worth: float = 1.0) -> float:
    return sum(compute_terms(GOALS[goal], rated(quality_b, age_worth), SETUP, WHOLE, tok_s).values())


@given(st.sampled_from(sorted(GOALS)), st.floats(0.5, 200), st.floats(0.5, 200), st.floats(1.0, 2.0))
def test_better_and_faster_always_score_higher(goal: str, quality_b: float, tok_s: float, factor: float) -> None:
    here = scored(goal, quality_b, tok_s)
    assert scored(goal, factor * quality_b, tok_s) >= here
    assert scored(goal, quality_b, tok_s, age_worth=factor) >= here
    assert scored(goal, quality_b, factor * tok_s) >= here - 1e-9


@given(st.floats(0.5, 200), st.floats(1.0, 4.0))
def test_more_speed_is_worth_most_where_speed_is_the_goal(tok_s: float, factor: float) -> None:
    """Also where none reaches its goal's pace: `speed` never takes a slower plan than `balanced`."""
    gains = [
        GOALS[name].rate_speed(factor * tok_s) - GOALS[name].rate_speed(tok_s)
        for name in ("quality", "balanced", "speed")
    ]
    assert all(more >= less - 1e-9 for less, more in pairwise(gains))


def test_balanced_takes_half_the_model_at_twice_the_speed_of_one_that_is_slow_to_think() -> None:
    """And not where both are fast enough, nor where the faster one is a third of the model."""
    assert scored("balanced", 14.0, 30.0) > scored("balanced", 27.0, 15.0)
    assert scored("balanced", 14.0, 100.0) < scored("balanced", 27.0, 50.0)
    assert scored("balanced", 9.0, 30.0) < scored("balanced", 27.0, 15.0)


@pytest.mark.parametrize(("goal", "pick"), [("quality", "large"), ("balanced", "middle"), ("speed", "small")])
def test_goals_differ(goal: str, pick: str) -> None:
    ways = {"large": (70.0, 6.0), "middle": (30.0, 30.0), "small": (8.0, 200.0)}
    best = max(ways, key=lambda candidate: scored(goal, *ways[candidate]))
    assert best == pick


def comfort(setup: CacheSetup = SETUP, offload: Offload = WHOLE, chosen: ModelOption | None = None) -> float:
    """Return the score without quality, age and speed."""
    terms = compute_terms(GOALS["balanced"], chosen or rated(), setup, offload, 40.0)
    return sum(worth for term, worth in terms.items() if term not in (Term.QUALITY, Term.AGE, Term.SPEED))


def test_comfort() -> None:
    worse = (
        comfort(replace(SETUP, n_ctx=4096)),
        comfort(replace(SETUP, kv_type="q8_0")),
        comfort(replace(SETUP, swa_full=False)),
        comfort(offload=Offload(9)),
        comfort(chosen=replace(rated(), is_unseen=True)),
        comfort(chosen=replace(rated(), by_name="made for code")),
    )
    assert max(worse) < comfort()
    assert comfort(replace(SETUP, n_ctx=16384, kv_type="q8_0")) > comfort()


USUAL = 16.0  # bits per weight that no name promises: more than usual change nothing


@cache
def quants() -> Mapping[str, QuantLoss]:
    return load_catalog(user_folder=Path("/nonexistent")).quants


def worth(quant: str, *, bits: float, parameters_b: float = 8, active_b: float = 8) -> float:
    return effective_b(parameters_b=parameters_b, active_b=active_b, quant=quant, bits_per_weight=bits, quants=quants())


def test_quantizations_are_ranked_by_what_they_lose() -> None:
    order = ["IQ1_S", "IQ2_XXS", "Q2_K", "Q3_K_M", "Q4_0", "Q4_K_M", "Q5_0", "Q5_K_M", "Q6_K", "Q8_0", "F16"]
    found = [worth(quant, bits=USUAL) for quant in order]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(8.0)
    assert worth("MXFP4", bits=4.25) == pytest.approx(8.0)
    assert worth("F16", bits=16.0, parameters_b=30, active_b=3) == pytest.approx(11.94, abs=0.01)


def test_a_type_of_tensors_means_the_middle_mixture() -> None:
    for quant in ("Q3_K", "Q4_K", "Q5_K"):
        assert worth(quant, bits=USUAL) == worth(f"{quant}_M", bits=USUAL)


def test_a_large_mixture_is_worth_what_the_measured_one_next_to_it_is() -> None:
    """Its more bits lie in the embeddings, which are many where the vocabulary is large and the model small."""
    for quant, measured in (("Q2_K_XL", "Q2_K"), ("UD-Q3_K_XL", "Q3_K_L"), ("UD-Q4_K_XL", "Q4_K_M")):
        assert worth(quant, bits=USUAL) == worth(measured, bits=USUAL)


def test_a_file_with_fewer_bits_than_its_name_has_is_worth_its_bits() -> None:
    """UD-IQ3_S of Qwen3.5 122B has 3.05, llama.cpp's own 3.66."""
    assert worth("UD-IQ3_S", bits=3.05) == worth("IQ9_Z", bits=3.05) < worth("IQ3_S", bits=3.7)
    assert worth("IQ3_S", bits=3.7) == worth("IQ3_S", bits=USUAL)


def test_an_unmeasured_quantization_is_worth_its_bits() -> None:
    for quant in ("IQ9_Z", ""):
        assert worth("Q4_K_M", bits=USUAL) < worth(quant, bits=5.1) < worth("Q5_K_M", bits=USUAL)
        assert worth("Q2_K", bits=USUAL) < worth(quant, bits=3.4) < worth("Q3_K_M", bits=USUAL)
    assert worth("UD-Q4_K_M", bits=9.0) == worth("Q4_K_M", bits=9.0)


@given(st.floats(0.1, 40.0), st.floats(0.1, 40.0))
def test_more_bits_never_lose_more(one: float, other: float) -> None:
    fewer, more = sorted((one, other))
    assert estimate_divergence(fewer, quants()) >= estimate_divergence(more, quants()) >= 0.0


def test_a_cache_loses_more_with_fewer_bits_and_most_by_its_keys() -> None:
    types = ["f16", "f16,q8_0", "q8_0,f16", "q8_0", "q8_0,q5_1", "q5_1,q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
    losses = [estimate_kv_loss(kv_type) for kv_type in types]
    assert losses == sorted(losses) and losses[0] == 0.0
    assert {name: estimate_kv_loss(name) for name in KV_LOSS} == pytest.approx(KV_LOSS)
