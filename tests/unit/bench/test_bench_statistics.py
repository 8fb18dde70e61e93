"""Statistics of the bench: means, bounds that hold as often as they say, quantiles of Student's t."""

from __future__ import annotations

import math

import numpy as np
import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.bench.results import Bound, bound_mean, geometric_mean, t_quantile

RATIOS = st.lists(st.floats(0.1, 10), min_size=2, max_size=30)
NUM_RUNS = 200


def test_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)


@given(RATIOS)
def test_the_ends_lie_in_order_around_the_mean(ratios: list[float]) -> None:
    bound = bound_mean([ratios])
    assert bound.mean == pytest.approx(geometric_mean(ratios))
    assert bound.low <= bound.least * 1.0001
    assert bound.least <= bound.mean * 1.0001
    assert bound.mean <= bound.high * 1.0001


@given(RATIOS, st.floats(0.2, 5))
def test_twice_as_fast_moves_all_ends_alike(ratios: list[float], factor: float) -> None:
    before, after = bound_mean([ratios]), bound_mean([[ratio * factor for ratio in ratios]])
    for name in ("mean", "low", "high", "least"):
        assert getattr(after, name) == pytest.approx(getattr(before, name) * factor)


@examples(12)  # each of hundreds of runs
@given(
    sizes=st.sampled_from([(3,), (5,), (20,), (3, 3, 3), (10, 10), (12, 4, 6), (20, 1), (9, 9, 1), (8, 1, 1)]),
    ratio=st.floats(0.5, 3.0),
    spread=st.floats(0.01, 0.4),
    seed=st.integers(0, 2**31),
)
def test_a_known_ratio_is_covered_as_often_as_the_bounds_say(
    sizes: tuple[int, ...], ratio: float, spread: float, seed: int
) -> None:
    """95 % of 200 runs are 190. Where 93 % are covered (samples of three), fewer than 170 come up once in 1e5."""
    rng = np.random.default_rng(seed)
    covered = above = 0
    for _ in range(NUM_RUNS):
        bound = bound_mean([np.exp(rng.normal(math.log(ratio), spread, size)).tolist() for size in sizes])
        covered += bound.low <= ratio <= bound.high
        above += bound.least <= ratio
    assert covered >= 170
    assert above >= 170


def test_more_prompts_narrow_the_interval() -> None:
    few, many = bound_mean([[1.0, 2.0] * 3]), bound_mean([[1.0, 2.0] * 60])
    assert many.high - many.low < few.high - few.low


def test_one_ratio_alone_gives_no_bounds() -> None:
    bound = bound_mean([[1.5]])
    assert bound == Bound(pytest.approx(1.5))  # type: ignore[arg-type]
    assert not bound.is_known
    assert not bound.shows_difference
    assert bound.is_wide


def test_categories_weigh_the_same_however_many_prompts_they_have() -> None:
    assert bound_mean([[4.0] * 9, [1.0] * 3]).mean == pytest.approx(2.0)


def test_categories_of_one_prompt_are_one_sample() -> None:
    assert bound_mean([[1.0], [2.0], [4.0]]) == bound_mean([[1.0, 2.0, 4.0]])


def test_what_does_not_vary_has_no_width() -> None:
    bound = bound_mean([[2.0, 2.0], [0.5, 0.5]])
    assert (bound.low, bound.high) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize(
    ("bound", "shows", "wide"),
    [
        (Bound(1.02, 0.95, 1.09, 0.96), False, True),
        (Bound(1.30, 1.10, 1.52, 1.12), True, True),
        (Bound(1.50, 1.40, 1.60, 1.41), True, False),
        (Bound(0.70, 0.65, 0.75, 0.66), True, False),
    ],
)
def test_when_an_interval_bears_out_its_mean(bound: Bound, shows: bool, wide: bool) -> None:
    assert (bound.shows_difference, bound.is_wide) == (shows, wide)


@pytest.mark.parametrize(
    ("freedom", "two_sided", "one_sided"),
    [
        (1, 12.706, 6.314),
        (2, 4.303, 2.920),
        (3, 3.182, 2.353),
        (5, 2.571, 2.015),
        (30, 2.042, 1.697),
        (1e6, 1.960, 1.645),
    ],
)
def test_quantiles_of_student(freedom: float, two_sided: float, one_sided: float) -> None:
    """From the usual table."""
    assert t_quantile(0.975, freedom) == pytest.approx(two_sided, rel=2e-3)
    assert t_quantile(0.95, freedom) == pytest.approx(one_sided, rel=2e-3)
