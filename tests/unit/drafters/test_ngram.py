"""Prompt lookup compared with a naive search; owners never see each other's text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from doubles.chains import root
from doubles.drafters import count_indexed
from doubles.plain_automaton import PlainAutomaton
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelocal.backend.suffix_automaton import SuffixAutomaton
from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import NOTHING, Committed, Drafter, Node
from eaglelocal.drafters.ngram import LONG_MATCH, MAX_REREAD, MIN_MATCH, Ngram, estimate_confidence
from eaglelocal.drafters.text_index import CONTEXT, SuffixCursor
from eaglelocal.errors import EngineError

NO_ANSWER = 10**6  # a prompt of that length: nothing of the request is an answer
small_texts = st.lists(st.integers(0, 2), max_size=60)


def committed(slot: int, text: Sequence[int], first: int = 0) -> Committed:
    return Committed(slot, first, text[first:], None)


class Said(NamedTuple):
    token: int
    confidence: float


def chain(drafter: Drafter, slot: int, text: list[int], length: int) -> list[Said]:
    """What is drafted behind `text`, whose last token is the root."""
    node, drafted = root(slot, text), list[Said]()
    for index in range(length):
        (more,) = drafter.draft([node])
        if not more.tokens:
            break
        drafted.append(Said(more.tokens[0], more.confidences[0]))
        node = Node(slot, index, more.tokens[0], node.position + 1)
    return drafted


def drafted_tokens(drafter: Drafter, slot: int, text: list[int], length: int) -> list[int]:
    return [said.token for said in chain(drafter, slot, text, length)]


def ends_of(part: list[int], text: list[int]) -> list[int]:
    """Where `part` ends in `text`."""
    return [end for end in range(len(part) - 1, len(text)) if text[end + 1 - len(part) : end + 1] == part]


def longest_known_suffix(text: list[int], pieces: list[list[int]]) -> list[int]:
    for length in range(len(text), 0, -1):
        if any(ends_of(text[-length:], piece) for piece in pieces):
            return text[-length:]
    return []


# ---- the automaton
@given(small_texts)
def test_a_growing_text_knows_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for i, token in enumerate(text):
        state, length = automaton.follow(automaton.last, len(automaton), [token])
        assert text[i + 1 - length : i + 1] == longest_known_suffix(text[: i + 1], [text[:i]])
        if length:
            assert automaton.latest(state) in ends_of(text[i + 1 - length : i + 1], text[:i])
        automaton.extend([token])


@given(st.lists(small_texts, max_size=4), small_texts)
def test_a_cursor_follows_a_text_in_pieces_of_others(pieces: list[list[int]], text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for piece in pieces:
        automaton.add_break()
        automaton.extend(piece)
    cursor = SuffixCursor(automaton)
    for i, token in enumerate(text):
        cursor.walk([token])
        assert text[i + 1 - cursor.length : i + 1] == longest_known_suffix(text[: i + 1], pieces)
    assert not cursor.is_outgrown
    automaton.extend([1])
    assert cursor.is_outgrown


@given(small_texts, st.integers(0, 60), st.integers(1, 60))
def test_counts_and_latest_places_are_of_real_occurrences(text: list[int], start: int, length: int) -> None:
    automaton, state = SuffixAutomaton(), 0
    automaton.extend(text)
    part = text[start : start + length]
    for token in part:
        state = automaton.step(state, token)
    if part:
        assert automaton.latest(state) in ends_of(part, text)
        assert 1 <= automaton.counts(state, [])[1][0] <= len(ends_of(part, text))


@given(st.lists(st.lists(st.integers(-3, 4), max_size=30), max_size=6), st.lists(st.integers(-3, 4), max_size=8))
def test_the_states_in_c_are_those_of_the_textbook(pieces: list[list[int]], part: list[int]) -> None:
    automaton, plain = SuffixAutomaton(), PlainAutomaton()
    for piece in pieces:
        automaton.extend(piece)
        plain.extend(piece)
    assert (automaton.last, list(automaton.tokens)) == (plain.last, list(plain.tokens))
    for state in range(len(plain.latest)):
        assert automaton.latest(state) == plain.latest[state]
        ways = [plain.step(state, token) for token in range(-3, 5)]
        assert [automaton.step(state, token) for token in range(-3, 5)] == ways
        expected = (state, plain.length[state])
        counts, behind = [plain.count[state]], state
        for token in part:
            expected = plain.follow(*expected, token)
            behind = plain.step(behind, token) if behind else 0
            counts.append(plain.count[behind])
        assert automaton.follow(state, plain.length[state], part) == expected
        assert automaton.counts(state, part) == (behind, counts)


def test_a_long_text_of_many_words_is_as_in_the_textbook() -> None:
    """So that the table of ways grows often, and its places meet."""
    chance = random.Random(1)
    text = [min(int(chance.paretovariate(0.4)), 50_000) for _ in range(20_000)]
    automaton, plain = SuffixAutomaton(), PlainAutomaton()
    for first in range(0, len(text), 700):
        automaton.extend(text[first : first + 700])
    plain.extend(text)
    assert automaton.last == plain.last
    assert [automaton.latest(state) for state in range(len(plain.latest))] == list(plain.latest)
    for state in chance.sample(range(len(plain.latest)), 3000):
        token = chance.choice(text)
        assert automaton.step(state, token) == plain.step(state, token)
        assert automaton.counts(state, [token])[1] == [
            plain.count[state],
            plain.count[plain.step(state, token) if state else 0],
        ]
    assert automaton.num_bytes < 120 * len(text)


def test_a_match_ends_at_a_break() -> None:
    automaton = SuffixAutomaton()
    for piece in ([1], [1, 2], [1]):
        automaton.add_break()
        automaton.extend(piece)
    assert automaton.follow(automaton.last, len(automaton), [2])[1] == 2


# ---- what is drafted
@pytest.mark.parametrize(
    ("text", "drafted"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2], [3, 4, 5, 9]),
        ([1, 2, 3, 8, 1, 2, 4, 8, 1, 2, 5, 9, 1, 2], [5, 9]),
        ([7, 1, 2, 3, 8, 1, 2, 4, 9, 7, 1, 2], [3]),
        ([5, 6, 7, 5, 6, 7], [5, 6, 7, 5, 6, 7, 5]),
    ],
    ids=["one match", "the most recent of equal matches", "the longest match", "a period, beyond the text's end"],
)
def test_the_text_after_an_earlier_match_is_drafted(text: list[int], drafted: list[int]) -> None:
    drafter = Ngram(100)
    drafter.commit([committed(0, text[:-1])])
    assert drafted_tokens(drafter, 0, text, len(drafted)) == drafted


def test_one_token_is_no_match() -> None:
    drafter = Ngram(100)
    drafter.commit([committed(0, [1, 2, 3])])
    assert drafted_tokens(drafter, 0, [1, 2, 3, 2], 3) == []
    assert MIN_MATCH == 2


def test_nodes_of_another_drafter_have_no_children() -> None:
    drafter = Ngram(100)
    text = [1, 2, 3, 4, 1, 2]
    drafter.commit([committed(0, text[:-1])])
    assert drafter.draft([Node(0, 0, 3, 6)]) == [NOTHING]
    assert [c.tokens for c in drafter.draft([root(0, text)])] == [[3]]
    assert drafter.draft([Node(0, 0, 8, 6)]) == [NOTHING]
    assert [c.tokens for c in drafter.draft([Node(0, 0, 3, 6)])] == [[4]]


@settings(deadline=None)
@given(data=st.data())
def test_drafts_continue_the_longest_match_of_the_own_text(data: st.DataObject) -> None:
    drafter, state = Ngram(10_000), {slot: [list[int]()] for slot in range(2)}
    texts: dict[int, list[int]] = {slot: [] for slot in state}
    for slot in state:
        drafter.begin(slot, "", NO_ANSWER)
    for _ in range(data.draw(st.integers(1, 12))):
        slot = data.draw(st.sampled_from(list(state)))
        text, pieces = texts[slot], state[slot]
        if text and data.draw(st.integers(0, 3)) == 0:
            keep = data.draw(st.integers(0, len(text) - 1))
            drafter.rollback(slot, keep)
            del text[keep:]
            state[slot] = pieces = [*pieces, text[-CONTEXT:]] if keep else [[]]
        new = data.draw(st.lists(st.integers(0, 2), max_size=20))
        again = data.draw(st.integers(0, min(3, len(text))))
        text.extend(new)
        pieces[-1].extend(new)
        drafter.commit([committed(slot, text, len(text) - len(new) - again)])
        check_draft(drafter, slot, text, pieces, data.draw(st.integers(0, 2)))


def check_draft(drafter: Ngram, slot: int, text: list[int], pieces: list[list[int]], token: int) -> None:
    match = longest_known_suffix([*pieces[-1], token], pieces)
    drafted = drafted_tokens(drafter, slot, [*text, token], 6)
    if len(match) < MIN_MATCH:
        assert drafted == []
        return
    assert drafted in followers(match, pieces, [token, *drafted], len(drafted))
    if len(drafted) < 6:  # the followed occurrence came to the end of a piece
        assert ends_a_piece([*match, *drafted], pieces[:-1])


def followers(match: list[int], pieces: list[list[int]], unwritten: list[int], length: int) -> list[list[int]]:
    """What followed each occurrence in the pieces; behind the last one stands what is not yet written."""
    return [
        text[end + 1 : end + 1 + length]
        for piece, text in zip(pieces, [*pieces[:-1], [*pieces[-1], *unwritten]], strict=True)
        for end in ends_of(match, piece)
    ]


def ends_a_piece(match: list[int], pieces: list[list[int]]) -> bool:
    return any(piece[-len(match) :] == match for piece in pieces)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=20), min_size=1, max_size=3), st.data())
def test_the_longest_match_wins_and_the_own_text_where_equal(answers: list[list[int]], data: st.DataObject) -> None:
    drafter = Ngram(1000)
    for slot, text in enumerate(answers):
        drafter.begin(slot + 1, "", 0)
        drafter.commit([committed(slot + 1, text)])
        drafter.end(slot + 1)
    drafter.begin(0, "", NO_ANSWER)
    text = list[int]()
    for token in data.draw(st.lists(st.integers(0, 3), max_size=30)):
        drafted = drafted_tokens(drafter, 0, [*text, token], 4)
        own = longest_known_suffix([*text, token], [text])
        other = longest_known_suffix([*text, token], answers)
        prefers_own = min(len(own), LONG_MATCH) >= min(len(other), LONG_MATCH)
        allowed = [] if prefers_own else followers(other, [*answers, []], [], len(drafted))
        if prefers_own or ends_a_piece(other, answers):
            allowed += followers(own, [text], [token, *drafted], len(drafted))
        assert drafted in allowed if drafted else len(own) < MIN_MATCH
        text.append(token)
        drafter.commit([committed(0, text, len(text) - 1)])


def test_answers_that_end_meanwhile_are_drafted_at_once() -> None:
    drafter = Ngram(100)
    text = [1, 2, 3, 4, 5]
    drafter.commit([committed(2, [3, 4, 7, 9])])
    drafter.end(2)
    drafter.commit([committed(0, text), committed(1, [1, 2, 3, 4, 5, 6, 7, 8])])
    assert drafted_tokens(drafter, 0, [*text, 6], 2) == []
    drafter.end(1)
    assert drafted_tokens(drafter, 0, [*text, 6], 2) == [7, 8]


@given(st.integers(1, 1000), st.integers(0, 100), st.integers(0, 100))
def test_confidence_is_a_probability_that_rises_with_length_and_agreement(length: int, seen: int, agreed: int) -> None:
    value = estimate_confidence(length, seen, agreed)
    assert 0 < value < 1
    assert estimate_confidence(length + 1, seen, agreed) > value
    assert estimate_confidence(length, seen, agreed + 1) >= value


def test_disagreement_costs_confidence() -> None:
    agreeing, torn = Ngram(100), Ngram(100)
    agreeing.commit([committed(0, [1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3, 9, 1])])
    torn.commit([committed(0, [1, 2, 4, 7, 1, 2, 5, 8, 1, 2, 3, 9, 1])])
    text = [0] * 13 + [2]
    sure, unsure = chain(agreeing, 0, text, 1)[0], chain(torn, 0, text, 1)[0]
    assert sure.token == unsure.token == 3
    assert sure.confidence > 0.6 > 0.3 > unsure.confidence


# ---- slots, positions and cuts
def test_after_a_cut_the_dropped_end_is_drafted_to_the_same_owner() -> None:
    drafter = Ngram(100)
    text = [1, 2, 3, 4, 5, 6, 7]
    drafter.begin(0, "", NO_ANSWER)
    drafter.commit([committed(0, text)])
    drafter.rollback(0, 3)
    assert drafted_tokens(drafter, 0, text[:4], 3) == [5, 6, 7]


def test_after_a_cut_nothing_is_drafted_for_the_dropped_end() -> None:
    drafter = Ngram(100)
    drafter.commit([committed(1, [1, 2, 3, 4, 5, 6])])
    drafter.end(1)
    drafter.begin(0, "", NO_ANSWER)
    drafter.commit([committed(0, [1, 2, 3, 4])])
    drafter.rollback(0, 2)
    assert drafted_tokens(drafter, 0, [1, 2, 5], 2) == []
    assert drafted_tokens(drafter, 0, [1, 2, 3], 2) == [4]


def test_matches_reach_back_over_the_turn_of_generations() -> None:
    drafter = Ngram(100)
    text = [*range(90), 200, 201, 202, 203, 204, 200, 201, 202, 203, 204, 200]
    drafter.commit([committed(0, text[:100])])
    drafter.commit([committed(0, text, 100)])
    assert drafted_tokens(drafter, 0, [*text, 201], 6) == [202, 203, 204, 200, 201, 202]


def test_a_hole_is_an_error_awake_and_a_new_beginning_asleep() -> None:
    drafter = Ngram(100)
    drafter.commit([committed(0, [1, 2, 3])])
    with pytest.raises(EngineError, match="hole in the text of slot 0 at position 3: the next rows begin at 4"):
        drafter.commit([Committed(0, 4, [5], None)])
    with pytest.raises(EngineError, match="hole in the text of slot 0 at position 3: the next rows begin at 5"):
        drafter.draft([Node(0, ROOT, 5, 5)])
    drafter.buffer([Committed(0, 10, [5, 6, 5], None)])
    assert [c.tokens for c in drafter.draft([Node(0, ROOT, 6, 13)])] == [[5]]
    drafter.rollback(0, 11)
    drafter.commit([Committed(0, 10, [5, 6], None)])
    assert drafter.draft([Node(0, ROOT, 9, 12)]) == [NOTHING]
    drafter.rollback(0, 4)
    drafter.commit([Committed(0, 4, [1], None)])


# ---- recent answers and their owners
def test_an_answer_is_drafted_only_to_other_requests_of_its_owner() -> None:
    drafter = Ngram(100)
    drafter.begin(0, "ann", 2)
    drafter.commit([committed(0, [8, 9, 1, 2, 3, 4])])
    drafter.end(0)
    for slot, owner, expected in ((1, "ann", [3, 4]), (2, "bob", []), (3, "", [])):
        drafter.begin(slot, owner, 1)
        drafter.commit([committed(slot, [1])])
        assert drafted_tokens(drafter, slot, [1, 2], 3) == expected


def test_a_prompt_is_no_answer() -> None:
    drafter = Ngram(100)
    drafter.begin(0, "ann", 4)
    drafter.commit([committed(0, [1, 2, 3, 4, 5, 6, 7])])
    drafter.end(0)
    drafter.begin(1, "ann", 1)
    drafter.commit([committed(1, [1])])
    assert drafted_tokens(drafter, 1, [1, 2], 3) == []
    drafter.commit([committed(1, [1, 5], 1)])
    assert drafted_tokens(drafter, 1, [1, 5, 6], 3) == [7]


def test_an_answer_is_kept_once() -> None:
    drafter = Ngram(100)
    drafter.commit([committed(0, [1, 2, 3, 4, 5])])
    drafter.end(0)
    indexed = count_indexed(drafter)
    drafter.end(0)
    drafter.begin(0, "", 5)
    drafter.rollback(0, 5)
    assert count_indexed(drafter) == indexed


def test_an_answer_that_replaces_another_is_kept_too() -> None:
    drafter = Ngram(100)
    for answer_tokens in ([3, 4, 5, 6], [7, 8, 9]):
        drafter.begin(0, "", 2)
        drafter.rollback(0, 2)
        drafter.commit([committed(0, [1, 2, *answer_tokens], min(2, count_indexed(drafter)))])
    drafter.end(0)
    drafter.commit([committed(1, [4])])
    assert drafted_tokens(drafter, 1, [4, 5], 1) == [6]
    drafter.commit([committed(1, [4, 7], 1)])
    assert drafted_tokens(drafter, 1, [4, 7, 8], 1) == [9]


def test_a_draft_ends_when_its_slot_is_handed_on() -> None:
    drafter = Ngram(100)
    text = [1, 2, 77, 78, 1, 2]
    drafter.begin(0, "ann", 6)
    drafter.commit([committed(0, text[:-1])])
    assert drafted_tokens(drafter, 0, text, 1) == [77]
    drafter.begin(0, "bob", 6)
    assert drafter.draft([Node(0, 0, 77, 6)]) == [NOTHING]


def test_a_slot_that_is_handed_on_keeps_what_the_prompts_share() -> None:
    drafter = Ngram(100)
    shared = [1, 2, 3, 4]
    drafter.begin(0, "ann", 4)
    drafter.commit([committed(0, [*shared, 1, 2, 77])])
    drafter.begin(0, "bob", 5)
    drafter.rollback(0, 4)
    drafter.commit([committed(0, [*shared, 1], 4)])
    assert drafted_tokens(drafter, 0, [*shared, 1, 2], 2) == [3, 4]


def test_a_prompt_taken_over_from_another_owner_is_looked_up_and_their_answer_is_not() -> None:
    drafter = Ngram(100)
    shared = [1, 2, 3, 4]
    drafter.begin(0, "ann", 4)
    drafter.commit([committed(0, [*shared, 1, 2, 77, 5])])
    drafter.begin(1, "bob", 6)
    drafter.copy_slot(0, 1, 4)
    drafter.commit([committed(1, [*shared, 9, 1], 3)])
    assert drafted_tokens(drafter, 1, [*shared, 9, 1, 2], 3) == [3, 4, 9]
    drafter.commit([committed(1, [*shared, 9, 1, 2, 3, 4], 6)])
    drafter.end(1)
    drafter.commit([committed(0, [*shared, 1, 2, 77, 5, 3], 8)])
    assert drafted_tokens(drafter, 0, [*shared, 1, 2, 77, 5, 3, 4], 2) == [1, 2]  # their own text, not bob's


def test_a_text_that_began_after_a_hole_is_taken_over_from_there() -> None:
    drafter = Ngram(100)
    drafter.buffer([Committed(0, 10, [1, 2, 3, 1], None)])
    for position, expected in ((14, [3]), (8, [])):
        drafter.begin(1, "", 20)
        drafter.copy_slot(0, 1, position)
        text = [*[9] * 10, 1, 2, 3, 1][:position]
        assert drafted_tokens(drafter, 1, [*text, 2], 1) == expected


OWNERS = ("", "ann", "bob")


def texts_of(owner: str) -> st.SearchStrategy[list[int]]:
    """Tokens that all share, and tokens that are this owner's secret."""
    secret = 100 * (1 + OWNERS.index(owner))
    return st.lists(st.sampled_from([0, 1, 2, secret, secret + 1]), min_size=2, max_size=25)


