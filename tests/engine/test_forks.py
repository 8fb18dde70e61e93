"""Prefixes that slots copy from each other: computed once, reported as cached, right in every cache, never awaited in
vain. After any mix of requests and cancels every cell is accounted for."""

from __future__ import annotations

import pytest
from doubles.drafters import DrafterOnly, NoDrafter
from doubles.engine_harness import AnswerResult, EngineHarness, plain_text
from doubles.scripted_context import ScriptedContext, ScriptedHead, Table
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.ngram import Ngram

TABLE = Table(seed=1)
STEM = tuple(1 + (i * i * 5 + i) % 23 for i in range(60))
KINDS = ("none", "eagle3", "model", "ngram", "no slot state")


def drafter_of(kind: str, *, branches: int = 0) -> Drafter:
    if kind == "eagle3":
        return Eagle3(ScriptedHead(TABLE), (0,), branches=1 + (branches > 0))
    if kind == "no slot state":
        return DrafterOnly(Eagle3(ScriptedHead(TABLE), (0,)))
    if kind == "model":
        return DraftModel(ScriptedContext(TABLE, gives_features=False, num_branches=branches), branches=1)
    return Ngram(128) if kind == "ngram" else NoDrafter()


def ask(name: str, prompt: tuple[int, ...], *, owner: str = "", max_tokens: int = 6) -> ChatRequest:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return ChatRequest(id=name, tokens=prompt, params=params, owner=owner)


def step(harness: EngineHarness, result: dict[str, AnswerResult]) -> None:
    for event in harness.engine.step():
        result.setdefault(event.request_id, AnswerResult()).add(event)
    assert harness.engine.miscounted_slots() == []


def finish(harness: EngineHarness, result: dict[str, AnswerResult]) -> dict[str, AnswerResult]:
    for _ in range(3000):
        if not harness.engine.has_work:
            return result
        step(harness, result)
    raise AssertionError("the engine does not come to an end")


def assert_plain(result: dict[str, AnswerResult], *asked: ChatRequest) -> None:
    for one in asked:
        assert result[one.id].tokens == plain_text(TABLE, one), one.id


def cached(result: AnswerResult) -> int:
    assert result.started is not None
    return result.started.cached_tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_slots", "branches"), [(4, 0), (2, 2), (16, 0)])
def test_a_shared_prompt_is_computed_once(kind: str, num_slots: int, branches: int) -> None:
    drafter = drafter_of(kind, branches=branches)
    harness = EngineHarness(TABLE, drafter, num_draft_tokens=2, num_slots=num_slots, n_batch=48, branches=branches)
    asked = [ask(str(i), (*STEM, 1 + i, 2, 3), max_tokens=2) for i in range(num_slots)]
    result: dict[str, AnswerResult] = {}
    for one in asked:
        harness.engine.submit(one)
    step(harness, result)
    assert sum(harness.context.decodes) == 48  # the first takes the whole batch, nobody computes the same beside it
    finish(harness, result)
    assert_plain(result, *asked)
    margin = drafter.traits.reuse_margin
    assert [cached(result[one.id]) for one in asked] == [0] + [len(STEM) - margin] * (num_slots - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_idle_or_running_slot_holds_is_taken_over(kind: str) -> None:
    drafter = drafter_of(kind)
    harness = EngineHarness(TABLE, drafter, num_draft_tokens=2, num_slots=3)
    result = harness.run([ask("first", STEM, max_tokens=5)])
    chat = (*STEM, *result["first"].tokens)
    running, other = ask("running", (*chat, 3, 4), max_tokens=40), ask("other", (*STEM[:50], 7), owner="someone else")
    harness.engine.submit(running)
    step(harness, result)
    harness.engine.submit(other)
    finish(harness, result)
    assert_plain(result, running, other)
    assert cached(result["running"]) == len(chat) - 1
    assert cached(result["other"]) == 50 - drafter.traits.reuse_margin
    onward = ask("onward", (*STEM[:50], 7, *result["other"].tokens, 9))
    harness.engine.submit(onward)
    finish(harness, result)
    assert_plain(result, onward)
    assert cached(result["onward"]) == 50 + len(result["other"].tokens)  # the next turn finds what was taken over


@pytest.mark.parametrize("kind", ["eagle3", "model"])
def test_a_right_drafter_stays_right_after_a_prefix_that_was_taken_over(kind: str) -> None:
    harness = EngineHarness(TABLE, drafter_of(kind), num_draft_tokens=4, num_slots=3)
    result = harness.run([ask(str(i), (*STEM[: 50 + i], 9), max_tokens=20) for i in range(6)])
    for answer in result.values():
        assert answer.finished is not None
        speculation = answer.finished.speculation
        assert speculation.accepted_tokens == speculation.draft_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5])
