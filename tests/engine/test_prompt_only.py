"""Requests that only read their prompt, report its tokens, or answer to the end of a line."""

from __future__ import annotations

import time

import pytest
from doubles.drafters import NoDrafter
from doubles.engine_harness import EngineHarness
from doubles.scripted_context import ScriptedHead, Table
from doubles.server_engine import CharacterVocabulary

from eaglelocal.core.events import Finished, Prompted, RequestEvent, Started, Tokens
from eaglelocal.core.request import ChatRequest, Mixed
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3

TABLE = Table(seed=1)
PROMPT = tuple(1 + i % 20 for i in range(30))


def ask(name: str, **params: object) -> ChatRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True} | params
    return ChatRequest(id=name, tokens=PROMPT, params=SamplingParams(**fields))  # type: ignore[arg-type]


def events(harness: EngineHarness, asked: ChatRequest) -> list[RequestEvent]:
    harness.engine.submit(asked)
    result: list[RequestEvent] = []
    while harness.engine.has_work:
        result += harness.engine.step()
    return result


@pytest.mark.parametrize("draft", [True, False])
def test_a_prompt_is_prefilled_for_the_next_question(draft: bool) -> None:
    drafter: Drafter = Eagle3(ScriptedHead(TABLE), (0,)) if draft else NoDrafter()
    harness, plain = EngineHarness(TABLE, drafter), EngineHarness(TABLE, NoDrafter())
    first = harness.run([ask("first", max_tokens=0)])["first"]
    assert first.finished is not None
    assert (first.tokens, first.text, first.finished.reason, first.finished.completion_tokens) == ([], "", "length", 0)
    assert first.finished.prompt_tokens == len(PROMPT)
    then = harness.run([ask("then")])["then"]
    assert then.started is not None and then.started.cached_tokens >= len(PROMPT) - 3
    assert then.tokens == plain.run([ask("then")])["then"].tokens
    assert harness.engine.miscounted_slots() == []


def test_a_prefill_beside_an_answer_emits_no_text() -> None:
    harness = EngineHarness(TABLE, NoDrafter(), num_slots=2)
    result = harness.run([ask("long"), ask("none", max_tokens=0)])
    assert (len(result["long"].tokens), result["none"].tokens) == (20, [])


@pytest.mark.parametrize("counted", [True, False])
def test_what_the_model_is_given_is_reported_first(counted: bool) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    asked = ChatRequest(id="a", mixed=Mixed(("ab", 0, 3)), params=params, is_counted=counted, tells_prompt=True)
    first, second, *_, last = events(EngineHarness(TABLE, NoDrafter()), asked)
    assert first == Prompted("a", (1, 2, 0, 3), (b"a", b"b", b"<end>", b"c"))
    assert isinstance(first, Prompted) and first.text == "ab<end>c"
    assert isinstance(second, Started) and second.prompt_tokens == 4
    assert isinstance(last, Finished) and last.completion_tokens == (0 if counted else 2)


class Slow(NoDrafter):
    """So slow that every line is late."""

    @property
    def native_s(self) -> float:
        time.sleep(0.002)
        return 0.0


@pytest.mark.parametrize(("limit_s", "is_ended"), [(None, False), (60.0, False), (0.001, True)])
def test_after_the_time_limit_an_answer_ends_with_its_line(limit_s: float | None, is_ended: bool) -> None:
    table = Table(96, seed=3, end_bias=-6.0)
    harness = EngineHarness(table, Slow(), vocabulary=CharacterVocabulary())
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, logit_bias=((1, 3.0),))
    asked = ChatRequest(id="a", text="Once", params=params, line_limit_s=limit_s)
    result = events(harness, asked)
    text = "".join(event.text for event in result if isinstance(event, Tokens))
    assert text.count("\n") > 1 or is_ended
    assert isinstance(result[-1], Finished) and result[-1].reason == "length"
    assert (result[-1].completion_tokens < 60 and text.endswith("\n")) is is_ended
