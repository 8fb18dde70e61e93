"""Measured step costs, and the policy of a fixed length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import Draft, chain
from eaglelocal.speculation.costs import RowCosts
from eaglelocal.speculation.policy import Fixed


def measured() -> RowCosts:
    costs = RowCosts()
    costs.calibrate({1: [1.0, 1.0, 9.0], 5: [2.0, 2.0, 2.2]})
    return costs


def test_before_it_is_measured_every_size_costs_the_same() -> None:
    assert not RowCosts().is_known
    assert RowCosts().ratio(7) == 1.0


@pytest.mark.parametrize(("rows", "ratio"), [(1, 1.0), (3, 1.5), (5, 2.0), (9, 3.0)])
def test_medians_at_measured_sizes_and_lines_between(rows: int, ratio: float) -> None:
    assert measured().ratio(rows) == pytest.approx(ratio)


@given(st.integers(1, 64), st.floats(1e-4, 10))
def test_a_step_without_drafts_costs_itself(rows: int, seconds: float) -> None:
    assert measured().plain_seconds(seconds, num_rows=rows, num_plain_rows=rows) == pytest.approx(seconds)


@given(st.floats(1e-4, 10), st.floats(1e-2, 100))
def test_a_slower_minute_cancels(seconds: float, factor: float) -> None:
    costs = measured()
    one = costs.plain_seconds(seconds, num_rows=5, num_plain_rows=1)
    assert costs.plain_seconds(seconds * factor, num_rows=5, num_plain_rows=1) == pytest.approx(one * factor)


@pytest.mark.parametrize(
    ("length", "draft", "room", "levels"),
    [(0, Draft(), 9, 0), (3, Draft(), 9, 3), (3, chain(1), 2, 1), (3, chain(1, 2, 3), 9, 0), (3, chain(1, 2), 1, 0)],
)
def test_a_fixed_chain_grows_to_its_length(length: int, draft: Draft, room: int, levels: int) -> None:
    assert Fixed(length).extend(draft, room) == levels
    assert Fixed(length).max_draft == length


@given(st.integers(0, 10), st.integers(0, 10))
def test_a_fixed_chain_never_outgrows_its_room(length: int, room: int) -> None:
    draft = Draft()
    while Fixed(length).extend(draft, room):
        draft = draft.plus(len(draft) - 1, 1, 1.0)
    assert len(draft) == min(length, room)
