"""Edge cases of the engine: full batches, refused decodes, cancels before a row, duplicate ids, tiny prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.drafters import NoDrafter
from doubles.engine_harness import AnswerResult, EngineHarness, drive, plain_text
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedContext, ScriptedHead, Table
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.events import Begun, Finished, PromptProgress, Rested, SpeculationChanged, Started, Tokens
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.engine.input_queue import InputExecutors
from eaglelocal.errors import RequestError

TABLE = Table(seed=1)
KINDS = ("eagle3", "model")


def ask(name: str, prompt: tuple[int, ...], **changes: object) -> ChatRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True} | changes
    return ChatRequest(id=name, tokens=prompt, params=SamplingParams(**fields))  # type: ignore[arg-type]


def right_drafter(kind: str, n_batch: int = 64, n_ctx: int = 128) -> Drafter:
    if kind == "eagle3":
        return Eagle3(ScriptedHead(TABLE, n_batch=n_batch, n_ctx=n_ctx), (0,))
    return DraftModel(ScriptedContext(TABLE, n_batch=n_batch, n_ctx=n_ctx, gives_features=False))


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple(1 + (seed * 7 + i * i * 3) % 23 for i in range(length))


def assert_plain(result: dict[str, AnswerResult], asked: list[ChatRequest]) -> None:
    for one in asked:
        assert result[one.id].tokens == plain_text(TABLE, one), one.id


@pytest.mark.parametrize(("num_slots", "n_batch"), [(16, 40), (64, 160)])
@pytest.mark.parametrize("kind", KINDS)
def test_slots_whose_rows_exceed_the_batch(kind: str, num_slots: int, n_batch: int) -> None:
    drafter = right_drafter(kind, n_batch=n_batch)
    harness = EngineHarness(TABLE, drafter, num_draft_tokens=8, num_slots=num_slots, n_batch=n_batch)
    asked = [ask(str(i), prompt_of(i, 1 + i % 30)) for i in range(3 * num_slots)]
    assert_plain(harness.run(asked), asked)
    assert max(harness.context.decodes) <= n_batch


def test_a_prompt_gets_rows_while_every_other_slot_decodes() -> None:
    harness = EngineHarness(TABLE, right_drafter("eagle3", n_batch=16), num_draft_tokens=8, num_slots=4, n_batch=16)
    long = [ask(str(i), prompt_of(i, 3), max_tokens=100) for i in range(3)]
    late = ask("late", prompt_of(9, 60), max_tokens=4)
    for one in (*long, late):
        harness.engine.submit(one)
    finished = []
    while harness.engine.has_work:
        finished += [event.request_id for event in harness.engine.step() if isinstance(event, Finished)]
    assert finished[0] == "late"


@pytest.mark.parametrize("num_reused", [0, 50])
def test_a_prompt_tells_how_much_of_it_is_read(num_reused: int) -> None:
    harness = EngineHarness(TABLE, NoDrafter(), num_draft_tokens=0, n_batch=16)
    if num_reused:
        harness.run([ask("before", prompt_of(9, num_reused))])
    harness.engine.submit(ask("long", (*prompt_of(9, num_reused), *prompt_of(3, 40))))
    events = []
    while harness.engine.has_work:
        events += harness.engine.step()
    progress = [event for event in events if isinstance(event, PromptProgress)]
    assert progress == [PromptProgress("long", num_reused + 16), PromptProgress("long", num_reused + 32)]
    kinds = [type(event) for event in events if not isinstance(event, SpeculationChanged)]
    assert kinds[:4] == [Started, PromptProgress, PromptProgress, Tokens]


def test_a_start_is_reported_before_the_first_rows_are_decoded() -> None:
    """A first piece of a prompt may take seconds, in which its answer would seem to wait."""
    harness = EngineHarness(TABLE, NoDrafter(), num_draft_tokens=0)
    early: list[tuple[list[type], list[int]]] = []
    harness.engine.emit = lambda events: early.append((list(map(type, events)), list(harness.context.decodes)))
    harness.engine.submit(ask("a", prompt_of(3, 20), max_tokens=2))
    later = [type(event) for event in harness.engine.step()]
    assert early[0][0][0] is Started and early[0][1] == [] and len(early) == 1
    assert Started not in later and harness.context.decodes


def test_a_long_prompt_next_to_an_answer_is_read_at_the_answers_pace() -> None:
    harness = EngineHarness(TABLE, NoDrafter(), num_draft_tokens=0, num_slots=2, n_batch=64)
    harness.engine.controller.costs.calibrate({rows: [0.98 + 0.02 * rows] * 3 for rows in (1, 2, 4, 8, 16, 32)})
    for name, length in (("answer", 3), ("long", 90)):
        harness.engine.submit(ask(name, prompt_of(length, length)))
        harness.engine.step()
    # caches of their own: a pass of both slots' first rows, 1.02, and one of the prompt's others, 1.18 of 2.2
    assert harness.context.decodes == [3, 1 + 11]


@pytest.mark.parametrize("kind", KINDS)
def test_short_prompts_in_many_slots_fit_the_drafters_batch(kind: str) -> None:
    harness = EngineHarness(TABLE, right_drafter(kind, n_batch=32), num_draft_tokens=3, num_slots=4, n_batch=96)
    asked = [ask(str(i), prompt_of(i, 21)) for i in range(4)]
    assert_plain(harness.run(asked), asked)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_cancelled_before_its_first_row_leaves_the_cache_in_step(kind: str) -> None:
    """Admitted and cut, then cancelled while another prompt takes all rows: the next one must start clean."""
    harness = EngineHarness(TABLE, right_drafter(kind), num_draft_tokens=3, num_slots=3, n_batch=3)
    stem = prompt_of(1, 20)
    first = ask("first", stem, max_tokens=4)
    result = harness.run([first])
    talker = ask("talker", prompt_of(3, 2), max_tokens=99)
    blocker, starved = ask("blocker", prompt_of(2, 30), max_tokens=3), ask("starved", (*stem[:10], 3), max_tokens=4)
    harness.engine.submit(talker)
    for _ in range(4):  # it drafts, and keeps rows for that
        harness.engine.step()
    for one in (blocker, starved):  # one row is left beside the talker's: the blocker's
        harness.engine.submit(one)
        harness.engine.step()
    assert next(s for s in harness.scheduler.running if s.request.id == "starved").num_cached == 9 + (kind == "model")
    harness.engine.cancel("starved")
    other = ask("other", (*stem[:9], 23, 22, 21), max_tokens=80)
    result = drive(harness.engine, [other])
    assert_plain(result, [other])
    finished = result["other"].finished
    assert finished is not None
    assert finished.speculation.accepted_tokens == finished.speculation.draft_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(data=st.data())
def test_a_right_drafter_stays_right_whatever_is_reused_and_cancelled(kind: str, data: st.DataObject) -> None:
    n_batch = data.draw(st.sampled_from([4, 9, 16, 48]), "n_batch")
    harness = EngineHarness(
        TABLE,
        right_drafter(kind, n_batch=n_batch),
        num_draft_tokens=data.draw(st.integers(0, 6), "draft"),
        num_slots=data.draw(st.integers(1, 4), "slots"),
        n_batch=n_batch,
    )
    stem = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=60), "stem")
    asked = []
    for i in range(data.draw(st.integers(1, 9), "requests")):
        cut, tail = data.draw(st.integers(0, len(stem))), data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
        asked.append(ask(str(i), (*stem[:cut], *tail), max_tokens=data.draw(st.integers(1, 30))))
    cancels = {str(i): data.draw(st.integers(0, 20)) for i in range(len(asked)) if data.draw(st.booleans())}
    result = harness.run(asked, cancel_at=cancels)
    for one in asked:
        plain, got = plain_text(TABLE, one), result[one.id]
        assert got.tokens == (plain[: len(got.tokens)] if one.id in cancels else plain)
        assert got.finished is not None
        assert got.finished.speculation.accepted_tokens == got.finished.speculation.draft_tokens


@pytest.mark.parametrize("number", range(12))
def test_a_head_without_room_fails_its_requests_and_the_engine_lives_on(number: int) -> None:
    head = ScriptedHead(TABLE)
    head.refused = {number}
    harness = EngineHarness(TABLE, Eagle3(head, (0,)), num_draft_tokens=3, num_slots=2)
    asked = [ask("a", prompt_of(1, 30)), ask("b", prompt_of(2, 5)), ask("c", prompt_of(1, 33))]
    result = harness.run(asked)
    assert [name for name, answer in result.items() if answer.failed] != []
    assert all((answer.failed is None) != (answer.finished is None) for answer in result.values())
    assert_plain(result, [one for one in asked if result[one.id].finished])
    again = [ask(f"again-{one.id}", one.tokens) for one in asked]
    assert_plain(harness.run(again), again)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(8))
def test_a_target_without_room_fails_its_requests_and_the_engine_lives_on(kind: str, number: int) -> None:
    harness = EngineHarness(TABLE, right_drafter(kind), num_draft_tokens=3, num_slots=2)
    harness.context.refused = {number}
    asked = [ask("a", prompt_of(1, 60)), ask("b", prompt_of(2, 5)), ask("c", prompt_of(1, 63))]
    result = harness.run(asked)
    assert any(answer.failed for answer in result.values())
    again = [ask(f"again-{one.id}", one.tokens) for one in asked]
    assert_plain(harness.run(again), again)
    assert all(sampler.closed for sampler in harness.context.samplers)


def test_two_requests_of_one_id_are_refused_and_the_first_goes_on() -> None:
    harness = EngineHarness(TABLE, NoDrafter(), num_slots=1)
    first = ask("same", prompt_of(1, 5))
    harness.engine.submit(first)
    with pytest.raises(RequestError, match="same"):
        harness.engine.submit(ask("same", prompt_of(2, 5)))
    harness.engine.step()
    with pytest.raises(RequestError, match="same"):
        harness.engine.submit(ask("same", prompt_of(2, 5)))
    result = drive(harness.engine, [])
    assert result["same"].finished is not None
    assert_plain(harness.run([ask("same", prompt_of(3, 5))]), [ask("same", prompt_of(3, 5))])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 16, 17, 33, 126, 127])
@pytest.mark.parametrize("max_tokens", [1, 2, None])
def test_prompts_and_limits_of_every_size(kind: str, length: int, max_tokens: int | None) -> None:
    if length + (max_tokens or 1) > 128:
        return
    harness = EngineHarness(TABLE, right_drafter(kind), num_draft_tokens=5, n_batch=16)
    asked = [ask("a", prompt_of(1, length), max_tokens=max_tokens)]
    result = harness.run(asked)
    assert_plain(result, asked)
    finished = result["a"].finished
    assert finished is not None and finished.reason == "length"
    assert finished.completion_tokens == min(max_tokens or 128, 128 - length)


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_or_a_stop_string_inside_an_accepted_draft_leaves_a_usable_cache(kind: str) -> None:
    """What was decoded behind the stop stays in the cache, and a conversation that goes on reuses it rightly."""
    harness = EngineHarness(TABLE, right_drafter(kind), num_draft_tokens=6)
    free = plain_text(TABLE, ask("free", (5, 6, 7)))
    stop = bytes(ord("a") + token - 1 for token in free[4:6] if token).decode()
    said = harness.run([ask("stopped", (5, 6, 7), stop=(stop,))])["stopped"]
    assert said.finished is not None and said.finished.reason == "stop"
    assert stop not in said.text
    assert said.tokens == free[: len(said.tokens)]
    assert said.finished.completion_tokens == len(said.tokens)
    assert said.finished.speculation.accepted_tokens <= len(said.tokens)
    for tail in ((9, 9), tuple(free[:8]), (*said.tokens, 3)):
        onward = ask("onward", (5, 6, 7, *tail))
        assert_plain(harness.run([onward]), [onward])


def test_work_on_a_request_is_reported_before_it_begins() -> None:
    """Also what its process never says: if it crashes then, this is all that the parent knows."""
    reported: list[tuple[object, int]] = []
    input_executors = InputExecutors(report=lambda event: reported.append((event, len(harness.context.decodes))))
    harness = EngineHarness(TABLE, NoDrafter(), input_executors=input_executors)
    for name in "ab":
        harness.engine.submit(ask(name, (1, 2, 3), max_tokens=3))
    reading = [event for name in "ab" for event in (Begun(name, is_reading=True), Rested(name))]
    assert [event for event, _ in reported] == reading
    while harness.engine.has_work:
        harness.engine.step()
    begun = reported[len(reading) :]
    assert [event for event, _ in begun] == [Begun("a"), Begun("b")]
    assert begun[0][1] == 0 < begun[1][1]


def test_first_come_first_served() -> None:
    harness = EngineHarness(TABLE, NoDrafter(), num_slots=3, n_batch=16)
    asked = [ask(str(i), prompt_of(i, 1 + i % 9), max_tokens=1 + i % 5) for i in range(60)]
    started: list[str] = []
    for one in asked:
        harness.engine.submit(one)
    while harness.engine.has_work:
        for event in harness.engine.step():
            if isinstance(event, Started):
                started.append(event.request_id)
    assert started == [one.id for one in asked]


def test_a_repeat_window_of_zero_has_no_memory() -> None:
    harness = EngineHarness(TABLE, NoDrafter())
    asked = ask("a", (5, 6, 7), repeat_penalty=1.9, repeat_last_n=0)
    assert_plain(harness.run([asked]), [asked])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [(), ("b",)])
def test_tokens_are_reported_on_request_without_those_after_a_stop(kind: str, stop: tuple[str, ...]) -> None:
    harness = EngineHarness(TABLE, right_drafter(kind), num_draft_tokens=8, num_slots=2)
    plain = ask("plain", (5, 6, 7), stop=stop)
    result = harness.run([plain, replace(plain, id="asking", tells_tokens=True)])
    finished, asking = result["plain"].finished, result["asking"].finished
    assert finished is not None and finished.tokens == ()
    assert asking is not None and asking.tokens == (5, 6, 7, *result["asking"].tokens)
    assert len(asking.tokens) == asking.prompt_tokens + asking.completion_tokens
