"""Anthropic's messages through its own client."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from doubles.directed_server_engine import CACHED_TOKENS
from doubles.running_server import Server

TOOLS: list[Any] = [{"name": "weather", "description": "of a city", "input_schema": {"type": "object"}}]
COLD = {"temperature": 0}  # newer clients know no temperature


def told(script: str) -> list[Any]:
    return [{"role": "user", "content": script}]


def seen(server: Server, **asked: Any) -> dict[str, Any]:
    """The request as it reached the engine."""
    given: dict[str, Any] = {"model": "", "max_tokens": 50, "messages": told("show")} | asked
    answer = server.anthropic().messages.create(**given)
    found: dict[str, Any] = json.loads(answer.content[0].text)
    return found


def test_a_whole_answer(typist: Server) -> None:
    answer = typist.anthropic().messages.create(model="typist", max_tokens=20, messages=told("Say hello."))
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "typist")
    assert answer.stop_reason == "max_tokens"
    assert answer.content[0].type == "text"
    assert len(answer.content[0].text) == 20
    assert answer.usage.output_tokens == 20


def test_figures_do_not_count_the_cache_twice(actor: Server) -> None:
    answer = actor.anthropic().messages.create(model="", max_tokens=20, messages=told("say Hello."))
    assert answer.stop_reason == "end_turn"
    assert answer.usage.cache_read_input_tokens == CACHED_TOKENS
    assert answer.usage.input_tokens == len("say Hello.") - CACHED_TOKENS


def test_a_stream_tells_the_same_text(typist: Server) -> None:
    asked: dict[str, Any] = {
        "model": "typist", "max_tokens": 20, "messages": told("Say hello."), "extra_body": COLD
    }  # fmt: skip
    whole = typist.anthropic().messages.create(**asked)
    with typist.anthropic().messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text  # type: ignore[union-attr]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 20)


def test_thinking_text_and_tools_are_blocks_of_their_own(actor: Server) -> None:
    script = 'think It is far.\nsay Let me see.\ncall weather {"city": "Rome"}\ncall weather {"city": "Oslo"}'
    whole = actor.anthropic().messages.create(model="", max_tokens=50, messages=told(script), tools=TOOLS)
    with actor.anthropic().messages.stream(model="", max_tokens=50, messages=told(script), tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    for answer in (whole, final):
        thinking, text, *calls = answer.content
        assert thinking.type == "thinking"
        assert thinking.thinking == "It is far. "
        assert text.type == "text"
        assert text.text == "Let me see."
        assert [(call.type, call.name, call.input) for call in calls if call.type == "tool_use"] == [
            ("tool_use", "weather", {"city": "Rome"}),
            ("tool_use", "weather", {"city": "Oslo"}),
        ]
        assert answer.stop_reason == "tool_use"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4


def test_what_is_asked_reaches_the_engine(actor: Server) -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "How is "}, {"type": "text", "text": "Rome?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Far.", "signature": ""},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "show"},
            ],
        },
    ]
    request = seen(
        actor,
        messages=messages,
        system="Be brief.",
        tools=TOOLS,
        stop_sequences=["END"],
        extra_body={"temperature": 0.5, "top_k": 3},
        thinking={"type": "disabled"},
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    system, user, assistant, tool, last = request["messages"]
    assert (system["role"], system["content"]) == ("system", "Be brief.")
    assert user["content"] == "How is Rome?"
    assert (assistant["content"], assistant["reasoning"]) == ("Wait.", "Far.")
    assert assistant["tool_calls"] == [{"id": "a", "name": "weather", "arguments": '{"city": "Rome"}'}]
    assert (tool["role"], tool["tool_call_id"], tool["content"]) == ("tool", "a", "sunny")
    assert last["content"] == "show"
    params = request["params"]
    assert (params["stop"], params["temperature"], params["top_k"], params["max_tokens"]) == (["END"], 0.5, 3, 50)
    assert request["tool_choice"] == {"use": "required", "name": "", "parallel": False}
    assert request["template_values"] == [["enable_thinking", "false"]]


def test_a_tool_may_be_named(actor: Server) -> None:
    choice = {"type": "tool", "name": "weather"}
    assert seen(actor, tools=TOOLS, tool_choice=choice)["tool_choice"]["name"] == "weather"


def test_system_may_be_blocks(actor: Server) -> None:
    request = seen(actor, system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}])
    assert request["messages"][0]["content"] == "Be brief."


def test_stop_sequences_end_the_answer(typist: Server) -> None:
    ask = typist.anthropic().messages.create
    text = ask(model="", max_tokens=30, messages=told("Hi."), extra_body=COLD).content[0].text  # type: ignore[union-attr]
    short = ask(model="", max_tokens=30, messages=told("Hi."), extra_body=COLD, stop_sequences=[text[9:12]])
    assert short.content[0].text == text[: text.index(text[9:12])]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": 1.5}}, "temperature"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text"),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "needs a name"),
    ],
)
def test_errors_have_its_shape(actor: Server, asked: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": "", "max_tokens": 50, "messages": told("say x")} | asked
    with pytest.raises(anthropic.BadRequestError, match=message) as caught:
        actor.anthropic().messages.create(**given)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")


def test_unknown_models_have_its_shape(actor: Server) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        actor.anthropic().messages.create(model="claude", max_tokens=5, messages=told("say x"))
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"


def test_a_failure_in_the_stream_is_an_event(actor: Server) -> None:
    with (
        pytest.raises(anthropic.APIStatusError, match="no room"),
        actor.anthropic().messages.stream(
            model="", max_tokens=50, messages=told("say so far\nsleep 0.2\nfail full")
        ) as stream,
    ):
        list(stream)
