"""N-grams of the target's guesses: what is kept, what is drafted from them, for whom, and within which bounds."""

from __future__ import annotations

import random

import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import ROOT
from eaglelocal.drafters import lookahead
from eaglelocal.drafters.drafter import Committed, Continuation, Node
from eaglelocal.drafters.lookahead import PAIR, PLACE, SINGLE, Lookahead

PROMPT = [1, 2, 3]


def drafter_after(refused: list[tuple[int, int]], *, owner: str = "ann") -> Lookahead:
    """Return a drafter whose slot 0 has committed PROMPT and the answer's token 10, with a draft that was refused."""
    drafter = Lookahead()
    drafter.begin(0, owner, len(PROMPT))
    drafter.commit([Committed(0, 0, PROMPT, None)])
    drafter.commit([Committed(0, 3, [10], None, refused)])
    return drafter


def draft(drafter: Lookahead, token: int, position: int, depth: int = 4, *, slot: int = 0) -> Continuation:
    return drafter.draft([Node(slot, ROOT, token, position)], depth)[0]


def test_guesses_are_followed_by_pairs_then_singles_then_places() -> None:
    drafter = drafter_after([(20, 21), (22, 23)])
    assert draft(drafter, 20, 4).tokens == [21, 23]  # the pair (10, 20), and then the place: nothing follows 21
    assert draft(drafter, 20, 4).confidences == [PAIR, PLACE]
    assert draft(drafter, 99, 4) == Continuation([21, 23], [PLACE, PLACE])  # another token was drawn there
    drafter.commit([Committed(0, 4, [99, 98], None)])
    assert draft(drafter, 22, 6) == Continuation([23], [SINGLE])  # (98, 22) is new, and the places have passed


def test_the_newest_guess_replaces_an_older_one() -> None:
    drafter = drafter_after([(20, 21)])
    drafter.commit([Committed(0, 4, [10], None, [(20, 30)])])
    assert draft(drafter, 20, 5, depth=1) == Continuation([30], [PAIR])


def test_answers_are_learned_and_prompts_are_not() -> None:
    drafter = drafter_after([])
    drafter.commit([Committed(0, 4, [11, 12], None)])
    assert draft(drafter, 11, 6, depth=1) == Continuation([12], [SINGLE])
    assert not draft(drafter, 1, 6).tokens and not draft(drafter, 2, 6).tokens
    assert draft(drafter, 3, 6, depth=1).tokens == [10]  # the answer's first token


def test_only_its_own_nodes_are_drafted_on() -> None:
    drafter = drafter_after([(20, 21), (21, 22), (22, 23)])
    first = draft(drafter, 20, 4, depth=1)
    assert first.tokens == [21]
    assert drafter.draft([Node(0, 0, 21, 5)])[0].tokens == [22]
    assert not drafter.draft([Node(0, 1, 50, 6)])[0].tokens  # of another drafter
    assert not drafter.draft([Node(0, 1, 22, 7)])[0].tokens


def test_owners_are_kept_apart() -> None:
    drafter = drafter_after([(20, 21)])
    for slot, owner in ((0, "bob"), (1, "bob"), (1, "ann")):
        drafter.end(slot)
        drafter.begin(slot, owner, 1)
        drafter.rollback(slot, 0)
        drafter.commit([Committed(slot, 0, [10], None)])
        assert list(draft(drafter, 20, 1, slot=slot).tokens) == ([21] if owner == "ann" else [])
        drafter.copy_slot(0, 1, 1)
        assert list(draft(drafter, 20, 1, slot=1).tokens) == ([21] if (slot, owner) == (1, "ann") else [])


def test_guesses_for_a_place_do_not_outlive_their_request() -> None:
    drafter = drafter_after([(20, 21), (22, 23)])
    drafter.begin(0, "bob", 4)
    drafter.rollback(0, 4)
    assert not draft(drafter, 99, 4).tokens


def test_few_owners_and_n_grams_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "MAX_GRAMS", 5)
    monkeypatch.setattr(lookahead, "MAX_OWNERS", 2)
    drafter = Lookahead()
    for owner in ("a", "b", "c"):
        drafter.begin(0, owner, 0)
        drafter.rollback(0, 0)
        drafter.commit([Committed(0, 0, list(range(30)), None, [(n, n) for n in range(40, 60)])])
    assert list(drafter._pools) == ["b", "c"]
    assert [len(pool) for pool in drafter._pools.values()] == [5, 5]
    assert draft(drafter, 58, 60).tokens == [58, 58, 58, 58] and not draft(drafter, 20, 60).tokens


def test_the_estimate_is_the_confidence_of_the_draft() -> None:
    drafter = drafter_after([(20, 21)])
    for node in (Node(0, ROOT, 20, 4), Node(0, ROOT, 99, 4)):
        (confidence,) = drafter.draft([node])[0].confidences
        assert drafter.estimate(node) == confidence
    assert drafter.estimate(Node(1, ROOT, 20, 4)) == 0.0


@examples(150)
@given(seed=st.integers(0, 10_000))
def test_estimates_are_those_of_the_drafts(seed: int) -> None:
    """Steps of random tokens, refusals, cuts, images and sleep, in two slots of random owners."""
    draw, drafter = random.Random(seed), Lookahead()
    ends = [0, 0]
    for _ in range(40):
        slot = draw.randrange(2)
        match draw.randrange(8):
            case 0:
                drafter.begin(slot, draw.choice("ab"), draw.randrange(4))
                ends[slot] = draw.randint(0, ends[slot])
                drafter.rollback(slot, ends[slot])
            case 1:
                drafter.copy_slot(1 - slot, slot, ends[1 - slot])
                ends[slot] = ends[1 - slot]
            case 2:
                drafter.skip(Committed(slot, ends[slot], [-1, -1], None))
                ends[slot] += 2
            case _:
                root = Node(slot, ROOT, draw.randrange(5), ends[slot])
                estimate = drafter.estimate(root)
                found = drafter.draft([root], 3)[0]
                assert estimate == (found.confidences[0] if found.tokens else 0.0)
                assert all(token >= 0 for token in found.tokens)
                tokens = [root.token, *(draw.randrange(5) for _ in range(draw.randrange(3)))]
                refused = [(draw.randrange(5), draw.randrange(5)) for _ in range(draw.randrange(3))]
                learn = draw.choice([drafter.commit, drafter.buffer])
                learn([Committed(slot, ends[slot], tokens, None, refused)])
                ends[slot] += len(tokens)
