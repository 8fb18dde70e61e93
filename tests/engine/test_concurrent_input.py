"""Running answers do not wait while another request's prompt is tokenized, however long that takes."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from doubles.drafters import NoDrafter
from doubles.engine_harness import AnswerResult, EngineHarness
from doubles.scripted_context import LetterVocabulary, Table

from eaglelocal.core.events import Failed, RequestEvent
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import GREEDY
from eaglelocal.engine.input_queue import start_executors
from eaglelocal.engine.prompt_tokens import SHORT_CHARS

TABLE = Table(seed=5)
LONG = "ab" * SHORT_CHARS
ENDLESS = replace(GREEDY, max_tokens=40, ignore_eos=True)
LONG_WAIT_S = 60.0


class HeldVocabulary(LetterVocabulary):
    """Tokenizes long texts when it is let go on, and counts that. A token stands for one letter at most."""

    max_token_bytes = 1

    def __init__(self, n_vocab: int) -> None:
        super().__init__(n_vocab)
        self.may_go_on, self.is_asked = threading.Event(), threading.Event()
        self.num_tokenized = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if len(text) > 100:
            self.num_tokenized += 1
            self.is_asked.set()
            assert self.may_go_on.wait(LONG_WAIT_S)
        return [3, 1, 4]


def short(name: str) -> ChatRequest:
    return ChatRequest(id=name, tokens=(3, 1, 4, 1, 5), params=ENDLESS)


def harness_of(vocabulary: HeldVocabulary, *, n_ctx: int = 128) -> EngineHarness:
    return EngineHarness(
        TABLE, NoDrafter(), num_slots=2, n_ctx=n_ctx, vocabulary=vocabulary, input_executors=start_executors()
    )


def step_until(harness: EngineHarness, result: dict[str, AnswerResult], name: str) -> None:
    """Step until a request is over, whatever else goes on."""
    while result[name].finished is None and result[name].failed is None:
        add(result, harness.engine.step())


def add(result: dict[str, AnswerResult], events: list[RequestEvent]) -> None:
    for event in events:
        result[event.request_id].add(event)


@pytest.fixture
def held() -> HeldVocabulary:
    return HeldVocabulary(TABLE.n_vocab)


def test_others_are_answered_while_a_long_prompt_is_read(held: HeldVocabulary) -> None:
    harness = harness_of(held, n_ctx=2 * len(LONG))
    result = {name: AnswerResult() for name in ("first", "long", "second")}
    harness.engine.submit(short("first"))
    harness.engine.submit(ChatRequest(id="long", text=LONG, params=ENDLESS))
    assert held.is_asked.wait(LONG_WAIT_S)
    harness.engine.submit(short("second"))  # comes later, and is not held up either
    step_until(harness, result, "first")
    step_until(harness, result, "second")
    assert len(result["first"].tokens) == len(result["second"].tokens) == 40
    assert result["long"].started is None and harness.engine.has_work
    assert harness.engine.snapshot().waiting == 1
    assert harness.engine.step() == []  # nothing to do but to wait: it returns, so that commands are obeyed
    held.may_go_on.set()
    step_until(harness, result, "long")
    assert len(result["long"].tokens) == 40 and not harness.engine.has_work
    harness.engine.close()


def test_a_request_that_is_being_read_can_be_cancelled(held: HeldVocabulary) -> None:
    harness = harness_of(held, n_ctx=2 * len(LONG))
    result = {"long": AnswerResult()}
    harness.engine.submit(ChatRequest(id="long", text=LONG))
    assert held.is_asked.wait(LONG_WAIT_S)
    harness.engine.cancel("long")
    step_until(harness, result, "long")
    assert result["long"].finished is not None and result["long"].finished.reason == "cancelled"
    assert not harness.engine.has_work
    held.may_go_on.set()
    harness.engine.close()


@pytest.mark.parametrize("fields", [{"text": LONG}, {"messages": (Message("user", LONG),)}])
def test_what_cannot_fit_is_refused_by_its_length(held: HeldVocabulary, fields: dict[str, object]) -> None:
    harness = harness_of(held)
    harness.engine.submit(ChatRequest(id="long", **fields))  # type: ignore[arg-type]
    events: list[RequestEvent] = []
    while harness.engine.has_work:
        events += harness.engine.step()
    (failed,) = events
    assert isinstance(failed, Failed)
    assert failed.error.message.startswith("this model's maximum context length is 128 tokens, and the prompt has more")
    assert held.num_tokenized == 0
    harness.engine.close()


def test_one_prompt_for_many_answers_is_tokenized_once(held: HeldVocabulary) -> None:
    harness = harness_of(held, n_ctx=2 * len(LONG))
    held.may_go_on.set()
    result = harness.run([ChatRequest(id=str(i), text=LONG, params=replace(ENDLESS, max_tokens=2)) for i in range(16)])
    assert all(len(each.tokens) == 2 for each in result.values())
    assert held.num_tokenized == 1
    harness.engine.close()
