"""Passes over the weights with a cache per slot, and padding rows that save a pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.speculation.costs.ubatch_split import add_rows, choose_padding_rows, price_levels, split_rows


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({}, []),
        ({0: 1}, [1]),
        ({0: 3, 1: 3, 2: 3}, [9]),
        ({2: 1, 1: 1, 0: 1}, [3]),
        ({0: 1, 2: 1}, [1, 1]),
        ({0: 5, 1: 1}, [2, 4]),
        ({0: 5, 1: 5, 2: 1, 3: 5}, [4, 8, 4]),
        ({0: 2, 1: 0, 2: 2}, [2, 2]),
    ],
)
def test_passes(rows: dict[int, int], expected: list[int]) -> None:
    assert split_rows(rows) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({0: 3, 1: 3, 2: 3}, [9]),
        ({0: 1, 1: 2, 2: 2, 3: 1}, [1, 2, 2, 1]),
        ({0: 5, 1: 5, 2: 1, 3: 5}, [5, 5, 1, 5]),
        ({0: 2, 1: 2, 2: 5}, [4, 5]),
        ({0: 5, 1: 40}, [10, 35]),  # what is left of a prompt is long enough
        ({0: 5, 1: 10}, [5, 10]),
    ],
)
def test_rows_after_which_states_are_kept_stay_together(rows: dict[int, int], expected: list[int]) -> None:
    """As llama.cpp's split_equal with n_keep_tail 9 makes them."""
    assert split_rows(rows, 9) == expected


@given(st.dictionaries(st.integers(0, 15), st.integers(0, 3), max_size=8))
def test_slots_that_are_level_are_one_pass_and_no_others(rows: dict[int, int]) -> None:
    whole = {slot: count for slot, count in rows.items() if count}
    is_one = bool(whole) and len({*whole.values()}) == 1 and sorted(whole) == list(range(min(whole), max(whole) + 1))
    assert (len(split_rows(rows)) == 1) is is_one
    assert sum(split_rows(rows)) == sum(rows.values())


def dear_passes(num_rows: int) -> float:
    return 10.0 + num_rows


def dear_rows(num_rows: int) -> float:
    return 0.1 + num_rows


@pytest.mark.parametrize(
    ("decoding", "idle", "expected"),
    [
        ({0: 1, 2: 1}, [1, 3], {1: 1}),
        ({0: 5, 1: 4}, [2], {1: 1}),
        ({0: 5, 3: 5}, [1, 2], {1: 5, 2: 5}),
        ({0: 2, 1: 2}, [2, 3], {}),
        ({3: 4}, [0, 1, 2], {}),
    ],
)
def test_rows_that_spare_a_pass(decoding: dict[int, int], idle: list[int], expected: dict[int, int]) -> None:
    found = choose_padding_rows(decoding, idle, dear_passes)
    before, after = split_rows(decoding), split_rows(add_rows(decoding, found))
    assert sum(map(dear_passes, after)) <= sum(map(dear_passes, before))
    if sum(map(dear_passes, after)) < sum(map(dear_passes, before)):
        assert found == expected
    else:
        assert found == {} or expected == {}


def test_where_rows_are_dear_nothing_is_filled() -> None:
    assert choose_padding_rows({0: 8, 1: 1, 2: 1}, [3], dear_rows) == {}


@given(
    st.dictionaries(st.integers(0, 7), st.integers(1, 17), min_size=1),
    st.sampled_from([dear_passes, dear_rows]),
)
def test_filling_never_makes_a_step_dearer(decoding: dict[int, int], seconds: object) -> None:
    assert callable(seconds)
    idle = [slot for slot in range(8) if slot not in decoding]
    found = choose_padding_rows(decoding, idle, seconds)
    assert sum(map(seconds, split_rows(add_rows(decoding, found)))) <= sum(map(seconds, split_rows(decoding)))
    assert all(count > 0 for count in found.values())
    assert sum(split_rows(decoding)) == sum(decoding.values())


@pytest.mark.parametrize(
    ("fixed", "slots", "seconds", "expected"),
    [
        ({}, [0, 1], dear_rows, [2.1, 4.1, 6.1, 8.1]),
        ({0: 4}, [1], dear_passes, [18.0, 18.0, 18.0, 18.0]),  # padded to four rows each
        ({0: 4}, [1], dear_rows, [5.2, 6.2, 7.2, 8.1]),
        ({0: 1}, [1], dear_passes, [12.0, 14.0, 16.0, 18.0]),
        ({1: 2}, [0, 2], dear_passes, [16.0, 16.0, 19.0, 22.0]),
    ],
)
def test_prices_of_levels_beside_other_slots(
    fixed: dict[int, int], slots: list[int], seconds: Callable[[int], float], expected: list[float]
) -> None:
    assert price_levels(fixed, slots, 3, seconds) == pytest.approx(expected)