def test_nobody_waits_for_a_reader_that_is_cancelled(kind: str, num_steps: int) -> None:
    """The next one reads on from where the first one stopped, and the third waits for that."""
    harness = EngineHarness(TABLE, drafter_of(kind), num_draft_tokens=2, num_slots=3, n_batch=16)
    asked = [ask(str(i), (*STEM, 1 + i, 2, 3), max_tokens=3) for i in range(3)]
    result: dict[str, AnswerResult] = {}
    for one in asked:
        harness.engine.submit(one)
    for _ in range(num_steps):
        step(harness, result)
    harness.engine.cancel("0")
    finish(harness, result)
    assert_plain(result, *asked[1:])
    assert 0 < cached(result["1"]) < cached(result["2"]) or num_steps > 3
    assert cached(result["2"]) >= len(STEM) - 1


@pytest.mark.parametrize("number", range(4))
def test_nobody_waits_for_a_reader_that_fails(number: int) -> None:
    harness = EngineHarness(TABLE, drafter_of("eagle3"), num_draft_tokens=2, num_slots=3, n_batch=16)
    harness.context.refused = {number}
    asked = [ask(str(i), (*STEM, 1 + i, 2, 3), max_tokens=3) for i in range(3)]
    result: dict[str, AnswerResult] = {}
    for one in asked:
        harness.engine.submit(one)
    finish(harness, result)
    assert result["0"].failed is not None
    assert_plain(result, *asked[1:])


def test_a_waiting_request_can_be_cancelled() -> None:
    harness = EngineHarness(TABLE, drafter_of("eagle3"), num_draft_tokens=2, num_slots=3, n_batch=16)
    result: dict[str, AnswerResult] = {}
    asked = [ask(str(i), (*STEM, 1 + i, 2, 3), max_tokens=3) for i in range(3)]
    for one in asked:
        harness.engine.submit(one)
    step(harness, result)
    assert "1" not in result  # it is told of as started when it starts
    harness.engine.cancel("1")
    finish(harness, result)
    assert result["1"].started is None
    assert result["1"].finished is not None and result["1"].finished.reason == "cancelled"
    assert_plain(result, asked[0], asked[2])


@pytest.mark.parametrize("min_fork", [None, 61])
def test_too_little_is_not_copied(min_fork: int | None) -> None:
    harness = EngineHarness(TABLE, NoDrafter(), num_slots=2, min_fork=min_fork)
    result = harness.run([ask("0", (*STEM, 1)), ask("1", (*STEM, 2))])
    assert [cached(answer) for answer in result.values()] == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_mix_of_requests_and_cancels_keeps_texts_and_books(kind: str, data: st.DataObject) -> None:
    num_slots = data.draw(st.integers(1, 4), "slots")
    branches = data.draw(st.integers(0, 2), "branches") if num_slots <= 2 else 0
    harness = EngineHarness(
        TABLE,
        drafter_of(kind, branches=branches),
        num_draft_tokens=data.draw(st.integers(0, 4), "draft"),
        num_slots=num_slots,
        n_batch=data.draw(st.sampled_from([6, 16, 48]), "n_batch"),
        branches=branches,
        min_fork=data.draw(st.sampled_from([1, 3, 10]), "min_fork"),
    )
    harness.context.refused = {data.draw(st.integers(0, 60), "refused")} if data.draw(st.booleans(), "fails") else set()
    asked: list[ChatRequest] = []
    cancelled: set[str] = set()
    result: dict[str, AnswerResult] = {}
    for _ in range(data.draw(st.integers(1, 40), "moves")):
        move = data.draw(st.sampled_from(["ask", "step", "step", "cancel"]))
        if move == "ask" and len(asked) < 12:
            tail = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
            prompt = (*STEM[: data.draw(st.integers(0, 60))], *tail)
            owner = data.draw(st.sampled_from("abc"))
            asked.append(ask(str(len(asked)), prompt, owner=owner, max_tokens=data.draw(st.integers(1, 12))))
            harness.engine.submit(asked[-1])
        elif move == "cancel" and asked:
            cancelled.add(name := data.draw(st.sampled_from(asked)).id)
            harness.engine.cancel(name)
            assert harness.engine.miscounted_slots() == []
        else:
            step(harness, result)
    finish(harness, result)
    for one in asked:
        plain, got = plain_text(TABLE, one), result[one.id]
        assert got.tokens == plain[: len(got.tokens)]
        assert got.failed or one.id in cancelled or got.tokens == plain
