"""Prefixes that slots copy from each other: computed once, reported as cached, right in every cache, never awaited in
vain. After any mix of requests and cancels every cell is accounted for."""

from __future__ import annotations

import pytest
from doubles.conversing_harness import KINDS, TABLE, Conversing, ask, cached, make_drafter
from doubles.drafters import NoDrafter
from doubles.engine_harness import AnswerResult, EngineHarness, plain_text
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import ChatRequest

STEM = tuple(1 + (i * i * 5 + i) % 23 for i in range(60))


def readers() -> list[ChatRequest]:
    """Return three requests with the same long beginning."""
    return [ask(str(i), (*STEM, 1 + i, 2, 3), max_tokens=3) for i in range(3)]


def finish_whole(conversing: Conversing, *, but: str = "") -> dict[str, AnswerResult]:
    """Every answer is whole, except for one."""
    result = conversing.finish()
    for one in conversing.asked:
        assert one.id == but or result[one.id].tokens == plain_text(TABLE, one), one.id
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_slots", "branches"), [(4, 0), (2, 2), (16, 0)])
def test_a_shared_prompt_is_computed_once(kind: str, num_slots: int, branches: int) -> None:
    drafter = make_drafter(kind, branches=branches)
    harness = EngineHarness(TABLE, drafter, num_draft_tokens=2, num_slots=num_slots, n_batch=48, branches=branches)
    asked = [ask(str(i), (*STEM, 1 + i, 2, 3), max_tokens=2) for i in range(num_slots)]
    conversing = Conversing(harness)
    conversing.submit(*asked)
    conversing.step()
    assert sum(harness.context.decodes) == 48  # the first takes the whole batch; no other slot repeats it
    result = finish_whole(conversing)
    margin = drafter.traits.reuse_margin
    assert [cached(result[one.id]) for one in asked] == [0] + [len(STEM) - margin] * (num_slots - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_idle_or_running_slot_holds_is_taken_over(kind: str) -> None:
    drafter = make_drafter(kind)
    harness = EngineHarness(TABLE, drafter, num_draft_tokens=2, num_slots=3)
    first = harness.run([ask("first", STEM, max_tokens=5)])["first"]
    chat = (*STEM, *first.tokens)
    running, other = ask("running", (*chat, 3, 4), max_tokens=40), ask("other", (*STEM[:50], 7))
    conversing = Conversing(harness)
    conversing.submit(running)
    conversing.step()
    conversing.submit(other)
    result = finish_whole(conversing)
    assert cached(result["running"]) == len(chat) - 1
    assert cached(result["other"]) == 50 - drafter.traits.reuse_margin
    onward = ask("onward", (*STEM[:50], 7, *result["other"].tokens, 9))
    conversing.submit(onward)
    finish_whole(conversing)
    assert cached(result["onward"]) == 50 + len(result["other"].tokens)  # the next turn finds what was taken over


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_shared", [0, 40])
def test_another_owner_copies_no_more_than_what_is_shared(kind: str, num_shared: int) -> None:
    """Whether the other's slot is idle, running or still reading the very same prompt."""
    drafter = make_drafter(kind)
    harness = EngineHarness(TABLE, drafter, num_draft_tokens=2, num_slots=4, shared=STEM[:num_shared])
    harness.run([ask("idle", STEM, owner="ann", max_tokens=5)])
    conversing = Conversing(harness)
    conversing.submit(ask("running", (*STEM, 3, 4), owner="ann", max_tokens=40))
    conversing.step()
    conversing.submit(*[ask(f"{owner} reads", (*STEM, 9, 9, 9), owner=owner) for owner in ("bob", "carol")])
    result = finish_whole(conversing)
    expected = num_shared - drafter.traits.reuse_margin if num_shared else 0
    assert [cached(result[f"{owner} reads"]) for owner in ("bob", "carol")] == [expected] * 2


@pytest.mark.parametrize("kind", ["eagle3", "model"])
def test_a_right_drafter_stays_right_after_a_prefix_that_was_taken_over(kind: str) -> None:
    harness = EngineHarness(TABLE, make_drafter(kind), num_draft_tokens=4, num_slots=3)
    result = harness.run([ask(str(i), (*STEM[: 50 + i], 9), max_tokens=20) for i in range(6)])
    for answer in result.values():
        assert answer.finished is not None
        speculation = answer.finished.speculation
        assert speculation.accepted_tokens == speculation.draft_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5])
