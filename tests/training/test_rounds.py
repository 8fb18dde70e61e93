"""Rounds of training: how many tokens each has, what is held out, and what the curve promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.rounds import (
    FEW_HELD_OUT,
    FIRST_ROUND,
    FITTED,
    LONGEST_ROUND,
    MAX_HELD_OUT,
    MIN_CONVERSATIONS,
    LearningCurve,
    Point,
    list_goals,
    split_rounds,
)


def conversations(num: int, num_answer_tokens: int = 20) -> tuple[TrainingConversation, ...]:
    return tuple(TrainingConversation(str(number), tuple(range(10 + num_answer_tokens)), 10) for number in range(num))


@given(st.integers(1, 5_000_000))
def test_rounds_double_and_end_with_all(num_tokens: int) -> None:
    goals = list_goals(num_tokens)
    assert goals[0] == min(FIRST_ROUND, num_tokens) and goals[-1] == num_tokens
    sizes = [after - before for before, after in zip([0, *goals], goals, strict=False)]
    assert min(sizes) > 0 and max(sizes) <= LONGEST_ROUND


@pytest.mark.parametrize(("num", "num_held"), [(3, 1), (40, 8), (160, FEW_HELD_OUT), (800, 40), (9999, MAX_HELD_OUT)])
def test_of_few_more_are_held_out(num: int, num_held: int) -> None:
    rounds = split_rounds(conversations(num), [1_000_000])
    assert len(rounds.held_out) == num_held and rounds.ends == (num - num_held,)
    assert sorted(one.key for one in (*rounds.train_set, *rounds.held_out)) == sorted(map(str, range(num)))


@given(
    st.lists(st.integers(4, 60), min_size=4, max_size=120),
    st.lists(st.integers(1, 2000), min_size=1, max_size=5, unique=True),
)
def test_further_rounds_change_nothing_before(lengths: list[int], goals: list[int]) -> None:
    every = [TrainingConversation(str(n), tuple(range(5 + length)), 5) for n, length in enumerate(lengths)]
    goals.sort()
    whole = split_rounds(every, goals)
    assert list(whole.ends) == sorted(whole.ends) and whole.ends[-1] == len(whole.train_set)
    assert len(whole.train_set) + len(whole.held_out) <= len(every)
    total = 0
    for number, one in enumerate(every, 1):
        total += one.num_learned
        if total >= goals[0] and number >= MIN_CONVERSATIONS:
            first = split_rounds(every[:number], goals[:1])
            assert first.held_out == whole.held_out
            assert first.train_set == whole.train_set[: whole.ends[0]]
            break


def grown(path: Path, lengths: list[float], first: int = 50_000) -> LearningCurve:
    curve = LearningCurve(path)
    for number, length in enumerate(lengths):
        curve.add(first * 2**number, 100.0 * (2 ** (number - 1) if number else 1), length)
    return curve


def test_a_curve_is_read_back_without_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.curve"
    points = grown(path, [1.2, 1.3]).points
    assert [point.seconds for point in points] == [100.0, 200.0]
    with path.open("a") as file:
        file.write('{"tokens": 1}\n[]\n{"tokens": 1, "seconds": "nan", "length": 2}\n{"tokens": 0, "seconds": 1, "len')
    assert LearningCurve(path).points == points and LearningCurve(path).seconds == 200.0


def test_the_time_of_a_round_that_was_stopped_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.curve"
    grown(path, [1.2]).add_time(50.0)
    again = LearningCurve(path)
    assert again.seconds == 150.0 and len(again.points) == 1
    again.add(100_000, 30.0, 1.3)
    assert LearningCurve(path).points[-1] == Point(100_000, 180.0, 1.3)
    assert LearningCurve(tmp_path / "none").expect(60.0) is None


def test_more_time_adds_as_doublings_did(tmp_path: Path) -> None:
    assert LearningCurve(tmp_path / "none").expect(60.0) is None
    curve = grown(tmp_path / "one.curve", [1.2])
    assert curve.gain_per_doubling is None and curve.expect(100.0) is None and not curve.is_flat
    curve = grown(tmp_path / "b.curve", [1.0, 1.1, 1.2, 1.3, 1.4])
    assert curve.gain_per_doubling == pytest.approx(0.1)
    assert curve.expect(curve.seconds) == pytest.approx(0.1)
    assert curve.expect(3 * curve.seconds) == pytest.approx(0.2)


def test_only_a_curve_of_several_rounds_can_be_flat(tmp_path: Path) -> None:
    for number in range(1, FITTED + 1):
        curve = grown(tmp_path / f"{number}.curve", [1.5] * number)
        assert curve.is_flat == (number == FITTED)
    falling = grown(tmp_path / "falling.curve", [1.5, 1.4, 1.3, 1.2])
    assert falling.is_flat and falling.expect(1e6) == 0.0
    assert not grown(tmp_path / "rising.curve", [1.2, 1.25, 1.3, 1.35]).is_flat
