"""Statistics and prompts of the bench."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelocal.bench.pairs import median
from eaglelocal.bench.prompts import built_in, from_file, parse_line
from eaglelocal.bench.statistics import bounded_mean, geometric_mean
from eaglelocal.errors import UsageError

RATIOS = st.lists(st.floats(0.1, 10), min_size=1, max_size=30)


def test_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)


@settings(max_examples=15)  # each draws thousands of resamples
@given(RATIOS)
def test_the_interval_holds_the_mean(ratios: list[float]) -> None:
    bound = bounded_mean(ratios)
    assert bound.low <= bound.mean * 1.0001 and bound.high >= bound.mean * 0.9999
    assert min(ratios) * 0.999 <= bound.low <= bound.high <= max(ratios) * 1.001


def test_more_pairs_narrow_the_interval() -> None:
    few, many = bounded_mean([1.0, 2.0] * 3), bounded_mean([1.0, 2.0] * 60)
    assert many.high - many.low < few.high - few.low


@pytest.mark.parametrize(("values", "middle"), [([3.0], 3.0), ([1.0, 4.0], 2.5), ([9.0, 1.0, 5.0], 5.0)])
def test_median(values: list[float], middle: float) -> None:
    assert median(values) == middle


def test_lines_of_a_prompts_file() -> None:
    assert parse_line("Hello there") == ("prompts", "Hello there")
    assert parse_line('{"prompt": "2+2", "category": "math"}') == ("math", "2+2")
    with pytest.raises(UsageError):
        parse_line('{"text": "x"}')


def test_a_missing_or_empty_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        from_file(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="no prompt"):
        from_file(tmp_path / "empty")


def test_an_unknown_category_is_said() -> None:
    with pytest.raises(UsageError, match="poetry"):
        built_in(["poetry"], 1)


def test_built_in_prompts_end_with_a_question() -> None:
    for conversations in built_in([], 3).values():
        assert all(conversation[-1].role == "user" for conversation in conversations)
