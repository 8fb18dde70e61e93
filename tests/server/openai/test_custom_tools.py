"""Custom tools in chats: their calls carry a text, whole and streamed, however the arguments are cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from doubles.running_server import Server
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.server.answer_encoder import CustomInput, read_input
from eaglelocal.server.request_reader import read_custom_tool
from eaglelocal.server.schema import CustomGiven

GRAMMAR: Any = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+"}}
PATCH: Any = {"type": "custom", "custom": {"name": "patch", "description": "edits", "format": GRAMMAR}}
WEATHER: Any = {"type": "function", "function": {"name": "weather"}}
TEXT = '+ü "x"\n\\ \U0001f600'


def script(*lines: str) -> list[Any]:
    return [{"role": "user", "content": "\n".join(lines)}]


def asked(text: str, **more: Any) -> dict[str, Any]:
    lines = (f"call patch {json.dumps({'input': text})}", 'call weather {"city": "Rome"}')
    return {"model": "", "messages": script(*lines), "tools": [PATCH, WEATHER], **more}


def test_a_whole_answer(actor: Server) -> None:
    patch, weather = actor.openai().chat.completions.create(**asked(TEXT)).choices[0].message.tool_calls or ()
    assert patch.type == "custom" and weather.type == "function"
    assert (patch.custom.name, patch.custom.input, weather.function.name) == ("patch", TEXT, "weather")


def test_a_stream(actor: Server) -> None:
    chunks = actor.openai().chat.completions.create(**asked(TEXT, stream=True))
    parts: Any = [part for chunk in chunks for choice in chunk.choices for part in choice.delta.tool_calls or ()]
    patch, weather = ([part for part in parts if part.index == index] for index in (0, 1))
    assert (patch[0].type, patch[0].id, patch[0].custom["name"]) == ("custom", "call_0", "patch")
    assert "".join(part.custom["input"] for part in patch) == TEXT
    assert all(part.function is None for part in patch)
    assert "".join(part.function.arguments for part in weather) == '{"city": "Rome"}'


def test_an_earlier_call_is_read_again(actor: Server) -> None:
    call = actor.openai().chat.completions.create(**asked(TEXT)).choices[0].message
    result = {"role": "tool", "tool_call_id": "call_0", "content": "Done."}
    messages = [*script("x"), call.model_dump(exclude_none=True), result, *script("show")]
    reply = actor.openai().chat.completions.create(model="", messages=messages, tools=[PATCH])
    shown = json.loads(reply.choices[0].message.content or "")
    assert json.loads(shown["messages"][1]["tool_calls"][0]["arguments"]) == {"input": TEXT}
    (tool,) = shown["tools"]
    assert json.loads(tool["parameters"])["properties"]["input"]["pattern"] == "^(?:[a-z]+)$" and tool["is_strict"]


@pytest.mark.parametrize(
    ("more", "parameter"),
    [
        ({"tools": [{"type": "custom"}]}, "tools.0.custom"),
        ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools.0.custom.name"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.custom"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "weather"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "patch"}}}, "tool_choice"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
    ],
)
def test_refusals(actor: Server, more: dict[str, Any], parameter: str) -> None:
    answer = actor.http.post("/v1/chat/completions", json=asked("x") | more)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, parameter)


def test_a_grammar_that_does_not_bind_is_reported_once(actor: Server) -> None:
    lark = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: X"}}
    tools = [{"type": "custom", "custom": {"name": f"t{number}", "format": lark}} for number in range(20)]
    answer = actor.http.post("/v1/chat/completions", json=asked("x") | {"tools": tools})
    (warning,) = answer.headers.get_list("x-eaglelocal-warning")
    assert "lark" in warning and "t0, t1, t2, t3, t4, t5, t6, t7, ..." in warning
    assert "x-eaglelocal-warning" not in actor.http.post("/v1/chat/completions", json=asked("x")).headers


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


@given(st.text(), st.booleans(), st.lists(st.integers(0, 500)), st.integers(0, 3))
def test_a_text_is_streamed_as_it_comes(text: str, is_ascii: bool, cuts: list[int], indent: int) -> None:
    reading = CustomInput()
    pieces = pieces_of(json.dumps({"input": text}, ensure_ascii=is_ascii, indent=indent or None), cuts)
    assert "".join([*map(reading.add, pieces), reading.end()]) == reading.text == text


@given(st.text(min_size=1), st.integers(1, 20), st.lists(st.integers(0, 500)))
def test_of_a_call_that_was_cut_off_there_is_the_beginning(text: str, num_cut: int, cuts: list[int]) -> None:
    reading, written = CustomInput(), json.dumps({"input": text})
    told = "".join([*map(reading.add, pieces_of(written[:-num_cut], cuts)), reading.end()])
    assert told == reading.text and (text.startswith(told) or written.startswith(told))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch": "x"}', '{"patch": "x"}'),  # not what it was offered: nothing is lost
        ('{"input": 3}', '{"input": 3}'),
        ('{"why": "y", "input": "x"}', "x"),
        ("{}", "{}"),
        ("*** Begin", "*** Begin"),
        ('{"input": "a\\ud83d b"}', "a\ufffd b"),  # half a character, which cannot be sent
        ('{"input": "a\\udc00 b"}', "a\ufffd b"),
        ('{"input": "a\nb"}', "a\nb"),  # not escaped
        ("", ""),
    ],
)
def test_other_arguments_are_streamed_unchanged(arguments: str, text: str) -> None:
    assert read_input(arguments) == text
    reading = CustomInput()
    assert "".join([*map(reading.add, arguments), reading.end()]) == text


def test_without_a_format_any_text_is_right() -> None:
    tool = read_custom_tool(CustomGiven(name="t"))
    assert json.loads(tool.parameters)["properties"] == {"input": {"type": "string"}} and not tool.is_strict