@settings(deadline=None)
@given(data=st.data())
def test_texts_of_two_owners_never_cross(data: st.DataObject) -> None:
    sizes = st.integers(1, 40)
    drafter = Ngram(data.draw(sizes), pool_tokens=data.draw(sizes), max_owners=data.draw(st.integers(1, 3)))
    cached: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(data.draw(st.integers(2, 8))):
        slot, owner = data.draw(st.sampled_from([0, 1])), data.draw(st.sampled_from(OWNERS))
        system = data.draw(st.sampled_from([[], [0, 1, 2, 0], cached[slot]]))
        prompt = [token for token in system if is_of(owner, token)] + data.draw(texts_of(owner))
        source = data.draw(st.sampled_from([slot, 1 - slot]))
        cached[slot] = answer(drafter, slot, owner, prompt, source=source, cached=cached[source], data=data)


def answer(
    drafter: Ngram, slot: int, owner: str, prompt: list[int], *, source: int, cached: list[int], data: st.DataObject
) -> list[int]:
    """One request as the engine runs it, from the cache of its slot or another; returns what is cached then."""
    keep = min(next((i for i, (a, b) in enumerate(zip(cached, prompt, strict=False)) if a != b), 10**6), len(cached))
    keep = min(keep, len(prompt) - 1)
    reuse = (
        (lambda: drafter.rollback(slot, keep)) if source == slot else (lambda: drafter.copy_slot(source, slot, keep))
    )
    verbs = [lambda: drafter.begin(slot, owner, len(prompt)), reuse]
    for verb in data.draw(st.permutations(verbs)):
        verb()
    drafter.commit([committed(slot, prompt, max(keep - data.draw(st.integers(0, 1)), 0))])
    text = prompt
    for token in data.draw(texts_of(owner)):
        drafted = chain(drafter, slot, [*text, token], 4)
        assert all(is_of(owner, child.token) and 0 < child.confidence < 1 for child in drafted)
        text = [*text, token]
        drafter.commit([committed(slot, text, len(text) - 1)])
    if data.draw(st.booleans()):
        drafter.end(slot)
    return text


