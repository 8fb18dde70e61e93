"""Quality and goals as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.catalog.catalog import load
from eaglelocal.planner.goals import GOALS, Comfort, score
from eaglelocal.planner.quality import effective_b

COMFORT = Comfort(n_ctx=8192, kv_type="f16", whole_windows=True, on_host=False)


@given(st.sampled_from(sorted(GOALS)), st.floats(0.5, 200), st.floats(0.5, 200), st.floats(1.0, 2.0))
def test_better_and_faster_always_score_higher(goal: str, quality_b: float, tok_s: float, factor: float) -> None:
    here = score(GOALS[goal], quality_b=quality_b, tok_s=tok_s, comfort=COMFORT)
    assert score(GOALS[goal], quality_b=factor * quality_b, tok_s=tok_s, comfort=COMFORT) >= here
    assert score(GOALS[goal], quality_b=quality_b, tok_s=factor * tok_s, comfort=COMFORT) >= here - 1e-9


@pytest.mark.parametrize(("goal", "pick"), [("quality", "large"), ("balanced", "middle"), ("speed", "small")])
def test_goals_differ(goal: str, pick: str) -> None:
    ways = {"large": (70.0, 6.0), "middle": (30.0, 30.0), "small": (8.0, 200.0)}
    best = max(ways, key=lambda way: score(GOALS[goal], quality_b=ways[way][0], tok_s=ways[way][1], comfort=COMFORT))
    assert best == pick


def test_comfort() -> None:
    worth = COMFORT.worth
    for worse in (
        Comfort(n_ctx=4096, kv_type="f16", whole_windows=True, on_host=False),
        Comfort(n_ctx=8192, kv_type="q8_0", whole_windows=True, on_host=False),
        Comfort(n_ctx=8192, kv_type="f16", whole_windows=False, on_host=False),
        Comfort(n_ctx=8192, kv_type="f16", whole_windows=True, on_host=True),
        Comfort(n_ctx=8192, kv_type="f16", whole_windows=True, on_host=False, is_unseen=True),
    ):
        assert worse.worth < worth
    assert Comfort(n_ctx=16384, kv_type="q8_0", whole_windows=True, on_host=False).worth > worth


def test_quantizations_are_ranked_by_what_they_lose() -> None:
    quants = load(user_folder=Path("/nonexistent")).quants
    order = ["Q2_K", "Q3_K_M", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16"]
    found = [effective_b(parameters_b=8, active_b=8, quant=quant, quants=quants) for quant in order]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(8.0)
    assert effective_b(parameters_b=8, active_b=8, quant="MXFP4", quants=quants) == pytest.approx(8.0)
    unknown = effective_b(parameters_b=8, active_b=8, quant="IQ9_Z", quants=quants)
    assert found[0] < unknown < found[3]
    assert effective_b(parameters_b=30, active_b=3, quant="F16", quants=quants) == pytest.approx(9.49, abs=0.01)
