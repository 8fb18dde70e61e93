"""The order of a measurement, and the flags that name modes and levels."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.measure import MIXED, order_prompts, parse_levels, parse_modes, rotate
from eaglelocal.core.request import AUTO_SPEC, PID, fixed_spec
from eaglelocal.errors import UsageError


def prompts(**numbers: int) -> dict[str, list[BenchPrompt]]:
    return {category: [BenchPrompt(category, tokens=(i,)) for i in range(n)] for category, n in numbers.items()}


@given(st.integers(1, 7))
def test_every_side_stands_equally_often_at_every_place(num_sides: int) -> None:
    """So a drift that is linear in time adds the same to each."""
    places = Counter(
        (side, place) for turn in range(2 * num_sides) for place, side in enumerate(rotate(range(num_sides), turn))
    )
    assert len(places) == num_sides**2
    assert set(places.values()) == {2}


def test_two_sides_alternate_so_that_a_bent_drift_cancels_too() -> None:
    assert ["".join(rotate("AB", turn)) for turn in range(4)] == ["AB", "BA", "BA", "AB"]


def test_categories_take_turns_and_repeats_come_later() -> None:
    planned = order_prompts(prompts(x=2, y=1), [1], repeats=2, warm_up=())
    assert [(t.category, t.unit, t.repeat) for t in planned] == [
        ("x", 0, 0), ("y", 0, 0), ("x", 1, 0), ("x", 0, 1), ("y", 0, 1), ("x", 1, 1),
    ]  # fmt: skip
    assert [t.turn for t in planned if t.category == "x"] == [0, 1, 2, 3]
    assert [t.turn for t in planned if t.category == "y"] == [1, 2]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 16), st.integers(1, 3))
def test_waves_hold_every_prompt_and_are_full(x: int, y: int, level: int, repeats: int) -> None:
    planned = order_prompts(prompts(x=x, y=y), [level], repeats=repeats, warm_up=())
    assert all(len(t.prompts) == t.concurrency == level and t.category == MIXED for t in planned)
    assert len(planned) == repeats * -(-(x + y) // level)
    once = [prompt for t in planned if t.repeat == 0 for prompt in t.prompts]
    assert set(once) == {p for found in prompts(x=x, y=y).values() for p in found}
    assert len({t.turn for t in planned}) == len(planned)


def test_each_level_warms_up_before_it_counts() -> None:
    warm = [BenchPrompt("w", tokens=(1,)), BenchPrompt("w", tokens=(2,))]
    planned = order_prompts(prompts(x=3), [3, 1], repeats=1, warm_up=warm)
    assert [(t.concurrency, t.is_counted, len(t.prompts)) for t in planned] == [
        (1, False, 1), (1, False, 1), (1, True, 1), (1, True, 1), (1, True, 1), (3, False, 3), (3, True, 3),
    ]  # fmt: skip
    assert planned[-1].category == "x"  # of one kind, and so not mixed


def test_modes() -> None:
    assert parse_modes("auto,pid, 2,8,2") == (AUTO_SPEC, PID, fixed_spec(2), fixed_spec(8))


@pytest.mark.parametrize("text", ["", "auto,", "2,x", "17", "-1", "off", "2,0"])
def test_what_is_no_list_of_modes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_modes(text)


def test_levels() -> None:
    assert parse_levels("1,2,8,2") == (1, 2, 8)


@pytest.mark.parametrize("text", ["", "0", "1,x", "65", "1;2"])
def test_what_is_no_list_of_levels(text: str) -> None:
    with pytest.raises(UsageError, match="--concurrency"):
        parse_levels(text)
