"""Which conversations are worth keeping in main memory, which one a prompt goes on with, and which leave for others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.request import Request
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.scheduler.host_swap import HostSwap, SwapMatch, SwappedText

LONG = list(range(100))


def swap(max_bytes: int = 1000, min_rows: int = 50) -> HostSwap:
    return HostSwap(max_bytes, min_rows=min_rows)


def asked(prompt: list[int], adapters: AdapterMix = ()) -> Request:
    return Request(id="a", prompt=tuple(prompt), params=SamplingParams(), adapters=adapters)


def text(tokens: list[int], adapters: AdapterMix = ()) -> SwappedText:
    return SwappedText(tokens, is_seen=True, adapters=adapters)


def put(held: HostSwap, tokens: list[int], num_bytes: int = 100) -> int:
    key = held.put(SwappedText(tokens, is_seen=True))
    assert held.make_room(key, num_bytes)
    return key


@pytest.mark.parametrize(
    ("tokens", "num_common", "is_other", "wanted"),
    [
        (LONG, 0, False, True),
        (LONG, 49, False, True),
        (LONG, 50, False, False),  # it goes on
        (LONG, 50, True, True),  # it does not: another of the same beginning does
        (LONG, 51, True, False),
        (LONG[:50], 0, False, True),
        (LONG[:49], 0, False, False),
        ([*LONG, -5, 7], 0, False, False),  # an image
        ([], 0, False, False),
    ],
)
def test_what_is_worth_it(tokens: list[int], num_common: int, is_other: bool, wanted: bool) -> None:
    assert swap().is_worth_keeping(text(tokens), num_common, is_other=is_other) is wanted
    assert not swap(max_bytes=0).is_worth_keeping(text(tokens), num_common, is_other=is_other)


def test_what_is_there_already_is_not_swapped_out_again() -> None:
    held = swap()
    put(held, LONG)
    for tokens, wanted in ((LONG, False), (LONG[:80], False), ([*LONG, 1], True), ([*LONG[:80], 1], True)):
        assert held.is_worth_keeping(text(tokens), 0, is_other=False) is wanted


def test_a_conversation_that_went_on_replaces_what_it_was() -> None:
    held = swap()
    first = put(held, LONG[:80])
    second = put(held, LONG)
    assert (first in held, second in held) == (False, True)


def test_what_was_not_used_for_longest_leaves() -> None:
    held = swap()
    keys = [put(held, [i, *LONG], 400) for i in range(200, 204)]
    assert [key in held for key in keys] == [False, False, True, True]
    taken = held.take(held.best(asked([202, *LONG])))  # type: ignore[arg-type] # it is there
    assert taken.tokens == [202, *LONG]
    keys.append(put(held, [205, *LONG], 600))
    assert [key in held for key in keys] == [False, False, False, True, True]


def test_a_text_larger_than_all_memory_evicts_nothing() -> None:
    held = swap()
    first = put(held, LONG)
    second = held.put(SwappedText([7, *LONG], is_seen=True))
    assert not held.make_room(second, 1001)
    assert (first in held, second in held) == (True, False)


def test_a_conversation_is_not_replaced_if_more_would_be_lost_than_reused() -> None:
    held = swap()
    key = put(held, LONG)
    for num_common, stays in ((49, True), (50, False)):
        held.take(SwapMatch(key, num_common, num_common))
        assert (key in held) is stays


def test_the_one_that_spares_most_is_found_and_the_last_token_is_decoded() -> None:
    held = swap()
    assert held.best(asked(LONG)) is None
    short, long = put(held, [*LONG[:60], 3]), put(held, [*LONG[:90], 3])
    assert held.best(asked([*LONG, 1])) == SwapMatch(long, 90, 90)
    assert held.best(asked([*LONG[:60], 3, 4])) == SwapMatch(short, 61, 61)
    assert held.best(asked([*LONG[:90], 3])) == SwapMatch(long, 90, 90)


texts = st.lists(st.integers(0, 2), min_size=1, max_size=12)
moves = st.lists(st.tuples(st.sampled_from(["put", "take"]), texts, st.integers(1, 60)), max_size=40)


@given(moves)
def test_there_is_never_more_than_there_is_room_for(moves: list[tuple[str, list[int], int]]) -> None:
    held = swap(max_bytes=100, min_rows=2)
    for move, tokens, num_bytes in moves:
        if move == "put" and held.is_worth_keeping(text(tokens), 0, is_other=False):
            key = held.put(SwappedText(tokens, is_seen=False))
            held.make_room(key, num_bytes)
            assert key in held
        elif move == "take" and (found := held.best(asked(tokens))) is not None:
            common = held[found.key].tokens[: found.num_reused]
            assert common == tokens[: found.num_reused] and found.num_reused < len(tokens)
            assert held.take(found).tokens[: found.num_reused] == common
        assert held.num_bytes <= 100


def test_a_question_with_its_answer_is_worth_it() -> None:
    """A few sentences, which a processor reads for a second or more."""
    assert HostSwap(1000).is_worth_keeping(text(LONG), 0, is_other=False)
    assert not HostSwap(1000).is_worth_keeping(text(LONG[:40]), 0, is_other=False)


def put_ahead(held: HostSwap, tokens: list[int], num_bytes: int = 100) -> int:
    key = held.put(SwappedText(tokens, is_seen=True, is_in_slot=True))
    assert held.make_room(key, num_bytes)
    return key


def test_what_a_slot_still_holds_is_dropped_first() -> None:
    held = swap(max_bytes=300)
    old, ahead = put(held, LONG), put_ahead(held, LONG[1:])
    young, newest = put(held, LONG[2:]), put(held, LONG[3:])
    assert [key in held for key in (old, ahead, young, newest)] == [True, False, True, True]


def test_a_copy_made_ahead_is_kept_when_its_conversation_leaves_and_is_then_the_newest() -> None:
    held = swap(max_bytes=200)
    ahead, other = put_ahead(held, LONG), put(held, LONG[1:])
    held.settle(ahead, is_left=True)
    newest = put(held, LONG[2:])
    assert [key in held for key in (ahead, other, newest)] == [True, False, True]


def test_a_copy_made_ahead_is_dropped_when_its_conversation_goes_on() -> None:
    held = swap()
    held.settle(put_ahead(held, LONG), is_left=False)
    assert held.num_bytes == 0
    assert held.is_worth_keeping(text(LONG), 0, is_other=False)


@pytest.mark.parametrize(("num_bytes", "wanted"), [(200, True), (201, False)])
def test_there_is_room_for_what_fits_beside_the_others(num_bytes: int, wanted: bool) -> None:
    held = swap(max_bytes=300)
    put(held, LONG)
    assert held.has_room(num_bytes) is wanted


def test_texts_with_other_adapters_are_other_texts() -> None:
    held = swap()
    plain, adapted = put(held, LONG), held.put(text([*LONG, 1], ((0, 1.0),)))
    assert plain in held
    assert held.make_room(adapted, 100)
    assert held.best(asked([*LONG, 1, 2])) == SwapMatch(plain, 100, 100)
    assert held.best(asked([*LONG, 1, 2], ((0, 1.0),))) == SwapMatch(adapted, 101, 101)
    assert held.best(asked([*LONG, 1, 2], ((0, 0.5),))) is None
    assert (held.num_held(asked([*LONG, 1, 2])), held.num_held(asked(LONG, ((0, 0.5),)))) == (100, 0)
    assert held.is_worth_keeping(text(LONG, ((0, 0.5),)), 0, is_other=False)
    assert not held.is_worth_keeping(text(LONG, ((0, 1.0),)), 0, is_other=False)
