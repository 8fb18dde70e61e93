"""The EAGLE-3 drafter over a head that checks every pair: queues, reuse, and the numbers of EAGLE-3.1."""

from __future__ import annotations

import pytest
from doubles.chains import TABLE, best, committed, draft_chain, root, true_chain
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedHead
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.drafters.branch_sequences import BranchSequences
from eaglelocal.drafters.drafter import NOTHING, Node
from eaglelocal.drafters.eagle3 import MAX_WAITING_PAIRS, Eagle3
from eaglelocal.drafters.row_buffer import MAX_BUFFERED
from eaglelocal.errors import EngineError


def new_drafter(n_batch: int = 64) -> tuple[Eagle3, ScriptedHead]:
    head = ScriptedHead(TABLE, n_batch=n_batch)
    return Eagle3(head, (0,)), head


def test_a_cycle_costs_one_encode_and_one_decode_a_token() -> None:
    drafter, head = new_drafter()
    text = [4, 5, 6, 7]
    drafter.commit([committed(0, text, 0)])
    assert head.decodes == 0
    text.append(best(text))
    assert draft_chain(drafter, 0, text, 3) == true_chain(text, 3)
    assert head.decodes == 3


def test_without_a_feature_nothing_is_proposed() -> None:
    drafter, head = new_drafter()
    assert drafter.draft([root(0, [4])]) == [NOTHING]
    assert head.decodes == 0


@examples(30)
@given(data=st.data())
def test_every_draft_of_a_right_head_is_right(data: st.DataObject) -> None:
    """Prompts, drafts accepted in part, drops and plain steps in three slots; the head checks all pairs."""
    n_batch = data.draw(st.sampled_from([8, 30, 64]))
    drafter, head = new_drafter(n_batch)
    texts: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        slot = data.draw(st.integers(0, 2))
        text = texts.get(slot, [])
        if not text or data.draw(st.integers(0, 3)) == 0:
            source = data.draw(st.sampled_from([slot, *texts]))
            text = texts.get(source, [])
            keep = data.draw(st.integers(0, len(text)))
            fresh = text[:keep] + data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=40))
            if source != slot:
                drafter.copy_slot(source, slot, keep)
            elif keep < len(text):
                drafter.rollback(slot, keep)
            first = keep if source == slot and keep == len(text) else max(keep - drafter.traits.reuse_margin, 0)
            drafter.commit([committed(slot, fresh[:100], first)])
            texts[slot] = fresh[:100]
            continue
        rooted = [*text, best(text)]
        length = data.draw(st.integers(0, 4))
        if data.draw(st.booleans()):
            drafter.catch_up([slot])
        drafted = draft_chain(drafter, slot, rooted, length)
        assert drafted == true_chain(rooted, length)
        kept = [*rooted, *drafted[: data.draw(st.integers(0, length))]]
        drafter.commit([committed(slot, kept, len(text))])
        texts[slot] = kept
        if len(kept) > 100:
            drafter.rollback(slot, 0)
            texts[slot] = []
    assert all(head.last_position(slot) < len(text) + 4 for slot, text in texts.items())


def test_cells_of_a_text_are_taken_over_up_to_its_last_pair() -> None:
    drafter, head = new_drafter()
    text = [1 + i * i % 9 for i in range(80)]
    drafter.commit([committed(0, text, 0)])
    drafter.commit([committed(1, [7, 7, 7, *text[:50]], 0)])
    drafter.copy_slot(0, 1, 50)
    assert (head.last_position(0), head.last_position(1)) == (78, 48)
    assert [head._cells.at(1, i) for i in range(49)] == [head._cells.at(0, i) for i in range(49)]


@pytest.mark.parametrize("num_asleep", [0, 3, 90])
def test_a_slot_goes_on_from_what_another_slept_on(num_asleep: int) -> None:
    """Awake, asleep for so short that all is remembered, or so long that the taken over text has a hole."""
    drafter, _ = new_drafter()
    text = [1 + i * i % 9 for i in range(100)]
    awake = 100 - num_asleep
    drafter.commit([committed(0, text[:awake], 0)])
    if num_asleep:
        drafter.buffer([committed(0, text, awake)])
    for slot, position in ((1, 100), (2, 98), (3, 50), (4, 5)):
        drafter.copy_slot(0, slot, position)
        own = [*text[:position], 3]
        drafter.commit([committed(slot, own, position - 1)])
        own.append(best(own))
        assert draft_chain(drafter, slot, own, 3) == true_chain(own, 3)


