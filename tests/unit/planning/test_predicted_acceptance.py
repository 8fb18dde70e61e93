"""Reported acceptance, and the values interpolated between reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.planning.quality import (
    HEAD_DEFAULT,
    PredictedAcceptance,
    predict_acceptance,
    probability,
    tokens_of_step,
)


@given(st.integers(1, 16), st.floats(0.0, 1.0))
def test_a_report_is_its_probability(num_drafted: int, accepted: float) -> None:
    assert probability(num_drafted, tokens_of_step(num_drafted, accepted)) == pytest.approx(accepted, abs=1e-3)


def test_reports_come_back() -> None:
    reports = [(5, 3.52), (3, 2.9), (7, 3.86)]
    acceptance = PredictedAcceptance.from_reports(reports, default=HEAD_DEFAULT)
    assert acceptance.is_reported
    for num_drafted, tokens in reports:
        assert acceptance.tokens(num_drafted) == pytest.approx(tokens, abs=1e-3)
    assert 2.9 < acceptance.tokens(4) < 3.52


def test_without_a_report_it_is_the_default() -> None:
    acceptance = PredictedAcceptance.from_reports((), default=0.5)
    assert not acceptance.is_reported
    assert acceptance.tokens(2) == pytest.approx(1.75)


@given(
    st.dictionaries(st.integers(1, 7), st.floats(0.0, 1.0), min_size=1, max_size=4),
    st.integers(1, 7),
)
def test_a_step_brings_one_token_at_least_and_never_more_than_drafted(points: dict[int, float], count: int) -> None:
    acceptance = PredictedAcceptance(tuple(sorted(points.items())), is_reported=True)
    slack = 1e-9  # of rounding
    assert 1.0 - slack <= acceptance.tokens(count) <= count + 1 + slack
    assert min(points.values()) - slack <= acceptance.probability(count) <= max(points.values()) + slack


def test_an_unreported_draft_is_as_its_class() -> None:
    """Heads as heads, at the longest drafts of each; too few of a class say nothing about it."""
    catalog = load_catalog(user_folder=Path("/nonexistent"))
    head, block = catalog.drafts["e3-gemma4-26b-redhat"], catalog.drafts["dspark-qwen3-8b"]
    reported = [
        catalog.drafts[id] for id in ("e3-qwen3-8b-angelslim", "e3-llama31-8b-yuhuili", "e3-gpt-oss-20b-redhat")
    ]
    others = [*reported, catalog.drafts["mtp-qwen3.8-27b"], catalog.drafts["dflash2-qwen3.8-27b"]]
    ends = sorted(probability(*max(one.acceptance_lengths)) for one in reported)
    acceptance, note = predict_acceptance(head, others, 0.5)
    assert acceptance.probability(3) == ends[1] and not acceptance.is_reported
    low, high = (ends[0] + ends[1]) / 2, (ends[1] + ends[2]) / 2
    assert note == (
        f"its acceptance is not reported: {ends[1]:.0%} a token assumed, the median of 3 such drafts, half of "
        f"which lie between {low:.0%} and {high:.0%}"
    )
    acceptance, note = predict_acceptance(block, others, 0.5)
    assert acceptance.probability(3) == 0.5 and note == "its acceptance is not reported: 50% a token assumed"
    acceptance, note = predict_acceptance(reported[0], others, 0.5)
    assert acceptance.is_reported and note == ""
