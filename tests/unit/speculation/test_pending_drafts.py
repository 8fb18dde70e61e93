"""Pending drafts are compared with the tokens that follow; drafts without a known outcome are not judged."""

from __future__ import annotations

from eaglelocal.speculation.policy.pending_drafts import JudgedDraft, PendingDraft, PendingDrafts


def guess(*tokens: int, drafter: str = "head") -> PendingDraft:
    return PendingDraft(drafter, tokens, tuple(0.5 for _ in tokens))


def seen(judged: list[JudgedDraft]) -> list[tuple[str, int, bool]]:
    return [(j.drafter, j.depth, j.accepted) for j in judged]


def test_after_a_wrong_token_nothing_is_judged() -> None:
    guesses = PendingDrafts()
    assert seen(guesses.judge(0, [guess(1, 2, 3)], [1, 9])) == [("head", 1, True), ("head", 2, False)]
    assert guesses.judge(0, [], [3, 4]) == []


def test_a_chain_that_was_cut_is_judged_by_the_text_that_follows() -> None:
    guesses = PendingDrafts()
    assert seen(guesses.judge(0, [guess(1, 2, 3, 4)], [1, 2])) == [("head", 1, True), ("head", 2, True)]
    judged = guesses.judge(0, [guess(3)], [3])
    assert seen(judged) == [("head", 1, True), ("head", 3, True)]
    assert [j.is_repeat for j in judged] == [False, True]  # the newest guess at a token comes first
    assert seen(guesses.judge(0, [], [5, 6])) == [("head", 4, False)]


def test_a_chain_that_came_true_is_done() -> None:
    guesses = PendingDrafts()
    assert len(guesses.judge(0, [guess(1)], [1, 2])) == 1
    assert guesses.judge(0, [], [2]) == []


def test_drafters_are_judged_next_to_each_other() -> None:
    judged = PendingDrafts().judge(0, [guess(1, 7), guess(1, 2, drafter="ngram")], [1, 2, 3])
    assert seen(judged) == [("head", 1, True), ("head", 2, False), ("ngram", 1, True), ("ngram", 2, True)]
    assert not any(j.is_repeat for j in judged)


def test_slots_do_not_meet_and_a_new_text_begins_with_nothing() -> None:
    guesses = PendingDrafts()
    guesses.judge(0, [guess(1, 2)], [1])
    guesses.judge(1, [guess(1, 5)], [1])
    guesses.forget(0)
    assert guesses.judge(0, [], [2]) == []
    assert seen(guesses.judge(1, [], [5])) == [("head", 2, True)]


def test_a_second_choice_is_judged_where_the_first_was_wrong() -> None:
    guesses = PendingDrafts()
    siblings = [[(9, 0.2)], [(8, 0.3)], [(7, 0.4)]]
    judged = guesses.judge(0, [PendingDraft("a", [1, 2, 3], [0.9, 0.8, 0.7], siblings)], [1, 8, 5])
    assert [seen[:4] for seen in judged] == [("a", 1, 0.9, True), ("a", 2, 0.8, False), ("a/2", 2, 0.3, True)]
    judged = guesses.judge(0, [PendingDraft("a", [1, 2, 3], [0.9, 0.8, 0.7], siblings)], [4])
    assert [seen[:4] for seen in judged] == [("a", 1, 0.9, False), ("a/2", 1, 0.2, False)]


def test_a_second_choice_is_judged_by_later_steps_too() -> None:
    guesses = PendingDrafts()
    judged = guesses.judge(0, [PendingDraft("a", [1, 2], [0.9, 0.8], [[(9, 0.5)], [(8, 0.3)]])], [1])
    assert [seen[:4] for seen in judged] == [("a", 1, 0.9, True)]
    judged = guesses.judge(0, [], [8, 4])
    assert [seen[:4] for seen in judged] == [("a", 2, 0.8, False), ("a/2", 2, 0.3, True)]
    assert guesses.judge(0, [], [5]) == []