def test_many_slots_draft_in_one_call() -> None:
    drafter, head = new_drafter()
    texts = {slot: [slot + 1, 5, 6] for slot in range(4)}
    drafter.commit([committed(slot, text, 0) for slot, text in texts.items()])
    assert head.encoded_rows == 12
    rooted = {slot: [*text, best(text)] for slot, text in texts.items()}
    children = drafter.draft([root(slot, text) for slot, text in rooted.items()])
    assert [c.tokens[0] for c in children] == [best(text) for text in rooted.values()]
    assert head.decodes == 1


def test_a_slot_without_state_does_not_keep_the_others_from_drafting() -> None:
    drafter, _ = new_drafter()
    text = [4, 5]
    drafter.commit([committed(1, text, 0)])
    text.append(best(text))
    empty, drafted = drafter.draft([root(0, [3, 3]), root(1, text)])
    assert empty == NOTHING
    assert [*drafted.tokens] == [best(text)]


@pytest.mark.parametrize("n_batch", [7, 64])
def test_a_long_prompt_is_written_at_once_and_in_pieces(n_batch: int) -> None:
    drafter, head = new_drafter(n_batch)
    text = [1 + i % 9 for i in range(80)]
    drafter.commit([committed(0, text, 0)])
    assert head.last_position(0) == 78
    assert head.decodes == -(-79 // n_batch)


@pytest.mark.parametrize("chunk", [7, 30, 64, 100])
@pytest.mark.parametrize("num_prompt", [9, 10, 11, 30, 95])
def test_a_head_gets_the_end_of_a_long_prompt_only(num_prompt: int, chunk: int) -> None:
    head = ScriptedHead(TABLE)
    drafter = Eagle3(head, (0,), max_prompt_rows=10)
    text = [1 + i * i % 9 for i in range(num_prompt)]
    drafter.begin(0, "", num_prompt)
    for first in range(0, num_prompt, chunk):
        drafter.commit([committed(0, text[: first + chunk], first)])
    assert head.encoded_rows == min(num_prompt, 10)
    for _ in range(30):  # the answer is encoded as ever
        text.append(best(text))
        assert draft_chain(drafter, 0, text, 2) == true_chain(text, 2)
        drafter.commit([committed(0, text, len(text) - 1)])
    drafter.rollback(0, num_prompt + 20)
    del text[num_prompt + 20 :]
    text.extend([3, 4, 5])
    drafter.begin(0, "", len(text))  # a second turn goes on from the pairs that are there
    drafter.commit([committed(0, text, num_prompt + 19)])  # the margin row is decoded again
    text.append(best(text))
    assert head.encoded_rows == min(num_prompt, 10) + 34
    assert draft_chain(drafter, 0, text, 3) == true_chain(text, 3)


def test_tokens_that_are_not_drafted_wait_until_there_are_too_many() -> None:
    drafter, head = new_drafter()
    text = [1]
    drafter.commit([committed(0, text, 0)])
    while len(text) - 1 < MAX_WAITING_PAIRS:
        text.append(2)
        drafter.commit([committed(0, text, len(text) - 1)])
        assert head.last_position(0) == -1
    text.append(3)
    drafter.commit([committed(0, text, len(text) - 1)])
    assert head.last_position(0) == MAX_WAITING_PAIRS


def test_what_waits_in_all_slots_fits_one_batch() -> None:
    drafter, head = new_drafter(n_batch=32)
    texts = [[slot + 1] * 20 for slot in range(4)]
    for slot, text in enumerate(texts):
        drafter.commit([committed(slot, text, 0)])
    nodes = [root(slot, [*text, best(text)]) for slot, text in enumerate(texts)]
    drafted = drafter.draft(nodes)  # the head asserts its batch
    assert [c.tokens[0] for c in drafted] == [best([*text, best(text)]) for text in texts]
    assert head.n_batch == 32


def test_a_hole_is_an_error() -> None:
    drafter, _ = new_drafter()
    drafter.commit([committed(0, [1, 2, 3], 0)])
    with pytest.raises(EngineError, match="hole in the draft cache of slot 0 at position 2"):
        drafter.commit([committed(0, [1, 2, 3, 4, 5], 4)])


def test_a_drop_without_the_margin_row_is_an_error_and_with_it_is_not() -> None:
    drafter, _ = new_drafter()
    drafter.commit([committed(0, [1, 2, 3, 4], 0)])
    drafter.rollback(0, 3)
    with pytest.raises(EngineError, match="hole"):
        drafter.commit([committed(0, [1, 2, 3, 9], 3)])
    drafter.commit([committed(0, [1, 2, 3, 9], 2)])


def test_what_will_surely_be_asked_for_is_drafted_in_one_call() -> None:
    drafter, head = new_drafter()
    texts = {slot: [slot + 1, 5, 6] for slot in range(3)}
    drafter.commit([committed(slot, text, 0) for slot, text in texts.items()])
    rooted = {slot: [*text, best(text)] for slot, text in texts.items()}
    nodes = [root(slot, text) for slot, text in rooted.items()]
    first = drafter.draft(nodes, 3)
    assert [len(more.tokens) for more in first] == [3, 3, 3]
    last = [Node(n.slot, 2, more.tokens[-1], n.position + 3) for n, more in zip(nodes, first, strict=True)]
    then = drafter.draft(last, 1)
    drafted = {n.slot: [*a.tokens, *b.tokens] for n, a, b in zip(nodes, first, then, strict=True)}
    assert drafted == {slot: true_chain(text, 4) for slot, text in rooted.items()}
    assert head.decodes == 4  # one by one in the head, but only two calls of it


def cells_of(head: ScriptedHead) -> tuple[int, int]:
    """First and last position in the cache of slot 0."""
    return head._cells.starts[0], head.last_position(0)


def test_a_short_sleep_leaves_no_gap() -> None:
    """Rows dozed through follow the pairs that are there: nothing of the text is lost."""
    drafter, head = new_drafter()
    text = [4, 5, 6, 7, 8, 9]
    drafter.commit([committed(0, text[:4], 0)])
    drafter.buffer([committed(0, text, 4)])
    text.append(best(text))
    assert draft_chain(drafter, 0, text, 3) == true_chain(text, 3)
    assert cells_of(head)[0] == 0


def test_a_reused_prompt_keeps_its_pairs_after_a_request_that_slept() -> None:
    drafter, head = new_drafter()
    prompt = [4, 5, 6, 7, 8, 9]
    drafter.commit([committed(0, prompt, 0)])
    drafter.rollback(0, len(prompt) - 1)
    drafter.buffer([committed(0, [*prompt, 3, 3], len(prompt) - 2)])
    drafter.rollback(0, len(prompt) - 1)
    drafter.commit([committed(0, prompt, len(prompt) - 2)])
    text = [*prompt, best(prompt)]
    assert draft_chain(drafter, 0, text, 3) == true_chain(text, 3)
    assert cells_of(head)[0] == 0


def test_a_cut_in_what_was_slept_through_keeps_the_pairs_before_it() -> None:
    drafter, head = new_drafter()
    text = [1 + i % 20 for i in range(30)]
    drafter.commit([committed(0, text[:10], 0)])
    for first in range(10, 30):
        drafter.buffer([committed(0, text[: first + 1], first)])
    drafter.rollback(0, 20)
    changed = [*text[:20], 3, 4]
    drafter.commit([committed(0, changed, 19)])
    changed.append(best(changed))
    assert draft_chain(drafter, 0, changed, 3) == true_chain(changed, 3)
    assert cells_of(head)[0] == 0


def test_a_cut_after_a_long_sleep_begins_anew() -> None:
    """Pairs of an early text, a sleep further than is remembered, then a prompt that shares something in between."""
    drafter, head = new_drafter(n_batch=128)
    text = [1 + i % 20 for i in range(115)]
    drafter.commit([committed(0, text[:20], 0)])
    for first in range(20, 115):
        drafter.buffer([committed(0, text[: first + 1], first)])
    drafter.rollback(0, 40)
    changed = [*text[:39], 3, 4]
    drafter.commit([committed(0, changed, 39)])
    changed.append(best(changed))
    drafter.commit([committed(0, changed, len(changed) - 1)])
    changed.append(best(changed))
    assert draft_chain(drafter, 0, changed, 2) == true_chain(changed, 2)
    assert cells_of(head)[0] >= 39


def test_a_long_sleep_is_woken_from_the_newest_rows() -> None:
    drafter, head = new_drafter(n_batch=128)
    text = [1 + i % 20 for i in range(100)]
    drafter.commit([committed(0, text[:10], 0)])
    for first in range(10, 100):
        drafter.buffer([committed(0, text[: first + 1], first)])
    assert head.encoded_rows == 10 and head.decodes == 0
    text.append(best(text))
    assert draft_chain(drafter, 0, text, 3) == true_chain(text, 3)
    assert cells_of(head)[0] == 100 - MAX_BUFFERED
    assert head.encoded_rows == 10 + MAX_BUFFERED


def test_a_hole_in_the_sleep_forgets_what_was_before() -> None:
    drafter, head = new_drafter()
    text = [1 + i % 20 for i in range(30)]
    drafter.buffer([committed(0, text[:10], 0)])
    drafter.buffer([committed(0, text, 20)])
    text.append(best(text))
    assert draft_chain(drafter, 0, text, 2) == true_chain(text, 2)
    assert cells_of(head)[0] == 20


def test_what_was_foreseen_and_not_asked_for_is_forgotten() -> None:
    drafter, _ = new_drafter()
    text = [4, 5, 6]
    drafter.commit([committed(0, text, 0)])
    text.append(best(text))
    drafter.draft([root(0, text)], 4)
    other = [*text, 1 + best(text) % 9]  # the target chose otherwise
    drafter.commit([committed(0, other[:-1], 3)])
    assert draft_chain(drafter, 0, other, 3) == true_chain(other, 3)


@pytest.mark.parametrize("window", [1, 4, 26])
@pytest.mark.parametrize("length", [2, 20, 90])
def test_a_window_bounds_what_the_head_sees_when_it_drafts(window: int, length: int) -> None:
    """A draft sees `window` positions, those of its first row included, however much of the last one was accepted."""
    head = ScriptedHead(TABLE, n_ctx=256, n_batch=64)
    drafter = Eagle3(head, (0,), window=window)
    text = ([4, 5, 6, 7] * 23)[:length]
    drafter.commit([committed(0, text, 0)])
    for taken in (0, 3, 1, 2, 0, 3):
        text.append(best(text))
        assert draft_chain(drafter, 0, text, 4) == true_chain(text, 4)
        first_row = len(text) - 2
        assert head.reach(0) == (max(first_row - window + 1, 0), first_row + 4)
        begun = len(text) - 1
        text += true_chain(text, taken)
        drafter.commit([committed(0, text, begun)])


def test_a_slot_that_goes_back_after_its_window_begins_anew() -> None:
    head = ScriptedHead(TABLE, n_batch=64)
    drafter = Eagle3(head, (0,), window=4)
    text = [4, 5, 6, 7] * 5
    drafter.commit([committed(0, text, 0)])
    text.append(best(text))
    draft_chain(drafter, 0, text, 2)
    drafter.rollback(0, 6)
    text = [*text[:6], 8, 9]
    drafter.commit([committed(0, text, 5)])
    text.append(best(text))
    assert draft_chain(drafter, 0, text, 3) == true_chain(text, 3)
    assert head.reach(0) == (5, 10)


def test_states_that_wait_and_what_is_remembered_asleep_take_main_memory_too() -> None:
    drafter, head = new_drafter()
    text = [4, 5, 6, 7, 8, 9]
    drafter.commit([committed(0, text[:4], 0)])
    of_state = len(head.encode([committed(0, text[:1], 0).features])[0])
    assert drafter.swapped_bytes(0) == head.swapped_bytes(0) + 3 * of_state
    drafter.buffer([committed(0, text, 4)])
    assert drafter.swapped_bytes(0) == head.swapped_bytes(0) + 3 * of_state + committed(0, text, 4).features.nbytes


def test_an_ended_request_leaves_no_cells_of_its_branches() -> None:
    head = ScriptedHead(TABLE)
    drafter = Eagle3(head, (0,), num_choices=3, sequences=BranchSequences(head, 1, 2))
    text = [4, 5, 6]
    drafter.commit([committed(0, text, 0)])
    text.append(best(text))
    (first,) = drafter.draft([root(0, text)])
    sibling, _ = first.siblings[0][0]
    drafter.draft([Node(0, 0, sibling, len(text), 1, 0)])
    assert head.reach(1) == (0, len(text))
    drafter.end(0)
    assert head.reach(1) == (0, len(text) - 1)  # what stays is committed
