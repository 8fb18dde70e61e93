"""Anthropic's messages through its own client."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pydantic
import pytest
from doubles.directed_server_engine import CACHED_TOKENS
from doubles.running_server import Server

from eaglelocal.server.schema import MAX_TRANSLATED_TOOLS

TOOLS: list[Any] = [{"name": "weather", "description": "of a city", "input_schema": {"type": "object"}}]
COLD = {"temperature": 0}  # newer clients know no temperature


def run_script(script: str) -> list[Any]:
    return [{"role": "user", "content": script}]


def seen(server: Server, **asked: Any) -> dict[str, Any]:
    """The request as it reached the engine."""
    given: dict[str, Any] = {"model": "", "max_tokens": 50, "messages": run_script("show")} | asked
    answer = server.anthropic().messages.create(**given)
    found: dict[str, Any] = json.loads(answer.content[0].text)
    return found


def test_a_whole_answer(typist: Server) -> None:
    answer = typist.anthropic().messages.create(model="typist", max_tokens=20, messages=run_script("Say hello."))
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "typist")
    assert answer.stop_reason == "max_tokens"
    assert answer.content[0].type == "text"
    assert len(answer.content[0].text) == 20
    assert answer.usage.output_tokens == 20


def test_figures_do_not_count_the_cache_twice(actor: Server) -> None:
    answer = actor.anthropic().messages.create(model="", max_tokens=20, messages=run_script("say Hello."))
    assert answer.stop_reason == "end_turn"
    assert answer.usage.cache_read_input_tokens == CACHED_TOKENS
    assert answer.usage.input_tokens == len("say Hello.") - CACHED_TOKENS


def test_a_stream_has_the_same_text(typist: Server) -> None:
    asked: dict[str, Any] = {
        "model": "typist", "max_tokens": 20, "messages": run_script("Say hello."), "extra_body": COLD
    }  # fmt: skip
    whole = typist.anthropic().messages.create(**asked)
    with typist.anthropic().messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text  # type: ignore[union-attr]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 20)


def test_thinking_text_and_tools_are_blocks_of_their_own(actor: Server) -> None:
    script = 'think It is far.\nsay Let me see.\ncall weather {"city": "Rome"}\ncall weather {"city": "Oslo"}'
    asked: dict[str, Any] = {
        "model": "", "max_tokens": 50, "messages": run_script(script), "tools": TOOLS, "thinking": {"type": "adaptive"}
    }  # fmt: skip
    whole = actor.anthropic().messages.create(**asked)
    with actor.anthropic().messages.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_message()
    kinds = [event.type for event in events]
    deltas = [event.delta.type for event in events if event.type == "content_block_delta"]
    assert deltas.count("signature_delta") == 1 and kinds.count("signature") == 1  # as its last delta
    assert deltas.index("signature_delta") == deltas.count("thinking_delta")
    for answer in (whole, final):
        thinking, text, *calls = answer.content
        assert thinking.type == "thinking"
        assert (thinking.thinking, thinking.signature) == ("It is far. ", "")
        assert answer.usage.output_tokens_details is not None
        assert answer.usage.output_tokens_details.thinking_tokens == 3
        assert text.type == "text"
        assert text.text == "Let me see."
        assert [(call.type, call.name, call.input) for call in calls if call.type == "tool_use"] == [
            ("tool_use", "weather", {"city": "Rome"}),
            ("tool_use", "weather", {"city": "Oslo"}),
        ]
        assert answer.stop_reason == "tool_use"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    follow_up = seen(
        actor, messages=[*run_script(script), {"role": "assistant", "content": final.content[:2]}, *run_script("show")]
    )
    assert follow_up["messages"][1]["reasoning"] == "It is far. "


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


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}])
def test_thoughts_that_were_not_asked_for_are_neither_wanted_nor_reported(actor: Server, thinking: Any) -> None:
    asked: dict[str, Any] = {"thinking": thinking} if thinking else {}
    request = seen(actor, **asked)
    assert dict(request["template_values"]) == {"enable_thinking": "false"}
    assert request["params"]["thinking"]["budget"] == (0 if thinking else None)
    asked |= {"model": "", "max_tokens": 50, "messages": run_script("think It is far.\nsay Yes.")}
    whole = actor.anthropic().messages.create(**asked)
    with actor.anthropic().messages.stream(**asked) as stream:
        final = stream.get_final_message()
    for answer in (whole, final):
        assert [(block.type, block.text) for block in answer.content if block.type == "text"] == [("text", "Yes.")]
        assert len(answer.content) == 1


@pytest.mark.parametrize("kind", ["enabled", "adaptive", "between_tools"])
def test_thoughts_that_are_asked_for_are_wanted(actor: Server, kind: str) -> None:
    given: Any = {"type": kind, "budget_tokens": 1024}
    request = seen(actor, thinking=given, extra_body={"thinking_budget": 7})
    assert dict(request["template_values"]) == {"enable_thinking": "true"}
    assert request["params"]["thinking"]["budget"] == 1024


def test_thoughts_may_be_thought_and_not_reported(actor: Server) -> None:
    thinking: Any = {"type": "adaptive", "display": "omitted"}
    assert dict(seen(actor, thinking=thinking)["template_values"]) == {"enable_thinking": "true"}
    asked: dict[str, Any] = {"model": "", "max_tokens": 50, "messages": run_script("think Hm.\nsay Yes.")}
    answer = actor.anthropic().messages.create(thinking=thinking, **asked)
    assert [block.type for block in answer.content] == ["text"]


class Place(pydantic.BaseModel):
    """A city."""

    city: str


def test_an_output_format_binds_the_answer(actor: Server) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    config: Any = {"format": {"type": "json_schema", "schema": schema}, "effort": "max"}
    request = seen(actor, output_config=config)
    assert request["constraint"]["syntax"] == "json_schema"
    assert json.loads(request["constraint"]["source"]) == schema
    assert request["params"]["thinking"]["effort"] == "max"
    older: Any = {"output_format": config["format"]}
    assert seen(actor, extra_body=older)["constraint"] == request["constraint"]
    answer = actor.anthropic().messages.parse(
        model="", max_tokens=50, messages=run_script('say {"city": "Rome"}'), output_format=Place
    )
    assert answer.parsed_output == Place(city="Rome")


@pytest.mark.parametrize("is_error", [True, False])
def test_a_tool_s_failure_is_reported_as_one(actor: Server, is_error: bool) -> None:
    used: Any = [{"type": "tool_use", "id": "a", "name": "weather", "input": {}}]
    result: Any = {"type": "tool_result", "tool_use_id": "a", "content": "no such city", "is_error": is_error}
    messages: list[Any] = [
        *run_script("Rome?"),
        {"role": "assistant", "content": used},
        {"role": "user", "content": [result, {"type": "text", "text": "show"}]},
    ]
    tool = seen(actor, messages=messages)["messages"][2]
    assert tool["content"] == ("Error: no such city" if is_error else "no such city")


IMAGE: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
DOCUMENT: Any = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}
WORDS: Any = {
    "type": "document",
    "source": {"type": "file", "media_type": "application/vnd.openxmlformats-officedocument.wordprocessingml.document"},
}


def with_result(content: list[Any]) -> list[Any]:
    return [
        *run_script("Look."),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": content}]},
        *run_script("show"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([IMAGE], "[an image, which this model cannot see]"),
        ([WORDS], "[a document, which this model cannot read]"),
        ([{"type": "text", "text": "Page 1: "}, DOCUMENT], "Page 1: [a document, which this model cannot read]"),
        ([{"type": "tool_reference", "tool_name": "weather"}], "[the tool weather]"),
    ],
)
def test_what_cannot_be_read_of_a_result_is_said_in_its_place(actor: Server, content: list[Any], text: str) -> None:
    messages = with_result(content)
    assert seen(actor, messages=messages)["messages"][2]["content"] == text
    assert actor.anthropic().messages.count_tokens(model="", messages=messages).input_tokens > 0


def test_names_of_mcp_tools_and_long_ids_are_taken(actor: Server) -> None:
    name, id = "files/get-time:v1.2", "a" * 1024
    messages: list[Any] = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": name, "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "ten"}]},
        {"role": "user", "content": "show"},
    ]
    request = seen(actor, messages=messages, tools=[{**TOOLS[0], "name": name}])
    assert request["tools"][0]["name"] == name
    _, called, result, *_ = request["messages"]
    assert (called["tool_calls"][0]["id"], result["tool_call_id"]) == (id, id)


def test_strict_tools_and_answers_that_go_on_reach_the_engine(actor: Server) -> None:
    messages: list[Any] = [*run_script("show"), {"role": "assistant", "content": "The answer is ("}]
    request = seen(actor, messages=messages, tools=[{**TOOLS[0], "strict": True}])
    assert request["tools"][0]["is_strict"] is True
    assert request["resumes"] is True
    assert request["messages"][-1]["content"] == "The answer is ("


# ---- counting
def test_tokens_are_counted_as_they_are_prompted(typist: Server) -> None:
    asked: dict[str, Any] = {"model": "typist", "messages": run_script("Say hello."), "system": "Be brief."}
    counted = typist.anthropic().messages.count_tokens(**asked)
    usage = typist.anthropic().messages.create(max_tokens=1, **asked).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    more = typist.anthropic().messages.count_tokens(tools=TOOLS, **asked).input_tokens
    assert more > counted.input_tokens
    long = typist.anthropic().messages.count_tokens(model="typist", messages=run_script("x" * 5000))
    assert long.input_tokens > 5000  # what does not fit can be counted
    typist.wait_until_idle()


def test_counting_tokens_is_not_an_answer(actor: Server) -> None:
    actor.wait_until_idle()
    before = (actor.serving.num_answered, len(actor.serving.recent), actor.serving.metrics.text())
    assert actor.anthropic().messages.count_tokens(model="", messages=run_script("show")).input_tokens == 4
    actor.wait_until_idle()
    assert (actor.serving.num_answered, len(actor.serving.recent)) == before[:2]
    assert whole_answers(actor.serving.metrics.text()) == whole_answers(before[2])


def whole_answers(metrics: bytes) -> list[str]:
    return [line for line in metrics.decode().splitlines() if "e2e_request_latency_seconds_count" in line]


def test_counting_refuses_what_asking_would(actor: Server) -> None:
    wrong: Any = [{"role": "user", "content": [{"type": "image"}]}]
    for messages, status in ((wrong, 400), (run_script("show"), 404)):
        with pytest.raises(anthropic.APIStatusError) as caught:
            actor.anthropic().messages.count_tokens(model="" if status == 400 else "claude", messages=messages)
        assert caught.value.status_code == status
        body: Any = caught.value.body
        assert body["type"] == "error"


def test_a_prompt_that_is_too_long_gets_anthropic_s_error(typist: Server) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        typist.anthropic().messages.create(model="typist", max_tokens=5, messages=run_script("x" * 5000))
    body: Any = caught.value.body
    assert body["error"]["message"].startswith("prompt is too long")


def test_a_tool_may_be_named(actor: Server) -> None:
    choice = {"type": "tool", "name": "weather"}
    assert seen(actor, tools=TOOLS, tool_choice=choice)["tool_choice"]["name"] == "weather"


def test_system_may_be_blocks(actor: Server) -> None:
    request = seen(actor, system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}])
    assert request["messages"][0]["content"] == "Be brief."


BILLED = "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={};"


@pytest.mark.parametrize(
    ("blocks", "kept"), [([], []), (["You are a guide.", "Be brief."], ["You are a guide.Be brief."])]
)
def test_what_is_new_in_every_request_does_not_begin_the_prompt(
    actor: Server, blocks: list[str], kept: list[str]
) -> None:
    for mark in ("0a1b2", "3c4d5"):
        system: Any = [{"type": "text", "text": text} for text in (BILLED.format(mark), *blocks)]
        messages = seen(actor, system=system)["messages"]
        assert [one["content"] for one in messages if one["role"] == "system"] == kept


def test_it_is_not_counted_either(typist: Server) -> None:
    count = typist.anthropic().messages.count_tokens
    blocks: list[Any] = [{"type": "text", "text": text} for text in (BILLED.format("0a1b2"), "Be brief.")]
    asked: dict[str, Any] = {"model": "", "messages": run_script("Say hello.")}
    assert count(system=blocks, **asked) == count(system=blocks[1:], **asked)


def test_there_may_be_more_tools_than_openai_allows(actor: Server) -> None:
    tools = [{**TOOLS[0], "name": f"tool_{i}"} for i in range(MAX_TRANSLATED_TOOLS + 1)]
    assert len(seen(actor, tools=tools[1:])["tools"]) == MAX_TRANSLATED_TOOLS == 1024
    assert actor.anthropic().messages.count_tokens(model="", messages=run_script("show"), tools=tools[1:]).input_tokens
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        seen(actor, tools=tools)


def test_stop_sequences_end_the_answer(typist: Server) -> None:
    ask = typist.anthropic().messages.create
    text = ask(model="", max_tokens=30, messages=run_script("Hi."), extra_body=COLD).content[0].text  # type: ignore[union-attr]
    short = ask(model="", max_tokens=30, messages=run_script("Hi."), extra_body=COLD, stop_sequences=[text[9:12]])
    assert short.content[0].text == text[: text.index(text[9:12])]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": 1.5}}, "temperature"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "there is no image"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "only text"),
        ({"system": [{"type": "document"}]}, "only text"),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "needs a name"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"name": "a"}]}, "input_schema"),
    ],
)
def test_errors_have_its_shape(actor: Server, asked: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": "", "max_tokens": 50, "messages": run_script("say x")} | asked
    with pytest.raises(anthropic.BadRequestError, match=message) as caught:
        actor.anthropic().messages.create(**given)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")


def test_unknown_models_have_its_shape(actor: Server) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        actor.anthropic().messages.create(model="claude", max_tokens=5, messages=run_script("say x"))
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"


def test_a_failure_in_the_stream_is_an_event(actor: Server) -> None:
    with (
        pytest.raises(anthropic.APIStatusError, match="no room"),
        actor.anthropic().messages.stream(
            model="", max_tokens=50, messages=run_script("say so far\nsleep 0.2\nfail full")
        ) as stream,
    ):
        list(stream)