def test_no_request_waits_for_a_cancelled_prefill(kind: str, num_steps: int) -> None:
    """The next one reads on from where the first one stopped, and the third waits for that."""
    harness = EngineHarness(TABLE, make_drafter(kind), num_draft_tokens=2, num_slots=3, n_batch=16)
    conversing = Conversing(harness)
    conversing.submit(*readers())
    for _ in range(num_steps):
        conversing.step()
    conversing.cancel("0")
    result = finish_whole(conversing, but="0")
    assert 0 < cached(result["1"]) < cached(result["2"]) or num_steps > 3
    assert cached(result["2"]) >= len(STEM) - 1


@pytest.mark.parametrize("number", range(4))
def test_no_request_waits_for_a_failed_prefill(number: int) -> None:
    harness = EngineHarness(TABLE, make_drafter("eagle3"), num_draft_tokens=2, num_slots=3, n_batch=16)
    harness.context.refused = {number}
    conversing = Conversing(harness)
    conversing.submit(*readers())
    assert finish_whole(conversing, but="0")["0"].failed is not None


def test_a_waiting_request_can_be_cancelled() -> None:
    harness = EngineHarness(TABLE, make_drafter("eagle3"), num_draft_tokens=2, num_slots=3, n_batch=16)
    conversing = Conversing(harness)
    conversing.submit(*readers())
    conversing.step()
    assert "1" not in conversing.results  # it is result of as started when it starts
    conversing.cancel("1")
    result = finish_whole(conversing, but="1")
    assert result["1"].started is None
    assert result["1"].finished is not None and result["1"].finished.reason == "cancelled"


@pytest.mark.parametrize("min_fork", [None, 61])
def test_too_little_is_not_copied(min_fork: int | None) -> None:
    harness = EngineHarness(TABLE, NoDrafter(), num_slots=2, min_fork=min_fork)
    result = harness.run([ask("0", (*STEM, 1)), ask("1", (*STEM, 2))])
    assert [cached(answer) for answer in result.values()] == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(data=st.data())
def test_any_mix_of_requests_and_cancels_keeps_texts_and_books(kind: str, data: st.DataObject) -> None:
    num_slots = data.draw(st.integers(1, 4), "slots")
    branches = data.draw(st.integers(0, 2), "branches") if num_slots <= 2 else 0
    harness = EngineHarness(
        TABLE,
        make_drafter(kind, branches=branches),
        num_draft_tokens=data.draw(st.integers(0, 4), "draft"),
        num_slots=num_slots,
        n_batch=data.draw(st.sampled_from([6, 16, 48]), "n_batch"),
        branches=branches,
        min_fork=data.draw(st.sampled_from([1, 3, 10]), "min_fork"),
    )
    harness.context.refused = {data.draw(st.integers(0, 60), "refused")} if data.draw(st.booleans(), "fails") else set()
    conversing = Conversing(harness)
    asked = conversing.asked
    for _ in range(data.draw(st.integers(1, 40), "moves")):
        move = data.draw(st.sampled_from(["ask", "step", "step", "cancel"]))
        if move == "ask" and len(asked) < 12:
            tail = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
            prompt = (*STEM[: data.draw(st.integers(0, 60))], *tail)
            owner, max_tokens = data.draw(st.sampled_from("abc")), data.draw(st.integers(1, 12))
            conversing.submit(ask(str(len(asked)), prompt, owner=owner, max_tokens=max_tokens))
        elif move == "cancel" and asked:
            conversing.cancel(data.draw(st.sampled_from(asked)).id)
        else:
            conversing.step()
    conversing.finish()
