"""Measured step costs, and the policy of a fixed length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import Draft, chain
from eaglelocal.speculation.costs import WINDOW, StepCosts
from eaglelocal.speculation.policy import Fixed


def test_nothing_is_known_before_it_is_measured() -> None:
    costs = StepCosts()
    costs.record(3, 0.5)
    assert costs.seconds(2) is None
    assert costs.seconds(3) == costs.seconds(7) == 0.5


def test_the_median_shrugs_off_an_outlier() -> None:
    costs = StepCosts()
    for seconds in (0.1, 0.1, 9.0, 0.1, 0.1):
        costs.record(1, seconds)
    assert costs.seconds(1) == 0.1


def test_old_measurements_are_forgotten() -> None:
    costs = StepCosts()
    for seconds in [1.0] * WINDOW + [2.0] * WINDOW:
        costs.record(4, seconds)
    assert costs.seconds(4) == 2.0


@given(st.dictionaries(st.integers(1, 20), st.floats(1e-6, 10.0), min_size=1), st.integers(1, 25))
def test_an_unseen_size_costs_what_the_nearest_smaller_one_costs(seen: dict[int, float], asked: int) -> None:
    costs = StepCosts()
    for rows, seconds in seen.items():
        costs.record(rows, seconds)
    smaller = [rows for rows in seen if rows <= asked]
    assert costs.seconds(asked) == (seen[max(smaller)] if smaller else None)


@pytest.mark.parametrize(
    ("length", "draft", "room", "extends"),
    [(0, Draft(), 9, False), (3, Draft(), 9, True), (3, chain(1, 2), 9, True), (3, chain(1, 2, 3), 9, False)],
)
def test_a_fixed_chain_grows_to_its_length(length: int, draft: Draft, room: int, extends: bool) -> None:
    assert Fixed(length).extend(draft, room) is extends
    assert Fixed(length).max_draft == length


@given(st.integers(0, 10), st.integers(0, 10))
def test_a_fixed_chain_never_outgrows_its_room(length: int, room: int) -> None:
    draft = Draft()
    while Fixed(length).extend(draft, room):
        draft = draft.plus(len(draft) - 1, 1, 1.0)
    assert len(draft) == min(length, room)
