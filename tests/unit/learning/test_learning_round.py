"""The choice of answers to learn from and to judge by."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.learning.kept_answers import KeptAnswer
from eaglelocal.learning.learning_round import (
    MAX_NEW,
    MIN_PROMPT,
    LearningRound,
    choose_judges,
    choose_round,
    choose_since,
    fit_window,
    is_held_back,
    share_equally,
)


def answers(num: int, *, owner: str = "ann", first: int = 0, num_tokens: int = 20) -> list[KeptAnswer]:
    """Return answers to questions of their own, one each second."""
    return [
        KeptAnswer(owner, array("i", [number, *range(1, num_tokens)]), 5, float(number + 1))
        for number in range(first, first + num)
    ]


def choose(found: list[KeptAnswer], learned_until: float = 0.0, min_new: int = 64) -> LearningRound:
    chosen = choose_round(found, start=0, learned_until=learned_until, min_new=min_new)
    assert chosen is not None
    return chosen


def test_too_few_new_answers_make_no_round() -> None:
    found = answers(300)
    assert choose_round(found[:60], start=0, learned_until=0.0) is None
    assert choose_round(found, start=0, learned_until=300.0) is None


def test_what_is_held_back_and_the_newest_is_never_learned_from() -> None:
    found = answers(400)
    chosen = choose(found)
    judges = choose_judges(found, chosen, 0.0)
    learned = [each for each in found if each.key in chosen.keys]
    newest = [each for each in judges if not is_held_back(each)]
    assert not any(map(is_held_back, learned)) and 0 < len(newest) < len(judges)
    assert not {each.key for each in judges} & set(chosen.keys)
    assert max(each.kept_at for each in learned) < min(each.kept_at for each in newest)
    assert chosen.until == 400.0


def test_answers_to_one_question_are_all_held_back_or_none() -> None:
    for number in range(50):
        same = [KeptAnswer("ann", array("i", [number, 1, 2, last]), 3, 1.0) for last in range(10)]
        assert len({is_held_back(each) for each in same}) == 1


def test_a_later_round_repeats_as_many_older_answers() -> None:
    found = answers(600)
    chosen = choose(found, learned_until=400.0)
    by_key = {each.key: each for each in found}
    new = [by_key[key] for key in chosen.keys if by_key[key].kept_at > 400.0]
    assert len(chosen.keys) == 2 * len(new) and len(new) > 100


def test_a_round_is_bounded_and_reproducible() -> None:
    found = answers(3000)
    assert len(choose(found, learned_until=1500.0).keys) == 2 * MAX_NEW
    assert choose(found) == choose(found)


def test_owners_share_a_round_equally_and_a_flood_is_cut() -> None:
    flood = sorted([*answers(2000, owner="eve"), *answers(50), *answers(50, owner="bob")], key=lambda a: a.kept_at)
    shares = Counter(each.owner for each in share_equally(flood, 10_000))
    assert shares["ann"] == shares["bob"] == 50 and shares["eve"] == 100
    assert Counter(each.owner for each in share_equally(flood, 90)) == {"ann": 30, "bob": 30, "eve": 30}


def test_live_answers_count_from_their_time_on_and_only_if_they_suffice() -> None:
    found = answers(100)
    assert choose_since(found, 50.0, min_tokens=2000, min_answers=1) == ()
    assert choose_since(found, 50.0, min_tokens=1, min_answers=51) == ()
    live = choose_since(found, 10.0, min_tokens=300, min_answers=2)
    assert live[0].kept_at == 11.0 and sum(each.num_answer_tokens for each in live) == 300


@given(st.integers(1, 300), st.integers(1, 300), st.integers(MIN_PROMPT + 8, 200))
def test_a_window_ends_with_the_answer_as_far_as_it_can(num_prompt: int, num_answer: int, most: int) -> None:
    tokens = array("i", range(num_prompt + num_answer))
    found, prompt = fit_window(KeptAnswer("ann", tokens, num_prompt, 1.0), most)
    assert len(found) == min(len(tokens), most)
    assert found[prompt] == num_prompt  # the answer begins where it did
    assert prompt == num_prompt or prompt >= MIN_PROMPT
    assert found[-1] == tokens[-1] or prompt == min(num_prompt, MIN_PROMPT)


@pytest.mark.parametrize("owner", ["ann", "bob"])
def test_drawing_depends_on_the_answers_alone(owner: str) -> None:
    assert share_equally(answers(100, owner=owner), 10) == share_equally(answers(100, owner=owner), 10)
