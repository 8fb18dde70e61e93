"""Conversations that leave their slot for main memory and come back: not read again, right in every cache, never with
another owner's draft; if memory is short, as if there were no swap."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterator

import pytest
from doubles.conversing_harness import KINDS, TABLE, Conversing, ask, cached, make_drafter
from doubles.drafters import FlakyDrafter, NoDrafter
from doubles.engine_harness import AnswerResult, EngineHarness, plain_text
from doubles.property_tests import examples
from doubles.restricted_contexts import NUM_SNAPSHOTS, RecurrentContext, SlidingWindowContext
from doubles.scripted_context import ScriptedContext, ScriptedHead
from doubles.tiers import some_of
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.batch import Bytes
from eaglelocal.core.request import AUTO_SPEC, ChatRequest
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.engine import slot_caches
from eaglelocal.scheduler.host_swap import HostSwap
from eaglelocal.scheduler.slot import Checkpoints

TEXTS = [tuple(1 + (i * i * a + i * b + a) % 23 for i in range(60)) for a, b in ((5, 1), (3, 2), (7, 3), (2, 5))]
PLENTY = 10**6


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """Copies of scripted cells are a few hundred bytes: several pieces each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_caches, "PIECE_BYTES", 150)
        yield


def harness_of(
    kind: str,
    *,
    num_slots: int = 1,
    most_bytes: int = PLENTY,
    context_kind: type[ScriptedContext] = ScriptedContext,
    shared: tuple[int, ...] = (),
) -> EngineHarness:
    return EngineHarness(
        TABLE,
        make_drafter(kind),
        num_draft_tokens=3,
        num_slots=num_slots,
        swap=HostSwap(most_bytes, min_rows=20),
        context_kind=context_kind,
        shared=shared,
    )


