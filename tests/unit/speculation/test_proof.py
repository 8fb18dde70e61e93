"""Plain steps now and then, so that it stays known what they cost."""

from __future__ import annotations

import math

import pytest

from eaglelocal.speculation.proof import FIRST, MOST, NUM_WITNESSES, Proof


def until_due(proof: Proof) -> int:
    """Drafted steps."""
    count = 0
    while not proof.is_due:
        proof.saw_drafted()
        count += 1
    return count


def test_one_that_takes_what_was_expected_comes_more_and_more_rarely() -> None:
    proof, gaps = Proof(), []
    for _ in range(10):
        gaps.append(until_due(proof))
        assert proof.saw_plain(1.1, 1.0) == 0.0
    assert gaps == [min(FIRST << n, MOST) for n in range(10)]


def test_three_in_a_row_are_believed() -> None:
    proof = Proof()
    until_due(proof)
    said = []
    for seconds in (1.8, 9.0, 1.9):
        assert proof.is_due
        said.append(proof.saw_plain(seconds, 1.0))
    assert said == [0.0, 0.0, pytest.approx(math.log(1.9))]
    assert until_due(proof) == FIRST


def test_a_hiccup_is_none() -> None:
    proof = Proof()
    until_due(proof)
    assert [proof.saw_plain(seconds, 1.0) for seconds in (5.0, 1.0, 1.0)] == [0.0] * NUM_WITNESSES
    assert not proof.is_due


def test_where_steps_are_plain_anyway_nothing_is_corrected() -> None:
    """A machine that becomes slower takes everything with it."""
    proof = Proof()
    for _ in range(200):
        assert proof.saw_plain(3.0, 1.0) == 0.0 and not proof.is_due
    proof.saw_drafted()
    assert proof.saw_plain(3.0, 1.0) == 0.0 and not proof.is_due


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_what_nothing_is_known_of_is_no_surprise(seconds: float, expected: float) -> None:
    proof = Proof()
    until_due(proof)
    assert proof.saw_plain(seconds, expected) == 0.0
