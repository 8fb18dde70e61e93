"""Tool calls streamed while they are written, through the clients of each API; and streams without content."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import openai
import pytest
from doubles.running_server import Server, directed, served

from eaglelocal.server.server_state import ServerLimits

SCRIPT = (
    'think It is far.\nsay Let me see.\nbegin weather\nargue {"city": "\nargue Rome\nargue "}\ncall time {"of": "day"}'
)
CUT = 'begin weather\nargue {"city": "Ro\nlength'
CALLS = [("weather", {"city": "Rome"}), ("time", {"of": "day"})]
PING_S = 0.15


def run_script(script: str) -> list[Any]:
    return [{"role": "user", "content": script}]


@pytest.fixture(scope="module")
def chatty() -> Any:
    """A server that says soon that it has nothing to say."""
    with served(directed(limits=ServerLimits(ping_s=PING_S))) as server:
        yield server


def test_chunks_have_the_name_first_and_then_the_arguments(actor: Server) -> None:
    parts = []
    for chunk in actor.openai().chat.completions.create(model="", messages=run_script(SCRIPT), stream=True):
        delta = chunk.choices[0].delta
        thought = (delta.model_extra or {}).get("reasoning_content")
        assert sum(map(bool, (delta.content, delta.tool_calls, thought))) <= 1
        assert len(delta.tool_calls or ()) <= 1
        parts += delta.tool_calls or ()
    first = parts[0]
    assert (first.index, first.id, first.type) == (0, "call_0", "function")
    arguments: dict[int, str] = {}
    for part in parts:
        assert part.function is not None
        arguments[part.index] = arguments.get(part.index, "") + (part.function.arguments or "")
    assert arguments == {0: '{"city": "Rome"}', 1: '{"of": "day"}'}
    names = [(part.index, part.function.name) for part in parts if part.function and part.function.name]
    assert names == [(0, "weather"), (1, "time")]


def test_the_openai_client_gathers_them(actor: Server) -> None:
    with actor.openai().chat.completions.stream(model="", messages=run_script(SCRIPT)) as stream:
        kinds = Counter(event.type for event in stream)
        message = stream.get_final_completion().choices[0].message
    found = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    assert (found, message.content) == (CALLS, "Let me see.")
    assert kinds["tool_calls.function.arguments.done"] == 2


def test_messages_fill_a_block_piece_by_piece(actor: Server) -> None:
    asked: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    with actor.anthropic().messages.stream(model="", max_tokens=50, messages=run_script(SCRIPT), **asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [(block.name, block.input) for block in final.content if block.type == "tool_use"] == CALLS
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert final.stop_reason == "tool_use"


def test_responses_fill_an_item_piece_by_piece(actor: Server) -> None:
    with actor.openai().responses.stream(model="", input=SCRIPT) as stream:
        events = list(stream)
        final = stream.get_final_response()
    found = [(item.name, json.loads(item.arguments)) for item in final.output if item.type == "function_call"]
    assert found == CALLS
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    deltas = {event.item_id: "" for event in done}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            deltas[event.item_id] += event.delta
    assert list(deltas.values()) == [event.arguments for event in done] == ['{"city": "Rome"}', '{"of": "day"}']


def test_a_call_that_was_cut_short_is_reported_as_far_as_it_came(actor: Server) -> None:
    ask = actor.openai()
    with pytest.raises(openai.LengthFinishReasonError) as streamed:  # the helper's way to say so
        _streamed(actor, CUT)
    for answer in (ask.chat.completions.create(model="", messages=run_script(CUT)), streamed.value.completion):
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert (answer.choices[0].finish_reason, call.function.arguments) == ("length", '{"city": "Ro')
    response = ask.responses.create(model="", input=CUT)
    (item,) = response.output
    assert (response.status, item.status, item.arguments) == ("incomplete", "incomplete", '{"city": "Ro')
    (item,) = ask.responses.create(model="", input="call weather\nlength").output
    assert item.status == "completed"  # it was cut behind it
    message = actor.anthropic().messages.create(model="", max_tokens=50, messages=run_script(CUT))
    assert (message.stop_reason, message.content[0].type) == ("max_tokens", "tool_use")


def _streamed(server: Server, script: str) -> Any:
    with server.openai().chat.completions.stream(model="", messages=run_script(script)) as stream:
        stream.until_done()
        return stream.get_final_completion().choices[0]


@pytest.mark.parametrize(
    ("path", "ping"),
    [
        ("/v1/chat/completions", b": ping\n\n"),
        ("/v1/messages", b'event: ping\ndata: {"type":"ping"}\n\n'),
        ("/v1/responses", b": ping\n\n"),
    ],
)
@pytest.mark.parametrize("script", ["say hi\nsleep 1", "say hi\nnothing 30 0.03"])
def test_a_silent_stream_says_that_it_lives(chatty: Server, path: str, ping: bytes, script: str) -> None:
    """Whether nothing happens, or tokens come that cannot be emitted yet."""
    asked = {"input": script} if path.endswith("responses") else {"messages": run_script(script), "max_tokens": 50}
    gaps, last, read = [], time.monotonic(), b""
    with chatty.http.stream("POST", path, json={"stream": True, **asked}) as response:
        for chunk in response.iter_raw():
            gaps.append(time.monotonic() - last)
            last, read = time.monotonic(), read + chunk
    assert read.count(ping) >= 3
    assert max(gaps[1:]) < 4 * PING_S


def test_pings_are_nothing_to_the_clients(chatty: Server) -> None:
    script = f"say hi\nnothing 15 0.03\n{SCRIPT.partition(chr(10))[2]}"
    assert _streamed(chatty, script).message.content == "hiLet me see."
    with chatty.anthropic().messages.stream(model="", max_tokens=50, messages=run_script(script)) as stream:
        assert [block.type for block in stream.get_final_message().content] == ["text", "tool_use", "tool_use"]
