"""The Medusa drafter over a scripted head: one call for all tokens and slots, from the newest state only."""

from __future__ import annotations

import pytest
from doubles.chains import TABLE, best, committed, root, true_chain
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedFeatures, ScriptedMedusa
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.drafters.block_drafter import Medusa
from eaglelocal.drafters.drafter import NOTHING, Committed, Node

NUM_HEADS = 5


def new_drafter(max_rows: int = 64, num_choices: int = 1) -> tuple[Medusa, ScriptedMedusa]:
    head = ScriptedMedusa(TABLE, max_rows=max_rows)
    return Medusa(head, 3, block_size=NUM_HEADS, num_choices=num_choices), head


def test_its_traits_are_those_of_a_block() -> None:
    traits = new_drafter()[0].traits
    assert (traits.name, traits.taps, traits.block_size, traits.reuse_margin) == ("medusa", (3,), NUM_HEADS, 0)
    assert traits.max_depth == NUM_HEADS  # also with one head, which is no block


@pytest.mark.parametrize("depth", [1, NUM_HEADS, 20])
def test_a_draft_is_one_call_and_no_longer_than_there_are_heads(depth: int) -> None:
    drafter, head = new_drafter()
    text = [4, 5, 6, 7]
    drafter.commit([committed(0, text, 0)])
    text.append(best(text))
    (said,) = drafter.draft([root(0, text)], depth)
    assert [*said.tokens] == true_chain(text, min(depth, NUM_HEADS))
    assert (len(said.confidences), head.calls) == (len(said.tokens), 1)


def test_features_of_the_last_decode_are_copied() -> None:
    """They are void after the next decode, but the state is needed until then."""
    drafter, _ = new_drafter()
    text = [4, 5, 6, 7]
    rows = committed(0, text, 0)
    assert rows.features is not None
    memory = rows.features.copy()  # type: ignore[union-attr]
    drafter.commit([replace_features(rows, ScriptedFeatures(memory))])
    memory[:] = 0
    text.append(best(text))
    (said,) = drafter.draft([root(0, text)], 3)
    assert [*said.tokens] == true_chain(text, 3)


def replace_features(rows: Committed, features: ScriptedFeatures | None) -> Committed:
    return rows._replace(features=features)


def test_siblings_are_the_second_choices_of_all_slots() -> None:
    drafter, head = new_drafter(num_choices=2)
    texts = {slot: [slot + 1, 5, 6] for slot in range(3)}
    drafter.commit([committed(slot, text, 0) for slot, text in texts.items()])
    rooted = {slot: [*text, best(text)] for slot, text in texts.items()}
    for slot, said in enumerate(drafter.draft([root(slot, text) for slot, text in rooted.items()], 3)):
        text = list(rooted[slot])
        for token, ((sibling, _),) in zip(said.tokens, said.siblings, strict=True):
            assert (token, sibling) == tuple(TABLE.after(text).argsort()[::-1][:2])
            text.append(token)
    assert head.calls == 1


def test_only_roots_whose_state_is_known_are_drafted_for() -> None:
    drafter, head = new_drafter()
    text = [4, 5]
    drafter.commit([committed(1, text, 0)])
    text.append(best(text))
    empty, drafted = drafter.draft([root(0, [3, 3]), root(1, text)], 3)
    assert (empty, [*drafted.tokens]) == (NOTHING, true_chain(text, 3))
    assert drafter.draft([Node(1, 2, drafted.tokens[-1], len(text) + 2)], 3) == [NOTHING]
    drafter.commit([replace_features(committed(1, text, len(text) - 1), None)])
    text.append(best(text))
    assert drafter.draft([root(1, text)], 3) == [NOTHING]
    assert head.calls == 1


@pytest.mark.parametrize("max_rows", [4, 9, 16])
def test_drafts_of_all_slots_fit_one_call(max_rows: int) -> None:
    drafter, _ = new_drafter(max_rows)
    texts = [[slot + 1] * 20 for slot in range(4)]
    for slot, text in enumerate(texts):
        drafter.commit([committed(slot, text, 0)])
    rooted = [[*text, best(text)] for text in texts]
    for text, said in zip(rooted, drafter.draft([root(i, text) for i, text in enumerate(rooted)], 5), strict=True):
        assert [*said.tokens] == true_chain(text, min(NUM_HEADS, max_rows // 4))


@examples(60)
@given(data=st.data())
def test_every_draft_of_a_right_head_is_right(data: st.DataObject) -> None:
    """Drafts accepted in part, drops, copies, sleep and swaps in three slots."""
    drafter, _ = new_drafter()
    texts: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 15))):
        slot = data.draw(st.integers(0, 2))
        text = texts.get(slot, [])
        action = data.draw(st.sampled_from(["draft", "sleep", "swap", "copy", "cut"])) if text else "begin"
        begun = len(text)
        match action:
            case "begin":
                text = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=30))
                drafter.commit([committed(slot, text, 0)])
            case "draft":
                text = [*text, best(text)]
                (said,) = drafter.draft([root(slot, text)], data.draw(st.integers(1, 8)))
                assert [*said.tokens] == true_chain(text, len(said.tokens))
                assert said.tokens
                text += said.tokens[: data.draw(st.integers(0, len(said.tokens)))]
                drafter.commit([committed(slot, text, begun)])
            case "sleep":
                text = text + true_chain(text, data.draw(st.integers(1, 3)))
                drafter.buffer([committed(slot, text, begun)])
            case "swap":
                swapped = drafter.swap_out(slot)
                drafter.rollback(slot, 0)
                drafter.swap_in(slot, swapped, text)
            case "copy":
                target = data.draw(st.sampled_from([other for other in range(3) if other != slot]))
                drafter.copy_slot(slot, target, len(text))
                texts[target] = list(text)
            case "cut":
                keep = data.draw(st.integers(0, len(text) - 1))
                drafter.rollback(slot, keep)
                text = [*text[:keep], data.draw(st.integers(1, 9))]
                assert drafter.draft([root(slot, [*text, best(text)])], 2) == [NOTHING]
                drafter.commit([committed(slot, text, keep)])
        texts[slot] = text