def run(harness: EngineHarness, *asked: ChatRequest) -> dict[str, AnswerResult]:
    result = harness.run(asked)
    assert harness.engine.miscounted_slots() == []
    for one in asked:
        assert result[one.id].tokens == plain_text(TABLE, one), one.id
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_slots", [1, 2])
def test_a_conversation_that_goes_on_is_not_read_anew(kind: str, num_slots: int) -> None:
    harness = harness_of(kind, num_slots=num_slots)
    chats = [list(text) for text in TEXTS]
    for turn in range(3):
        for number, chat in enumerate(chats):
            result = run(harness, ask(f"{turn} {number}", tuple(chat)))[f"{turn} {number}"]
            if turn:  # the last token of an answer is in no cache, and two are new
                assert cached(result) == len(chat) - 3
            chat += [*result.tokens, 1 + turn, 2]
    assert harness.context.swaps > len(TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_is_edited_goes_on_from_where_it_is_as_it_was(kind: str) -> None:
    harness = harness_of(kind)
    run(harness, ask("a", TEXTS[0]))
    run(harness, ask("b", TEXTS[1]))
    result = run(harness, ask("edited", (*TEXTS[0][:40], 5, 6)))
    assert cached(result["edited"]) == 40 - make_drafter(kind).traits.reuse_margin


@pytest.mark.parametrize("kind", ["eagle3", "model"])
def test_a_right_drafter_stays_right(kind: str) -> None:
    """What it knew of the conversation comes back with it."""
    harness = harness_of(kind)
    for name, prompt in (("a", TEXTS[0]), ("b", TEXTS[1]), ("on", (*TEXTS[0], 5)), ("edited", (*TEXTS[1][:45], 7))):
        result = run(harness, ask(name, prompt, max_tokens=20))[name]
        assert result.finished is not None
        stats = result.finished.speculation
        assert stats.accepted_tokens == stats.draft_tokens > 0, name
    assert harness.context.swaps == 3


def test_the_head_has_all_of_the_text_again() -> None:
    head = ScriptedHead(TABLE)
    harness = EngineHarness(TABLE, Eagle3(head, (0,)), num_draft_tokens=3, swap=HostSwap(PLENTY, min_rows=20))
    run(harness, ask("a", TEXTS[0]))
    run(harness, ask("b", TEXTS[1]))
    read = head.encoded_rows
    run(harness, ask("on", (*TEXTS[0], 5), max_tokens=12))
    assert head.reach(0)[0] <= 1
    assert head.encoded_rows - read < 40  # of the new rows alone


def test_what_is_short_or_goes_on_stays_where_it_is() -> None:
    harness = harness_of("none")
    run(harness, ask("a", TEXTS[0][:10], max_tokens=2))
    run(harness, ask("b", TEXTS[1]))
    run(harness, ask("b2", (*TEXTS[1], 4)))
    run(harness, ask("b3", (*TEXTS[1][:35], 4)))
    assert harness.context.swaps == 0


def test_without_room_everything_is_read_anew() -> None:
    harness = harness_of("eagle3", most_bytes=0)
    for name, text in (("a", TEXTS[0]), ("b", TEXTS[1]), ("a2", TEXTS[0])):
        assert cached(run(harness, ask(name, text))[name]) == 0
    assert harness.context.swaps == 0


def test_no_more_is_kept_than_there_is_room_for() -> None:
    harness = harness_of("none", most_bytes=8 * 140)  # two of them
    for number in range(4):
        run(harness, ask(str(number), TEXTS[number]))
    assert len(harness.engine.caches.swapped) == 2  # what it holds, not what it says it holds
    held = sum(len(one.cells) for one in harness.engine.caches.swapped.values())
    assert harness.engine.snapshot().swapped_bytes == held > 0
    assert cached(run(harness, ask("old", (*TEXTS[0], 9)))["old"]) == 0
    assert cached(run(harness, ask("young", (*TEXTS[2], 9)))["young"]) == 60


class WatchedContext(ScriptedContext):
    """Tells what the engine holds while it copies."""

    def swap_out(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        self.held.append(held_bytes(self.harness))
        return super().swap_out(sequence, buffer)


def test_an_evicted_copy_is_freed_before_another_takes_its_room() -> None:
    harness = harness_of("none", most_bytes=8 * 70, context_kind=WatchedContext)  # for one of them
    harness.context.harness, harness.context.held = harness, []
    for number in range(4):
        run(harness, ask(str(number), TEXTS[number]))
    assert harness.context.held == [0, 0, 0]
    assert held_bytes(harness) > 0


@pytest.mark.parametrize("kind", ["eagle3", "model"])
def test_what_drafters_keep_counts(kind: str) -> None:
    harness = harness_of(kind, most_bytes=8 * 140)  # two of a target's alone
    for number in range(4):
        run(harness, ask(str(number), TEXTS[number]))
    (held,) = harness.engine.caches.swapped.values()
    ((_, cells),) = held.drafters
    assert 8 * 120 < held.cells.nbytes + cells.nbytes <= harness.scheduler.prefix_cache.swap.num_bytes <= 8 * 140


@pytest.mark.parametrize("kind", KINDS)
def test_two_ways_on_from_one_beginning_take_turns(kind: str) -> None:
    """Each shares more than half of its text with the other: whoever leaves the slot is not merely edited."""
    harness = harness_of(kind)
    ways = [[*TEXTS[0][:40], *TEXTS[1][:25]], [*TEXTS[0][:40], *TEXTS[2][:25]]]
    for turn in range(3):
        for number, way in enumerate(ways):
            one = dataclasses.replace(ask(f"{turn} {number}", tuple(way)), reuses_cache=turn > 0)
            result = run(harness, one)[one.id]
            assert turn == 0 or cached(result) == len(way) - 3
            way += [*result.tokens, 23, 23]


def test_a_draft_model_without_its_cells_reads_them_anew() -> None:
    context = ScriptedContext(TABLE, gives_features=False)
    context.swaps_fail = True
    harness = EngineHarness(TABLE, DraftModel(context), num_draft_tokens=3, swap=HostSwap(PLENTY, min_rows=20))
    run(harness, ask("a", TEXTS[0]))
    run(harness, ask("b", TEXTS[1]))
    for name, prompt, common in (("on", (*TEXTS[0], 5), 60), ("edited", (*TEXTS[1][:45], 7), 45)):
        result = run(harness, ask(name, prompt, max_tokens=20))[name]
        assert cached(result) == common and result.finished is not None
        stats = result.finished.speculation
        assert stats.accepted_tokens == stats.draft_tokens > 0, name


class SlowContext(ScriptedContext):
    def swap_out(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        time.sleep(0.2)
        return super().swap_out(sequence, buffer)


def test_the_time_of_a_copy_is_not_host_time() -> None:
    harness = EngineHarness(
        TABLE, NoDrafter(), num_slots=2, swap=HostSwap(PLENTY, min_rows=20), context_kind=SlowContext, min_fork=None
    )
    run(harness, ask("a", TEXTS[0]), ask("b", TEXTS[1]))
    before = harness.engine.snapshot().host_s
    run(harness, ask("c", TEXTS[2]), ask("d", TEXTS[3], max_tokens=30))
    assert harness.context.swaps == 3  # two in front of their first tokens, one between steps
    assert harness.engine.snapshot().host_s - before < 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_where_it_fails_the_prompt_is_read_anew(kind: str) -> None:
    harness = harness_of(kind)
    run(harness, ask("a", TEXTS[0]))
    harness.context.swaps_fail = True
    run(harness, ask("b", TEXTS[1]))  # a is lost
    harness.context.swaps_fail = False
    assert cached(run(harness, ask("a2", (*TEXTS[0], 3)))["a2"]) == 0  # b is swapped out
    harness.context.swaps_fail = True
    assert cached(run(harness, ask("b2", (*TEXTS[1], 3)))["b2"]) == 0  # it cannot come back
    harness.context.swaps_fail = False
    assert harness.scheduler.prefix_cache.swap.num_bytes == 0 and not harness.engine.caches.swapped


def test_another_slot_that_has_as_much_is_taken_rather() -> None:
    harness = harness_of("none", num_slots=2)
    run(harness, ask("a", TEXTS[0]))
    run(harness, ask("b", TEXTS[1]), ask("c", TEXTS[2]))  # a is swapped out
    run(harness, ask("beginning", (*TEXTS[0][:25], 3)))  # and stays there
    assert harness.context.swaps_in == 1
    result = run(harness, ask("one", (*TEXTS[0][:25], 4)), ask("too", (*TEXTS[0][:25], 5)))
    assert (cached(result["one"]), cached(result["too"]), harness.context.swaps_in) == (25, 25, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_whose_prefix_never_came_continues_from_ram(kind: str) -> None:
    """Somebody reads the same text anew, and goes away before it is there."""
    harness = EngineHarness(TABLE, make_drafter(kind), num_slots=2, n_batch=8, swap=HostSwap(PLENTY, min_rows=20))
    run(harness, ask("a", TEXTS[0]))
    run(harness, ask("b", TEXTS[1]), ask("c", TEXTS[2]))  # a is swapped out
    harness.engine.submit(dataclasses.replace(ask("anew", (*TEXTS[0], 4)), reuses_cache=False))
    result = harness.run([ask("on", (*TEXTS[0], 5))], cancel_at={"anew": 2})["on"]
    assert result.tokens == plain_text(TABLE, ask("on", (*TEXTS[0], 5)))
    assert (harness.context.swaps_in, cached(result)) == (1, len(TEXTS[0]) - make_drafter(kind).traits.reuse_margin)
    assert harness.engine.miscounted_slots() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_stays_can_be_used_again(kind: str) -> None:
    harness = harness_of(kind)
    run(harness, ask("a", TEXTS[0]))
    for turn, text in enumerate((TEXTS[1], TEXTS[2])):
        run(harness, ask(f"other {turn}", text))
        result = run(harness, ask(f"edited {turn}", (*TEXTS[0][: 25 + turn], 23, 23), max_tokens=30))[f"edited {turn}"]
        assert cached(result) == 25 + turn - make_drafter(kind).traits.reuse_margin
        assert result.finished is not None
        stats = result.finished.speculation
        assert stats.accepted_tokens == stats.draft_tokens or kind == "ngram"
    assert harness.context.swaps_in == 2


def little_and_more_go_on_from_it(harness: EngineHarness) -> AnswerResult:
    """Each time most of it stays."""
    run(harness, ask("a", TEXTS[0]))
    for turn, (common, max_tokens) in enumerate(((25, 1), (29, 20))):
        run(harness, ask(f"other {turn}", TEXTS[1 + turn]))
        result = run(harness, ask(f"edited {turn}", (*TEXTS[0][:common], 23, 23), max_tokens=max_tokens))
    assert harness.context.swaps_in == 2
    return result["edited 1"]


def test_what_stays_is_as_it_was_however_little_went_on_from_it() -> None:
    head = ScriptedHead(TABLE)
    little_and_more_go_on_from_it(
        EngineHarness(TABLE, Eagle3(head, (0,)), num_draft_tokens=3, swap=HostSwap(PLENTY, min_rows=20))
    )
    assert head.reach(0)[0] <= 1 and head.reach(0)[1] > 31


def test_a_draft_model_that_went_on_from_a_little_goes_on_from_more() -> None:
    result = little_and_more_go_on_from_it(harness_of("model"))
    assert result.finished is not None
    stats = result.finished.speculation
    assert stats.accepted_tokens == stats.draft_tokens > 0


@pytest.mark.parametrize("seed", range(5))
def test_branches_of_trees_hold_nothing_of_what_was_there(seed: int) -> None:
    drafter = FlakyDrafter(TABLE.n_vocab, seed)
    harness = EngineHarness(TABLE, drafter, spec=AUTO_SPEC, branches=2, swap=HostSwap(PLENTY, min_rows=20))
    for name, prompt in (("a", TEXTS[0][:40]), ("b", TEXTS[1]), ("a2", (*TEXTS[0][:40], 3)), ("b2", (*TEXTS[1], 4))):
        run(harness, ask(name, prompt, max_tokens=24))
    assert harness.context.swaps_in == 2 and harness.context.tree_rows > 0


def test_what_one_owner_was_answered_is_drafted_for_no_other() -> None:
    """The other's prompt ends where the first one's did; only the first one has the answer to draft from."""
    harness = harness_of("ngram", shared=TEXTS[0])
    answer = tuple(run(harness, ask("a", TEXTS[0], owner="ann", max_tokens=20))["a"].tokens)
    run(harness, ask("b", TEXTS[1], owner="bob"))
    result = run(harness, ask("same", TEXTS[0], owner="bob", max_tokens=20))["same"]
    assert tuple(result.tokens) == answer and cached(result) == len(TEXTS[0]) - 1
    fresh = harness_of("ngram")
    alone = run(fresh, ask("same", TEXTS[0], owner="bob", max_tokens=20))["same"]
    assert [result.finished and result.finished.speculation.draft_tokens] == [
        alone.finished and alone.finished.speculation.draft_tokens
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_slots", [1, 2])
@pytest.mark.parametrize("num_shared", [0, 40])
def test_of_anothers_conversation_in_ram_no_more_comes_back_than_is_shared(
    kind: str, num_slots: int, num_shared: int
) -> None:
    harness = harness_of(kind, num_slots=num_slots, shared=TEXTS[0][:num_shared])
    run(harness, ask("ann", TEXTS[0], owner="ann", max_tokens=5))
    for number in range(num_slots):
        run(harness, ask(f"bob {number}", TEXTS[1 + number], owner="bob"))
    result = run(harness, ask("guess", (*TEXTS[0], 7, 7), owner="bob"))["guess"]
    margin = make_drafter(kind).traits.reuse_margin
    assert cached(result) == (num_shared - margin if num_shared else 0)
    assert harness.context.swaps > 0


def wait(harness: EngineHarness) -> int:
    """Let the engine idle, and return the number of pieces of work that it found to do."""
    num_pieces = 0
    while harness.engine.work_ahead():
        num_pieces += 1
        check_books(harness)
    return num_pieces


def run_to_first_token(harness: EngineHarness, request: ChatRequest) -> AnswerResult:
    harness.engine.submit(request)
    result = AnswerResult()
    while not result.tokens:
        for event in harness.engine.step():
            result.add(event)
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_made_while_nothing_waits_and_not_in_front_of_a_first_token(kind: str) -> None:
    harness = harness_of(kind, num_slots=2)
    run(harness, ask("a", TEXTS[0], max_tokens=1))
    run(harness, ask("b", TEXTS[1], max_tokens=1))
    assert harness.context.swaps == 0
    assert wait(harness) >= 3  # memory in pieces, then the copy
    assert harness.context.swaps == 1  # the last one probably goes on
    run_to_first_token(harness, ask("c", TEXTS[2], max_tokens=40))
    assert harness.context.swaps == 1
    harness.run([])  # behind it, beside the answer
    assert harness.context.swaps == 2
    for name, text in (("a2", TEXTS[0]), ("b2", TEXTS[1])):
        assert cached(run(harness, ask(name, (*text, 5)))[name]) == len(text)
    assert harness.context.swaps_in == 2


def test_no_copy_is_begun_while_a_prompt_is_read() -> None:
    harness = EngineHarness(TABLE, NoDrafter(), num_slots=3, n_batch=8, swap=HostSwap(PLENTY, min_rows=20))
    for name, text in zip("abc", TEXTS, strict=False):
        run(harness, ask(name, text, max_tokens=1))
    harness.engine.submit(ask("long", TEXTS[3], max_tokens=1))
    harness.engine.step()
    while harness.engine.has_work:
        assert harness.context.swaps == 1  # its slot's conversation, in front
        assert not harness.engine.work_ahead()
        harness.engine.step()
    assert wait(harness) > 0 and harness.context.swaps == 3


@pytest.mark.parametrize("cut", [60, 45])
def test_a_copy_is_dropped_when_its_conversation_goes_on(cut: int) -> None:
    harness = harness_of("eagle3", num_slots=2)
    run(harness, ask("a", TEXTS[0], max_tokens=1))
    run(harness, ask("b", TEXTS[1], max_tokens=1))
    wait(harness)
    assert held_bytes(harness) > 0
    harness.engine.submit(ask("a2", (*TEXTS[0][:cut], 5, 6)))
    harness.engine.step()
    assert held_bytes(harness) == harness.scheduler.prefix_cache.swap.num_bytes == 0
    harness.run([])
    assert harness.context.swaps_in == 0


def test_copies_ahead_evict_nothing_and_are_evicted_first() -> None:
    harness = harness_of("none", num_slots=2, most_bytes=8 * 140)  # two of them
    for number in range(3):
        run(harness, ask(str(number), TEXTS[number]))
    wait(harness)  # 0 was evicted from its slot, and 1 is copied
    assert (harness.context.swaps, len(harness.engine.caches.swapped)) == (2, 2)
    run(harness, ask("1 goes on", (*TEXTS[1], 5)))
    wait(harness)  # 2 is copied
    run(harness, ask("1 goes on again", (*TEXTS[1], 5, 6)), ask("3", TEXTS[3]))  # 2 is evicted, and 0 stays
    swaps = harness.context.swaps
    assert wait(harness) == 0 and harness.context.swaps == swaps  # there is no room
    assert cached(run(harness, ask("old", (*TEXTS[0], 9)))["old"]) == 60


def test_a_conversation_alone_is_not_copied_but_those_that_take_turns_are() -> None:
    harness = harness_of("none")
    run(harness, ask("a", TEXTS[0], max_tokens=1))
    assert wait(harness) == 0
    run(harness, ask("b", TEXTS[1], max_tokens=1))
    assert harness.context.swaps == 1
    assert wait(harness) > 0 and harness.context.swaps == 2
    run_to_first_token(harness, ask("a2", (*TEXTS[0], 5)))
    assert harness.context.swaps == 2


def test_a_copy_that_fails_is_not_tried_over_and_over() -> None:
    harness = harness_of("none", num_slots=2)
    run(harness, ask("a", TEXTS[0], max_tokens=1))
    run(harness, ask("b", TEXTS[1], max_tokens=1))
    harness.context.swaps_fail = True
    assert 0 < wait(harness) < 10
    assert harness.scheduler.prefix_cache.swap.num_bytes == 0
    harness.context.swaps_fail = False
    run(harness, ask("c", TEXTS[2]))
    assert cached(run(harness, ask("a2", (*TEXTS[0], 5)))["a2"]) == 60


def turn_of(chat: list[int], name: str, rng: random.Random) -> ChatRequest:
    """It goes on, or is edited somewhere. Now and then another owner sends it."""
    cut = rng.choice([rng.randint(1, len(chat)), rng.randint(len(chat) // 2, len(chat)), len(chat), len(chat)])
    prompt = (*chat[: min(cut, 90)], rng.randint(1, 3))
    owner = "ab"[chat[0] % 2] if rng.random() < 0.9 else "c"
    return ask(name, prompt, owner=owner, max_tokens=rng.randint(1, 12))


def check_books(harness: EngineHarness) -> None:
    assert harness.engine.miscounted_slots() == []
    assert all(key in harness.scheduler.prefix_cache.swap for key in harness.engine.caches.swapped)
    assert (
        held_bytes(harness)
        <= harness.scheduler.prefix_cache.swap.num_bytes
        <= harness.scheduler.prefix_cache.swap.max_bytes
    )
    pending = harness.engine.caches.pending
    assert pending is None or harness.scheduler.prefix_cache.swap.has_room(len(pending.buffer))


def held_bytes(harness: EngineHarness) -> int:
    held = harness.engine.caches.swapped.values()
    cells = [one.cells for one in held] + [known[1] for one in held for known in one.drafters if known]
    states = [state for one in held for state in one.states.values()]
    return sum([len(each) for each in cells if each is not None]) + sum(map(len, states))


def live(harness: EngineHarness, rng: random.Random, *, num_moves: int, most_asked: int) -> None:
    """Conversations go on, are changed and cancelled, and copies fail at times: texts are the plain ones."""
    harness.context.refused = {rng.randint(0, 60)} if rng.random() < 0.5 else set()
    conversing = Conversing(harness, check_books)
    asked = conversing.asked
    chats = [list(text[:30]) for text in TEXTS]
    for _ in range(num_moves):
        move = rng.choice(["ask", "step", "step", "step", "cancel", "fail", "wait", "wait"])
        if move == "ask" and len(asked) < most_asked:
            chat = rng.choice(chats)
            conversing.submit(turn_of(chat, str(len(asked)), rng))
            chat[:] = [*asked[-1].tokens, *plain_text(TABLE, asked[-1])]
        elif move == "cancel" and asked:
            conversing.cancel(rng.choice(asked).id)
        elif move == "fail":
            harness.context.swaps_fail = rng.random() < 0.2
        elif move == "wait":
            harness.engine.work_ahead()
            check_books(harness)
        else:
            conversing.step()
    conversing.finish()


@pytest.mark.parametrize("kind", KINDS)
@examples(60)
@given(data=st.data())
def test_any_mix_of_requests_and_cancels_keeps_texts_and_books(kind: str, data: st.DataObject) -> None:
    num_slots = data.draw(st.integers(1, 3), "slots")
    branches = data.draw(st.integers(0, 2), "branches") if num_slots <= 2 else 0
    harness = EngineHarness(
        TABLE,
        make_drafter(kind, branches=branches),
        num_draft_tokens=data.draw(st.integers(0, 4), "draft"),
        num_slots=num_slots,
        n_batch=data.draw(st.sampled_from([6, 16, 48]), "n_batch"),
        branches=branches,
        min_fork=data.draw(st.sampled_from([None, 3]), "min_fork"),
        swap=HostSwap(data.draw(st.sampled_from([600, 1500, PLENTY]), "room"), min_rows=data.draw(st.integers(1, 20))),
    )
    live(harness, data.draw(st.randoms()), num_moves=data.draw(st.integers(1, 50), "moves"), most_asked=14)


@pytest.mark.parametrize("seed", some_of([0, *some_of([1, 2, 3], rest=pytest.mark.slow)]))
@pytest.mark.parametrize("num_slots", [1, 2, 3])
@pytest.mark.parametrize("kind", [*KINDS, "wrong"])
@pytest.mark.parametrize("context_kind", [ScriptedContext, RecurrentContext, SlidingWindowContext])
def test_much_that_comes_and_goes_gets_the_plain_texts(
    context_kind: type[ScriptedContext], kind: str, num_slots: int, seed: int
) -> None:
    """In caches that are cut anywhere, go back to saved states, or hold of some layers what was copied alone."""
    rng = random.Random(seed)
    harness = EngineHarness(
        TABLE,
        make_drafter(kind),
        num_draft_tokens=rng.randint(1, NUM_SNAPSHOTS),
        spec=AUTO_SPEC if kind == "wrong" else None,
        num_slots=num_slots,
        n_batch=rng.choice([16, 48]),
        min_fork=3 if context_kind is ScriptedContext else None,
        context_kind=context_kind,
        swap=HostSwap(
            rng.choice([1500, PLENTY]), min_rows=rng.randint(3, 12), has_windows=context_kind is SlidingWindowContext
        ),
        most_drafted=NUM_SNAPSHOTS if context_kind is RecurrentContext else None,
    )
    if context_kind is RecurrentContext:
        prefix_cache = harness.scheduler.prefix_cache
        prefix_cache.can_cut, prefix_cache.checkpoints = False, Checkpoints(rng.randint(1, 6), min_gain_rows=3)
    live(harness, rng, num_moves=600, most_asked=80)
    assert harness.context.swaps_in > 3
