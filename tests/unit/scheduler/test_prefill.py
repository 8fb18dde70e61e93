"""Prompt rows while answers run: as many as the bound allows, a minimum, and even shares."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import common_prefix
from eaglelocal.scheduler.prefill import (
    FLUENT_S,
    MIN_PROMPT_ROWS,
    SLOWDOWN,
    PrefillPace,
    allot_prompt_rows,
    find_affordable_rows,
    split_evenly,
)
from eaglelocal.speculation.costs.ubatch_split import split_rows

STEPS = {1: 1.0, 2: 1.02, 4: 1.2, 8: 1.5, 16: 2.15, 17: 2.9, 32: 3.5, 64: 6.0}  # a curve with cliffs


def cliffs(num_rows: int) -> float:
    return next((cost for most, cost in STEPS.items() if num_rows <= most), num_rows / 10)


def together(rows: Mapping[int, int]) -> float:
    return cliffs(sum(rows.values()))


def in_passes(rows: Mapping[int, int]) -> float:
    return sum(map(cliffs, split_rows(rows)))


def test_the_last_size_before_a_cliff_is_taken() -> None:
    assert find_affordable_rows({1: 1500}, {0: 1}, max_rows=500, pace=PrefillPace(together, {})) == 15
    assert (
        find_affordable_rows({4: 1500}, dict.fromkeys(range(4), 1), max_rows=500, pace=PrefillPace(together, {})) == 12
    )
    assert find_affordable_rows({4: 1500}, {0: 8}, max_rows=500, pace=PrefillPace(together, {})) == 9
    assert find_affordable_rows({4: 1500}, {0: 17}, max_rows=500, pace=PrefillPace(together, {})) == 47


def test_rows_that_took_more_than_the_curve_says_are_fewer() -> None:
    assert (
        find_affordable_rows({1: 1500}, {0: 1}, max_rows=500, pace=PrefillPace(together, {}, 2.0)) == 7
    )  # 0.6 beyond the root


def test_passes_count() -> None:
    """Rows that go on behind the others' are a pass of their own."""
    rows = find_affordable_rows({3: 1500}, {0: 1, 1: 1, 2: 1}, max_rows=500, pace=PrefillPace(in_passes, {}))
    assert rows == 5  # 1.2 for four slots, 1.2 for four rows of one; the answers alone take 1.2
    assert in_passes({0: 1, 1: 1, 2: 1, 3: rows}) <= SLOWDOWN * in_passes({0: 1, 1: 1, 2: 1})


def test_a_fast_model_reads_in_large_pieces() -> None:
    """Reading all weights for a few rows would cost the answers more than it spares them."""

    def fast(rows: Mapping[int, int]) -> float:
        return sum(0.012 + 0.001 * num_rows for num_rows in split_rows(rows))

    rows = find_affordable_rows({1: 1500}, {0: 1}, max_rows=500, pace=PrefillPace(fast, {}))
    assert rows > 60 and fast({0: 1, 1: rows}) <= FLUENT_S
    assert find_affordable_rows({1: 1500}, {0: 1}, max_rows=500, pace=PrefillPace(fast, {}, 4.0)) < rows / 2


def test_where_nothing_is_cheap_a_has_kernel_go_in_any_case() -> None:
    assert (
        find_affordable_rows(
            {1: 1500}, {0: 1}, max_rows=500, pace=PrefillPace(lambda rows: 10.0 ** sum(rows.values()), {})
        )
        == MIN_PROMPT_ROWS
    )


@given(
    st.dictionaries(st.integers(0, 3), st.integers(1, 300), min_size=1),
    st.dictionaries(st.integers(4, 8), st.integers(1, 9), min_size=1),
    st.integers(1, 200),
    st.sampled_from([together, in_passes]),
)
def test_the_bound_holds_and_no_row_is_lost(left: dict[int, int], decoding: dict[int, int], room: int, seconds) -> None:  # type: ignore[no-untyped-def]
    counts = allot_prompt_rows(left, decoding, max_rows=room, pace=PrefillPace(seconds, {}))
    given_rows = sum(counts.values())
    assert min(MIN_PROMPT_ROWS, room, sum(left.values())) <= given_rows <= min(room, sum(left.values()))
    assert all(0 < count <= left[slot] for slot, count in counts.items())
    factor = 1 + (SLOWDOWN - 1) * max(len(left) / len(decoding), 1)
    assert given_rows <= MIN_PROMPT_ROWS or seconds(decoding | counts) <= factor * seconds(decoding) + 1e-9


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_shares_are_even(wanted: list[int], room: int) -> None:
    given_rows = split_evenly(wanted, room)
    assert sum(given_rows) == min(room, sum(wanted))
    for got, want in zip(given_rows, wanted, strict=True):
        assert got == want or got >= max(given_rows) - 1


def test_prompts_alone_have_the_whole_batch() -> None:
    assert allot_prompt_rows(
        {0: 100, 1: 3, 2: 100}, {}, max_rows=63, pace=PrefillPace(lambda rows: 10.0 ** sum(rows.values()), {})
    ) == {
        0: 30,
        1: 3,
        2: 30,
    }


@given(st.lists(st.integers(0, 1), max_size=1200), st.integers(0, 1200), st.integers(0, 3))
def test_common_prefixes_of_long_texts(text: list[int], cut: int, tail: int) -> None:
    text = text * 3
    other = (*text[:cut], *[7] * tail)
    assert common_prefix(text, other) == min(cut, len(text))
    assert common_prefix(tuple(other), text) == min(cut, len(text))
