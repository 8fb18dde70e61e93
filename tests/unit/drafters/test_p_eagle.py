"""The P-EAGLE drafter over a head that checks every pair: one pass for all tokens, and no mask is left behind."""

from __future__ import annotations

import pytest
from doubles.chains import TABLE, best, committed, root, true_chain
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedParallelHead
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.batch import ExtraLevels
from eaglelocal.drafters.block_drafter import PEagle
from eaglelocal.drafters.drafter import NOTHING, Node

NUM_DEPTHS = ScriptedParallelHead.mask.num_depths


def new_drafter(n_batch: int = 64, **changes: int) -> tuple[PEagle, ScriptedParallelHead]:
    head = ScriptedParallelHead(TABLE, n_batch=n_batch)
    return PEagle(head, (0,), head.mask, **changes), head


def test_a_draft_costs_one_encode_and_one_decode() -> None:
    drafter, head = new_drafter()
    assert drafter.traits.block_size == NUM_DEPTHS
    text = [4, 5, 6, 7]
    drafter.commit([committed(0, text, 0)])
    text.append(best(text))
    (said,) = drafter.draft([root(0, text)], 4, ExtraLevels(3, 0.0))
    assert [*said.tokens] == true_chain(text, 4)
    assert len(said.confidences) == 4
    assert (head.decodes, head.encoded_rows, head.last_position(0)) == (1, 4, 6)


@pytest.mark.parametrize("depth", [1, NUM_DEPTHS, 20])
def test_no_more_is_drafted_than_was_trained(depth: int) -> None:
    drafter, _ = new_drafter()
    text = [4, 5, 6, 7]
    drafter.commit([committed(0, text, 0)])
    text.append(best(text))
    (said,) = drafter.draft([root(0, text)], depth)
    assert [*said.tokens] == true_chain(text, min(depth, NUM_DEPTHS))


def test_second_choices_are_those_of_their_own_rows() -> None:
    drafter, _ = new_drafter(num_choices=2)
    texts = {slot: [slot + 1, 5, 6] for slot in range(3)}
    drafter.commit([committed(slot, text, 0) for slot, text in texts.items()])
    rooted = {slot: [*text, best(text)] for slot, text in texts.items()}
    for slot, said in enumerate(drafter.draft([root(slot, text) for slot, text in rooted.items()], 3)):
        text = list(rooted[slot])
        for token, [(sibling, _)] in zip(said.tokens, said.siblings, strict=True):
            first, second = TABLE.after(text).argsort()[::-1][:2]
            assert (token, sibling) == (first, second)
            text.append(token)


def test_only_roots_with_their_pairs_are_drafted_for() -> None:
    drafter, head = new_drafter()
    text = [4, 5]
    drafter.commit([committed(1, text, 0)])
    text.append(best(text))
    empty, drafted = drafter.draft([root(0, [3, 3]), root(1, text)], 3)
    assert empty == NOTHING
    assert [*drafted.tokens] == true_chain(text, 3)
    assert drafter.draft([Node(1, 2, drafted.tokens[-1], len(text) + 2)], 3) == [NOTHING]
    assert head.decodes == 1


@pytest.mark.parametrize("n_batch", [4, 9, 16, 40])
def test_drafts_of_all_slots_fit_one_batch(n_batch: int) -> None:
    """The head asserts its batch; drafts are as long as there is room."""
    drafter, head = new_drafter(n_batch)
    texts = [[slot + 1] * 20 for slot in range(4)]
    for slot, text in enumerate(texts):
        drafter.commit([committed(slot, text, 0)])
    rooted = [[*text, best(text)] for text in texts]
    before = head.decodes
    drafted = drafter.draft([root(slot, text) for slot, text in enumerate(rooted)], NUM_DEPTHS)
    assert head.decodes == before + 1
    for text, said in zip(rooted, drafted, strict=True):
        assert [*said.tokens] == true_chain(text, min(NUM_DEPTHS, n_batch // 4))


@examples(60)
@given(data=st.data())
def test_every_draft_of_a_right_head_is_right(data: st.DataObject) -> None:
    """Drafts accepted in part, drops, copies, sleep and swaps in three slots; the head checks all pairs."""
    drafter, head = new_drafter(data.draw(st.sampled_from([8, 30, 64])), window=data.draw(st.sampled_from([None, 7])))
    texts: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        slot = data.draw(st.integers(0, 2))
        text = texts.get(slot, [])
        if not text or data.draw(st.integers(0, 3)) == 0:
            source = data.draw(st.sampled_from([slot, *texts]))
            text = texts.get(source, [])
            keep = data.draw(st.integers(0, len(text)))
            fresh = (text[:keep] + data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=30)))[:90]
            if source != slot:
                drafter.copy_slot(source, slot, keep)
            elif keep < len(text):
                drafter.rollback(slot, keep)
            keep = min(keep, len(fresh) - 1)
            drafter.commit([committed(slot, fresh, max(keep - drafter.traits.reuse_margin, 0))])
            texts[slot] = fresh
            continue
        begun, text = len(text), [*text, best(text)]
        match data.draw(st.sampled_from(["draft", "sleep", "swap"])):
            case "draft":
                (said,) = drafter.draft([root(slot, text)], data.draw(st.integers(1, 8)))
                assert [*said.tokens] == true_chain(text, len(said.tokens))
                assert said.tokens
                text += said.tokens[: data.draw(st.integers(0, len(said.tokens)))]
                drafter.commit([committed(slot, text, begun)])
            case "sleep":
                text += true_chain(text, data.draw(st.integers(0, 3)))
                drafter.buffer([committed(slot, text, begun)])
            case "swap":
                swapped = drafter.swap_out(slot)
                drafter.rollback(slot, 0)
                drafter.swap_in(slot, swapped, text[:-1])
                text = text[:-1]
        texts[slot] = text
        if len(text) > 100:
            drafter.rollback(slot, 0)
            texts[slot] = []
    assert all(head.last_position(slot) < len(text) + NUM_DEPTHS for slot, text in texts.items())
