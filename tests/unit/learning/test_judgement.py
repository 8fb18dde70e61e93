"""Verdicts over two heads: what is noise, who decides, and what a hostile owner can do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.learning.judgement import MIN_TEXTS, JudgedText, judge


def texts(
    seed: int, gain: float, *, num: int = 40, owner: str = "ann", kind: int = 0, noise: float = 0.5
) -> list[JudgedText]:
    """Return texts whose acceptance lengths differ by `gain` and noise."""
    rng = np.random.default_rng(seed)
    old = rng.normal(3.0, 0.5, num)
    new = old + gain + rng.normal(0.0, noise, num)
    return [JudgedText(owner, kind, 100, float(n), float(o)) for n, o in zip(new, old, strict=True)]


def test_a_clear_gain_is_better_and_a_clear_loss_is_worse() -> None:
    assert judge(texts(1, 0.5)).is_better
    verdict = judge(texts(1, -0.5))
    assert verdict.is_worse and not verdict.is_better


def test_noise_is_neither_in_most_samples() -> None:
    verdicts = [judge(texts(seed, 0.0)) for seed in range(200)]
    assert sum(verdict.is_better for verdict in verdicts) < 12
    assert sum(verdict.is_worse for verdict in verdicts) < 12


@pytest.mark.parametrize("num", range(MIN_TEXTS))
def test_a_few_texts_decide_nothing(num: int) -> None:
    verdict = judge(texts(1, 5.0, num=num))
    assert not verdict.is_better and not verdict.is_worse and "decide nothing" in verdict.why


def test_an_owner_with_many_texts_weighs_as_much_as_one_with_few() -> None:
    hostile = texts(1, 1.0, num=1000, owner="eve")
    others = [each for number, owner in enumerate(("ann", "bob", "cid")) for each in texts(number, -0.6, owner=owner)]
    assert judge([*hostile, *others]).is_worse


def test_a_gain_at_the_cost_of_one_owner_is_refused() -> None:
    most = [each for number in range(6) for each in texts(number, 1.0, owner=f"owner {number}")]
    verdict = judge([*most, *texts(9, -1.0, owner="ann")])
    assert not verdict.is_better and "worse for one of 7 owners" in verdict.why


def test_a_gain_at_the_cost_of_one_kind_is_refused() -> None:
    verdict = judge([*texts(1, 1.0, num=90), *texts(2, -1.0, num=12, kind=1)], lambda kind: ("prose", "code")[kind])
    assert not verdict.is_better and "worse on code" in verdict.why


def test_owners_with_one_text_each_are_judged_together() -> None:
    singles = [each for number in range(30) for each in texts(number, 0.8, num=1, owner=str(number))]
    assert judge(singles).is_better


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(1, 6), st.floats(1, 6)), max_size=40))
def test_swapping_both_heads_turns_the_difference_around(measured: list[tuple[str, float, float]]) -> None:
    there = judge([JudgedText(owner, 0, 10, new, old) for owner, new, old in measured])
    back = judge([JudgedText(owner, 0, 10, old, new) for owner, new, old in measured])
    assert there.difference.mean == pytest.approx(-back.difference.mean)
    assert not (there.is_better and back.is_better) and not (there.is_worse and there.is_better)
    assert not there.is_better or back.is_worse
