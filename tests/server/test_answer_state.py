"""The state of an answer built from the engine's events: its parts in order, the logprobs of its text, its drafting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from doubles.directed_server_engine import TIMINGS

from eaglelocal.core.events import (
    Finished,
    PromptProgress,
    RequestEvent,
    SpeculationChanged,
    Started,
    TextPiece,
    Tokens,
)
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import Sampled, SamplingParams
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.core.tools import CallPart, ToolCall
from eaglelocal.server.answer_state import AnswerState, ReasoningRun, TextRun
from eaglelocal.server.anthropic.encoder import parse_arguments
from eaglelocal.server.openai.encoder import ChatEncoder
from eaglelocal.server.request_reader import EngineCall

HEAD = CallPart(0, "", "id_0", "f")


def choice_of(*pieces: TextPiece, rest: str = "", is_split: bool = True, logprobs: int | None = None) -> AnswerState:
    choice = AnswerState(0, ChatRequest(id="x", is_split=is_split, params=SamplingParams(logprobs=logprobs)), 0.0)
    choice.apply(Tokens("x", pieces), 1.0)
    if rest:
        choice.apply(Finished("x", "stop", rest, 1, len(pieces), Timings(), SpeculationStats()), 2.0)
    return choice


def said(text: str, **more: Any) -> TextPiece:
    return TextPiece(1, text, drafted=False, **more)


def weighed(token: str | bytes, text: str = "", **more: Any) -> TextPiece:
    return said(text, sampled=Sampled(1, -0.5, token.encode() if isinstance(token, str) else token), **more)


def test_parts_are_in_the_order_in_which_they_came() -> None:
    choice = choice_of(
        said("", reasoning="hm"),
        said("", reasoning=" so"),
        said("Yes", reasoning="."),
        said("!", calls=(HEAD, CallPart(0, "{"))),
        said("", calls=(CallPart(0, "}"), CallPart(1, "{}", "id_1", "g"))),
        said(" Done"),
        rest=".",
    )
    take_delta = choice.take_delta()
    assert [type(part) for part in take_delta.parts] == [ReasoningRun, TextRun, CallPart, CallPart, TextRun]
    assert (take_delta.reasoning, take_delta.text) == ("hm so.", "Yes! Done.")
    assert [(call.id, call.name, call.arguments) for call in take_delta.calls] == [
        ("id_0", "f", "{}"),
        ("id_1", "g", "{}"),
    ]
    assert not choice.take_delta()


def test_progress_is_told_until_the_answer_begins() -> None:
    choice = AnswerState(0, ChatRequest(id="x"), 0.0)
    told = []
    for event in (Started("x", 90, 20), PromptProgress("x", 52), PromptProgress("x", 84), Tokens("x", (said("a"),))):
        choice.apply(event, 1.0)
        told += [choice.num_read] if choice.take_progress() else []
        assert not choice.take_progress()
    assert told == [20, 52, 84] and choice.num_read == 90


def test_a_chunk_has_one_kind_of_thing_and_one_call() -> None:
    """Some clients look for content first, and then for nothing else."""
    choice = choice_of(
        said("Yes", reasoning="hm", calls=(HEAD, CallPart(0, "{}"), CallPart(1, "{}", "id_1", "g"))), said("Done")
    )
    lines = (
        ChatEncoder(EngineCall(model="m", requests=(ChatRequest(id="id"),)), "m")
        .encode_delta(choice, choice.take_delta())
        .strip()
        .split("\n\n")
    )
    deltas = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines]
    function = {"id": "id_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    other = {"id": "id_1", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    assert deltas == [
        {"reasoning_content": "hm"},
        {"content": "Yes"},
        {"tool_calls": [{"index": 0, **function}]},
        {"tool_calls": [{"index": 1, **other}]},
        {"content": "Done"},
    ]


def test_tokens_without_text_are_not_sent() -> None:
    assert not choice_of(said(""), said("")).take_delta()


@pytest.mark.parametrize(
    ("pieces", "rest", "tokens"),
    [
        ([weighed("<think>"), weighed("hm", reasoning="hm"), weighed("</think>"), weighed("Yes", "Yes")], "", ["Yes"]),
        ([weighed("</think>"), weighed("\n\n"), weighed("Yes", "Yes"), weighed("!", "!")], "", ["Yes", "!"]),
        ([weighed("hm.</", reasoning="hm."), weighed("think>"), weighed("Yes", "Yes")], "", ["Yes"]),
        ([weighed("a", "a"), weighed(" <"), weighed("b>", " <b>")], "", ["a", " <", "b>"]),
        ([weighed(b"\xc3"), weighed(b"\xa9", "é")], "", ["\\xc3", "\\xa9"]),
        ([weighed("Yes", "Yes"), weighed("<tool_call>"), weighed('{"name"', calls=(HEAD,)), weighed("}")], "", ["Yes"]),
        ([weighed("Yes", "Yes"), weighed("\n"), weighed("</"), weighed("x")], "\n</x", ["Yes", "\n", "</", "x"]),
        ([weighed("Yes", "Yes"), weighed(b"\xc3")], "\N{REPLACEMENT CHARACTER}", ["Yes", "\\xc3"]),
        ([weighed("hm. Yes", "Yes", reasoning="hm.")], "", ["hm. Yes"]),
    ],
)
def test_only_tokens_of_what_is_said_are_weighed(pieces: list[TextPiece], rest: str, tokens: list[str]) -> None:
    take_delta = choice_of(*pieces, rest=rest, logprobs=0).take_delta()
    assert [one.piece.decode("utf-8", "backslashreplace") for one in take_delta.sampled] == tokens


@pytest.mark.parametrize(
    ("pieces", "rest", "tokens"),
    [
        ([weighed("Yes", "Yes"), weighed(b"\xf0\x9f"), weighed(b"\x98")], "", [b"Yes", b"\xf0\x9f", b"\x98"]),
        ([weighed("EN"), weighed(b"\xc3")], "EN", [b"EN", b"\xc3"]),
        ([weighed("hm", reasoning="hm"), weighed(b"\xc3")], "", []),  # cut while it thought
        ([weighed("hm", reasoning="hm"), weighed("</think>"), weighed("你")], "你", ["你".encode()]),
        ([weighed("hm", reasoning="hm"), weighed("你"), weighed(b"!\xc3")], "你!", ["你".encode(), b"!\xc3"]),
    ],
)
def test_tokens_of_a_character_that_the_answer_was_cut_in_are_weighed(
    pieces: list[TextPiece], rest: str, tokens: list[bytes]
) -> None:
    choice = choice_of(*pieces, logprobs=0)
    choice.apply(Finished("x", "length", rest, 1, len(pieces), Timings(), SpeculationStats()), 2.0)
    assert [one.piece for one in choice.take_delta().sampled] == tokens


@pytest.mark.parametrize("stop", [".", "。"])
def test_a_stop_string_is_not_weighed(stop: str) -> None:
    choice = choice_of(weighed("Yes", "Yes"), weighed(stop), logprobs=0)
    choice.apply(Finished("x", "stop", "", 1, 2, Timings(), SpeculationStats(), stop=stop), 2.0)
    assert [one.piece for one in choice.take_delta().sampled] == [b"Yes"]


def test_where_nothing_is_taken_apart_every_token_is_weighed() -> None:
    take_delta = choice_of(
        weighed("<s>"), weighed(b"\xc3"), weighed(b"\xa9", "é"), is_split=False, logprobs=0
    ).take_delta()
    assert [one.piece for one in take_delta.sampled] == [b"<s>", b"\xc3", b"\xa9"]


@pytest.mark.parametrize("arguments", [r'{"t": "\ud83d"}', '{"t": 1e999}', '{"t": ', "[1]"])
def test_arguments_that_are_no_object_to_be_sent_are_shown_as_they_are(arguments: str) -> None:
    assert parse_arguments(ToolCall("a", "f", arguments)) == {"arguments": arguments}


STARTED = Started("a", 3, 0)


def finished(state: str) -> Finished:
    return Finished("a", "stop", "", 3, 1, TIMINGS, SpeculationStats(state=state))


def states(*events: RequestEvent) -> list[str]:
    choice = AnswerState(0, ChatRequest(id="a"), 0.0)
    seen = [choice.drafting_state]
    for event in events:
        choice.apply(event, 1.0)
        seen.append(choice.drafting_state)
    return seen


def test_the_state_of_drafting_is_the_engine_s_last_word() -> None:
    off, asleep, on = (SpeculationChanged("a", state, "why") for state in ("off", "asleep", "on"))
    assert states(STARTED, off, finished("off")) == ["", "on", "off", "off"]
    assert states(STARTED, asleep, on, off, finished("asleep")) == ["", "on", "asleep", "on", "off", "asleep"]


def test_what_never_started_was_never_drafted_for_or_not() -> None:
    assert states(finished("off")) == ["", ""]