def is_of(owner: str, token: int) -> bool:
    return token < 100 or token // 100 == 1 + OWNERS.index(owner)


# ---- bounds
@settings(deadline=None)
@given(
    rounds=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 30)), max_size=30),
    max_tokens=st.integers(1, 20),
    pool_tokens=st.integers(1, 20),
)
def test_memory_is_bounded_whatever_happens(
    rounds: list[tuple[int, int, int]], max_tokens: int, pool_tokens: int
) -> None:
    drafter, text = Ngram(max_tokens, pool_tokens=pool_tokens, max_owners=2), list[int]()
    for number, (owner, keep, new) in enumerate(rounds):
        keep = min(keep, len(text))
        drafter.rollback(0, keep)
        drafter.begin(0, str(owner), keep)
        text = [*text[:keep], *(i * number % 5 for i in range(new))]
        drafter.commit([committed(0, text, keep)])
        assert count_indexed(drafter) <= 2 * (max_tokens + 1) + 2 * 2 * (pool_tokens + 1)


def test_the_newest_context_is_always_indexed() -> None:
    drafter = Ngram(50)
    text = list(range(60))
    drafter.commit([committed(0, [*text, 15])])
    assert drafted_tokens(drafter, 0, [*text, 15, 16], 3) == [17, 18, 19]


