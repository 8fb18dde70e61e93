"""The draft-model drafter over a scripted context that refuses holes and double positions."""

from __future__ import annotations

import pytest
from doubles.chains import TABLE, best, draft_chain, root, true_chain
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedContext
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.draft_model import MAX_WAITING_TOKENS, DraftModel
from eaglelocal.drafters.drafter import Committed, Node
from eaglelocal.engine.step_learning import catch_up
from eaglelocal.errors import EngineError


def committed(slot: int, text: list[int], first: int) -> Committed:
    return Committed(slot, first, text[first:], None)


def new_drafter(n_batch: int = 64) -> tuple[DraftModel, ScriptedContext]:
    context = ScriptedContext(TABLE, n_batch=n_batch, gives_features=False)
    return DraftModel(context), context


def test_a_cycle_costs_one_decode_a_token_and_accepted_cells_stay() -> None:
    drafter, context = new_drafter()
    text = [4, 5, 6]
    drafter.commit([committed(0, text, 0)])
    rooted = [*text, best(text)]
    drafted = draft_chain(drafter, 0, rooted, 3)
    assert drafted == true_chain(rooted, 3)
    assert context.decodes == [4, 1, 1]
    kept = [*rooted, *drafted]
    drafter.commit([committed(0, kept, 3)])
    again = [*kept, best(kept)]
    assert draft_chain(drafter, 0, again, 1) == true_chain(again, 1)
    assert context.decodes == [4, 1, 1, 2]  # only the last drafted token was not in the cache


def test_paused_slots_cost_nothing_while_others_draft() -> None:
    drafter, context = new_drafter()
    asleep = [4, 5, *range(1, 10)] * 4
    drafter.buffer([committed(1, asleep, 0)])
    text = [4, 5, 6]
    drafter.commit([committed(0, text, 0)])
    draft_chain(drafter, 0, [*text, best(text)], 1)
    assert context.decodes == [4]
    rooted = [*asleep, best(asleep)]
    assert draft_chain(drafter, 1, rooted, 2) == true_chain(rooted, 2)


@examples(30)
@given(data=st.data())
def test_every_draft_of_the_same_model_is_right(data: st.DataObject) -> None:
    drafter, _ = new_drafter(data.draw(st.sampled_from([8, 30, 64])))
    texts: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        slot = data.draw(st.integers(0, 2))
        text = texts.get(slot, [])
        if not text or data.draw(st.integers(0, 3)) == 0:
            keep = data.draw(st.integers(0, len(text)))
            fresh = (text[:keep] + data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=40)))[:100]
            if keep < len(text):
                drafter.rollback(slot, min(keep, len(fresh)))
            drafter.commit([committed(slot, fresh, min(keep, len(fresh)))])
            texts[slot] = fresh
            continue
        rooted = [*text, best(text)]
        length = data.draw(st.integers(0, 4))
        if data.draw(st.booleans()):
            drafter.catch_up([slot])
        drafted = draft_chain(drafter, slot, rooted, length)
        assert drafted == true_chain(rooted, length)
        accepted = data.draw(st.integers(0, length))
        texts[slot] = [*rooted, *drafted[:accepted]]
        drafter.commit([committed(slot, texts[slot], len(text))])
        if len(texts[slot]) > 100:
            drafter.rollback(slot, 0)
            texts[slot] = []


def test_many_slots_draft_in_one_call() -> None:
    drafter, context = new_drafter()
    texts = [[slot + 1, 5, 6] for slot in range(4)]
    drafter.commit([committed(slot, text, 0) for slot, text in enumerate(texts)])
    rooted = [[*text, best(text)] for text in texts]
    children = drafter.draft([root(slot, text) for slot, text in enumerate(rooted)])
    assert [c.tokens[0] for c in children] == [best(text) for text in rooted]
    assert context.decodes == [16]


def test_what_waits_in_all_slots_fits_one_batch() -> None:
    drafter, _ = new_drafter(n_batch=32)
    texts = [[slot + 1] * 20 for slot in range(4)]
    for slot, text in enumerate(texts):
        drafter.commit([committed(slot, text, 0)])
    drafted = drafter.draft([root(slot, [*text, best(text)]) for slot, text in enumerate(texts)])
    assert [c.tokens[0] for c in drafted] == [best([*text, best(text)]) for text in texts]


def test_tokens_that_are_not_drafted_wait_until_there_are_too_many() -> None:
    drafter, context = new_drafter()
    text = [1] * MAX_WAITING_TOKENS
    drafter.commit([committed(0, text, 0)])
    assert context.decodes == []
    drafter.commit([committed(0, [*text, 2], len(text))])
    assert context.decodes == [MAX_WAITING_TOKENS + 1]


def test_a_hole_is_an_error() -> None:
    drafter, _ = new_drafter()
    drafter.commit([committed(0, [1, 2], 0)])
    with pytest.raises(EngineError, match="hole in the draft cache of slot 0 at position 2"):
        drafter.commit([committed(0, [1, 2, 3, 4], 3)])
    with pytest.raises(EngineError, match="hole in the draft cache of slot 0 at position 2"):
        drafter.draft([Node(0, ROOT, 5, 5)])


def test_what_was_committed_in_its_sleep_is_read_before_it_drafts() -> None:
    drafter, context = new_drafter()
    text = [4, 5, *range(1, 10)] * 6
    drafter.buffer([committed(0, text, 0)])
    assert drafter.traits.max_unread > 10**6
    assert drafter.catch_up([0]) == len(text)
    assert drafter.catch_up([0]) == 0
    num_decodes = len(context.decodes)
    rooted = [*text, best(text)]
    assert draft_chain(drafter, 0, rooted, 2) == true_chain(rooted, 2)
    assert context.decodes[num_decodes:] == [1, 1]


def test_roots_beside_other_nodes_are_caught_up_for() -> None:
    drafter, context = new_drafter()
    long, text = [4, 5, *range(1, 10)] * 5, [4, 5, 6]
    drafter.buffer([committed(1, long, 0)])
    drafter.commit([committed(0, text, 0)])
    calls = catch_up(drafter, [Node(0, 0, 7, 4), root(1, [*long, best(long)])])
    assert [(call.drafter, call.num_rows, call.num_levels) for call in calls] == [("draft_model", len(long), 0)]
    assert context.decodes == [len(long)]
    assert catch_up(drafter, [Node(0, 0, 7, 4)]) == []


def test_what_was_slept_through_is_not_read_at_a_commit() -> None:
    """There it would not be timed."""
    drafter, context = new_drafter()
    text = [4, 5, *range(1, 10)] * 5
    drafter.buffer([committed(0, text, 0)])
    drafter.commit([committed(0, [*text, 3], len(text))])
    assert context.decodes == []
    assert drafter.catch_up([0]) == len(text) + 1
