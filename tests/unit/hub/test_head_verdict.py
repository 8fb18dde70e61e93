"""What a trial decides from its figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.hub.heads.version_records import (
    TrialAcceptance,
    has_better_first_token,
    has_longer_acceptance,
    reads_target,
    sum_acceptance,
)

COMMON = 0.05


def figures(drafts: int, *shares: float, common: float = COMMON) -> TrialAcceptance:
    return TrialAcceptance(drafts, tuple(round(drafts * share) for share in shares), 3 * drafts, common)


def test_answers_are_summed_up() -> None:
    summed = sum_acceptance([(4, (3, 2)), (0, ()), (2, (2, 1, 1))], [7, 7, 8, 9])
    assert summed == TrialAcceptance(6, (5, 3, 1), 4, 0.5)
    assert summed.first == 5 / 6
    assert summed.length == 1 + 9 / 6


def test_without_drafts_there_is_no_verdict() -> None:
    nothing = sum_acceptance([], [])
    assert (nothing.first, nothing.length, nothing.is_clear) == (0.0, 1.0, False)


@given(st.integers(1, 400), st.lists(st.integers(0, 5), min_size=1, max_size=400))
def test_the_error_is_that_of_the_mean(seed: int, accepted: list[int]) -> None:
    """Shares per position hold the whole distribution of what was accepted."""
    positions = tuple(sum(a > i for a in accepted) for i in range(5))
    acceptance = TrialAcceptance(len(accepted), positions, 1, 0.0)
    assert acceptance.length == pytest.approx(1 + np.mean(accepted))
    assert acceptance.length_error == pytest.approx(np.std(accepted) / len(accepted) ** 0.5, abs=1e-9)


def test_the_wrong_recurrence_is_seen_from_the_second_token_on() -> None:
    """Shares as they were measured: a head for post-norm, and the same run with the pre-norm state."""
    right, wrong = figures(300, 0.70, 0.52, 0.37, 0.26, 0.18), figures(480, 0.70, 0.25, 0.08, 0.02, 0.01)
    assert has_longer_acceptance(right, wrong)
    assert not has_longer_acceptance(wrong, right)
    assert not has_better_first_token(right, wrong)


def test_what_is_alike_stays_as_stated() -> None:
    one, other = figures(300, 0.70, 0.50), figures(300, 0.71, 0.51)
    assert not has_longer_acceptance(one, other)
    assert not has_longer_acceptance(other, one)


@pytest.mark.parametrize(
    ("first", "shuffled", "reads"),
    [(0.18, 0.04, True), (0.18, 0.16, False), (0.006, 0.0, False), (0.05, 0.0, True)],
)
def test_a_head_of_this_target_drafts_worse_with_shuffled_states(first: float, shuffled: float, reads: bool) -> None:
    """The third is a head of random weights, as it was measured."""
    assert reads_target(figures(860, first), figures(860, shuffled)) is reads


@pytest.mark.parametrize(
    ("first", "common", "is_clear"),
    [
        (0.00, COMMON, False),
        (0.06, COMMON, False),  # chance
        (0.12, COMMON, True),
        (0.34, COMMON, True),  # trained for minutes
        (0.20, 0.20, False),  # it says the commonest token, always
        (0.45, 0.20, True),
    ],
)
def test_a_clear_head_knows_more_than_the_commonest_token(first: float, common: float, is_clear: bool) -> None:
    assert figures(400, first, first / 2, common=common).is_clear is is_clear