@given(texts=st.lists(small_texts, min_size=1, max_size=4), token=st.integers(0, 2))
def test_the_same_history_gives_the_same_drafts_however_it_was_cut_into_rows(
    texts: list[list[int]], token: int
) -> None:
    at_once, in_rows = Ngram(1000), Ngram(1000)
    for slot, text in enumerate(texts):
        at_once.commit([committed(slot, text)])
        for first, end in pairwise([*range(0, len(text), 7), len(text)]):
            in_rows.commit([committed(slot, text[:end], first)])
        in_rows.commit([committed(slot, text, len(text))])
        assert chain(at_once, slot, [*text, token], 5) == chain(in_rows, slot, [*text, token], 5)
        at_once.end(slot)
        in_rows.end(slot)


def test_closing_forgets_everything() -> None:
    drafter = Ngram(100)
    drafter.commit([committed(0, [1, 2, 3, 4])])
    drafter.close()
    assert count_indexed(drafter) == 0


def test_the_beginning_of_a_long_prompt_is_found() -> None:
    """However much comes before the first lookup."""
    drafter = Ngram(100_000)
    phrase, behind = [5, 6, 7, 8, 9], [11, 12, 13]
    filling = [100 + i % 997 for i in range(3 * MAX_REREAD)]
    text = [1, 2, *phrase, *behind, *filling, *phrase]
    drafter.begin(0, "", len(text))
    for first in range(0, len(text) - 1, 512):
        drafter.commit([Committed(0, first, text[first : min(first + 512, len(text) - 1)], None)])
    assert drafted_tokens(drafter, 0, text, 3) == behind
