"""The responses API through OpenAI's own client, whole and as its stream helper reads it."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest
from doubles.running_server import Server, directed, served
from openai.types.responses import ResponseErrorEvent, ResponseFailedEvent

from eaglelocal.server.request_reader import HOW_TO_CALL
from eaglelocal.server.responses.routes import translate_items

TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "description": "of a city", "parameters": {"type": "object"}}
]


SKIPPED: list[Any] = [
    {"type": "web_search", "external_web_access": True, "search_content_types": ["text", "image"]},
    {"type": "image_generation", "output_format": "png", "name": 7, "parameters": "none"},
    {"type": "local_shell"},
    {"type": "of_tomorrow"},
]
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
PATCH: Any = {"type": "custom", "name": "apply_patch", "description": "edits files", "format": LARK}
# as Codex sends the tools of two MCP servers
MCP: list[Any] = [
    {
        "type": "namespace",
        "name": name,
        "description": "Tools of a server.",
        "tools": [
            {"type": "function", "name": "read-file", "strict": False, "parameters": {"type": "object"}, **more},
            {"type": "custom", "name": "patch", "format": {"type": "text"}},
        ],
    }
    for name, more in (("mcp__files__", {"description": "reads"}), ("mcp__web", {"defer_loading": True}))
]


OF_A: Any = {
    "type": "namespace",
    "name": "a",
    "tools": [{"type": "custom", "name": "patch"}, {"type": "function", "name": "read"}],
}


def allowed(mode: str, *names: str) -> Any:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


def seen(server: Server, **asked: Any) -> dict[str, Any]:
    """The request as it reached the engine."""
    found: dict[str, Any] = json.loads(
        server.openai().responses.create(model="", **{"input": "show"} | asked).output_text
    )
    return found


def test_a_whole_answer(typist: Server) -> None:
    answer = typist.openai().responses.create(model="typist", input="Say hello.", max_output_tokens=20)
    assert (answer.object, answer.status, answer.model) == ("response", "incomplete", "typist")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert len(answer.output_text) == 20
    assert answer.usage is not None
    assert answer.usage.output_tokens == 20
    assert answer.usage.total_tokens == answer.usage.input_tokens + 20


def test_the_time_is_a_whole_number_as_some_clients_read_no_other(actor: Server) -> None:
    reply = actor.http.post("/v1/responses", json={"input": "say x"}).json()["created_at"]
    assert isinstance(reply, int) and abs(reply - time.time()) < 60


def test_an_answer_that_is_complete_says_so(actor: Server) -> None:
    answer = actor.openai().responses.create(model="", input="say Hello there.", metadata={"trace": "7"})
    assert (answer.status, answer.incomplete_details, answer.output_text) == ("completed", None, "Hello there.")
    assert answer.metadata == {"trace": "7"}
    assert [item.type for item in answer.output] == ["message"]


def test_the_stream_helper_understands_every_event(actor: Server) -> None:
    script = 'think It is far.\nsay Let me see.\ncall weather {"city": "Rome"}'
    kinds = []
    with actor.openai().responses.stream(model="", input=script, tools=TOOLS) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    for kind in ("output_text.delta", "output_text.done", "function_call_arguments.done", "reasoning_text.delta"):
        assert f"response.{kind}" in kinds
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output_text == "Let me see."
    call = final.output[2]
    assert call.type == "function_call"
    assert (call.name, call.arguments, call.call_id) == ("weather", '{"city": "Rome"}', "call_0")


def test_a_stream_numbers_its_events_and_ends_with_the_whole(typist: Server) -> None:
    ask = typist.openai().responses.create
    whole = ask(model="typist", input="Hello.", temperature=0, max_output_tokens=20)
    events = list(ask(model="typist", input="Hello.", temperature=0, max_output_tokens=20, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_whole_answers_have_calls_too(actor: Server) -> None:
    answer = actor.openai().responses.create(model="", input="call weather\ncall weather", tools=TOOLS)
    assert [item.type for item in answer.output] == ["function_call", "function_call"]
    assert len({item.id for item in answer.output}) == 2


def test_a_conversation_with_calls_reaches_the_engine(actor: Server) -> None:
    conversation: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "How is Rome?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call", "call_id": "b", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "sunny"},
        {"type": "function_call_output", "call_id": "b", "output": "rain"},
        {"role": "user", "content": "show"},
    ]
    request = seen(actor, input=conversation, instructions="Be brief.", tools=TOOLS)
    roles = [message["role"] for message in request["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [call["id"] for call in request["messages"][2]["tool_calls"]] == ["a", "b"]
    assert request["messages"][2]["content"] == "Wait."
    assert request["tools"][0]["name"] == "weather"


def test_formats_and_effort_reach_the_engine(actor: Server) -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}
    assert seen(actor, text={"format": schema})["constraint"]["source"] == '{"type": "integer"}'
    assert seen(actor, text={"format": {"type": "json_object"}})["constraint"]["syntax"] == "json_object"
    for strict in (True, False, None):
        assert seen(actor, text={"format": schema | {"strict": strict}})["constraint"]["is_strict"] is bool(strict)
    assert seen(actor, reasoning={"effort": "high"})["params"]["thinking"]["effort"] == "high"
    assert seen(actor, extra_body={"thinking_budget": 9})["params"]["thinking"]["budget"] == 9
    assert seen(actor, tools=TOOLS, tool_choice="required")["tool_choice"]["use"] == "required"
    named: Any = {"type": "function", "name": "weather"}
    assert seen(actor, tools=TOOLS, tool_choice=named)["tool_choice"]["name"] == "weather"
    assert seen(actor, temperature=0.5, max_output_tokens=9)["params"]["max_tokens"] == 9
    strict: Any = [{**TOOLS[0], "strict": True}]
    assert seen(actor, tools=strict)["tools"][0]["is_strict"] is True


def thought(text: str, **more: object) -> Any:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs", "summary": [], "content": content, **more}


def test_what_was_thought_belongs_to_what_was_said_or_called_next(actor: Server) -> None:
    call: Any = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}
    conversation: list[Any] = [
        {"role": "user", "content": "Rome?"},
        thought("I need it."),
        call,
        {"type": "function_call_output", "call_id": "a", "output": "sunny"},
        thought("", content=None, summary=[{"type": "summary_text", "text": "So it is."}]),
        {"role": "assistant", "content": "Sunny. "},
        thought("And Oslo?"),
        {**call, "call_id": "b"},
        {"type": "function_call_output", "call_id": "b", "output": "rain"},
        thought("Nobody says this."),
        {"role": "user", "content": "show"},
    ]
    reply = seen(actor, input=conversation)["messages"]
    assert [(message["role"], message["reasoning"], len(message["tool_calls"])) for message in reply] == [
        ("user", "", 0),
        ("assistant", "I need it.", 1),
        ("tool", "", 0),
        ("assistant", "So it is.And Oslo?", 1),
        ("tool", "", 0),
        ("user", "", 0),
    ]


def test_an_answer_s_own_output_can_be_sent_again(actor: Server) -> None:
    asked: list[Any] = [{"role": "user", "content": "think It is far.\nsay Let me see.\ncall weather {}"}]
    output = actor.openai().responses.create(model="", input=asked, tools=TOOLS).output
    result: Any = {"type": "function_call_output", "call_id": "call_0", "output": "sunny"}
    sent: list[Any] = [*asked, *(item.model_dump() for item in output), result, {"role": "user", "content": "show"}]
    _, said, tool, _ = seen(actor, input=sent, tools=TOOLS)["messages"]
    assert (said["reasoning"], said["content"], len(said["tool_calls"])) == ("It is far. ", "Let me see.", 1)
    assert tool["tool_call_id"] == "call_0"


@pytest.mark.parametrize(
    ("asked", "parameter"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"type": "message", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.image_url"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tools": [{"type": "web_search"}, {"type": "function"}]}, "tools.1.name"),
        ({"tools": [{"name": "a"}]}, "tools.0.type"),
        ({"tools": SKIPPED, "tool_choice": {"type": "image_generation"}}, "tool_choice"),
        ({"tools": SKIPPED, "tool_choice": {"type": "custom", "name": "apply_patch"}}, "tool_choice"),
        ({"tools": [PATCH], "tool_choice": {"type": "function", "name": "apply_patch"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "name": "weather"}}, "tool_choice"),
        ({"tools": [*TOOLS, PATCH], "tool_choice": allowed("auto", "apply_patch")}, "tool_choice.tools"),
        ({"tools": [{**PATCH, "format": {**LARK, "syntax": "ebnf"}}]}, "tools.0.format.syntax"),
        ({"tools": MCP, "tool_choice": {"type": "custom", "name": "patch"}}, "tool_choice"),  # which of two?
        ({"tools": MCP, "tool_choice": {"type": "function", "name": "read-file"}}, "tool_choice"),  # which of two?
        ({"tools": MCP, "tool_choice": {"type": "function", "name": "read-file", "namespace": "b"}}, "tool_choice"),
        ({"tools": [{**MCP[0], "name": "a b"}]}, "tools.0.name"),
        ({"tools": [*SKIPPED, OF_A, {**TOOLS[0], "name": "a__read"}]}, f"tools.{len(SKIPPED) + 1}.name"),
        ({"tools": [OF_A, {**OF_A, "name": "a_"}]}, "tools.1.tools.0.name"),
        ({"tools": [*TOOLS, {**TOOLS[0], "description": "of a time"}]}, "tools.1.name"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}]}, "tools.0.tools.0.name"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "tools.0.tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"tools": TOOLS, "tool_choice": allowed("required", "time")}, "tool_choice.tools"),
        ({"tools": TOOLS, "tool_choice": allowed("required")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed("perhaps", "weather")}, "tool_choice.mode"),
        ({"tools": SKIPPED, "tool_choice": "required"}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"type": "function_call_output", "output": [{"type": "input_audio"}]}]}, "input.0.output.0"),
        ({"metadata": {"a": float("inf")}}, "metadata.a"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": float("nan")}}}},
            "text.format.schema.a",
        ),
        ({"instructions": "a", "input": [{"role": "user"}]}, "input.0.content"),
    ],
)
def test_what_cannot_be_honoured_is_refused(actor: Server, asked: dict[str, Any], parameter: str) -> None:
    body = json.dumps({"input": "say x"} | asked)
    answer = actor.http.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == parameter


def test_tools_that_are_run_elsewhere_are_left_out(actor: Server) -> None:
    assert [tool["name"] for tool in seen(actor, tools=[*SKIPPED, *TOOLS])["tools"]] == ["weather"]
    named: Any = {"type": "function", "name": "weather"}
    assert seen(actor, tools=[*SKIPPED, *TOOLS], tool_choice=named)["tool_choice"]["name"] == "weather"
    assert seen(actor, tools=SKIPPED, tool_choice="auto")["tools"] == []
    answer = actor.openai().responses.create(model="", input="say x", tools=[*SKIPPED, *TOOLS])
    assert [tool.type for tool in answer.tools] == ["function"]


def test_omitted_tools_are_reported(actor: Server) -> None:
    """In a header, and so in the log; where nothing else could be called, the request is refused."""
    strange = {"type": "strange\nname"}
    body = {"input": "say x", "tools": [*SKIPPED, strange, *TOOLS]}
    reply = actor.http.post("/v1/responses", json=body)
    left_out = "web_search, image_generation, local_shell, of_tomorrow, ..."
    assert reply.headers["x-eaglelocal-warning"] == f"this server runs no tools: those of type {left_out} are left out"
    reply = actor.http.post("/v1/responses", json={"input": "say x", "tools": SKIPPED, "tool_choice": "required"})
    assert reply.status_code == 400 and "those of type web_search, image_generation" in reply.json()["error"]["message"]
    reply = actor.http.post("/v1/responses", json={"input": "say x", "tools": TOOLS})
    assert "x-eaglelocal-warning" not in reply.headers


PATCHED = '*** Begin Patch\n+ü "x"\n'
SAID = json.dumps({"input": PATCHED})
CUSTOM_ITEM = ("custom_tool_call", "apply_patch", PATCHED, "call_0")


def fields(item: Any) -> tuple[Any, ...]:
    return item.type, item.name, item.input, item.call_id


def test_a_custom_tool_is_offered_and_answered_as_one(actor: Server) -> None:
    """As Codex has its apply_patch: through OpenAI's client, whole and streamed."""
    offered = seen(actor, tools=[PATCH])["tools"][0]
    assert json.loads(offered["parameters"])["properties"] == {"input": {"type": "string"}}
    assert offered["description"].startswith("edits files") and "start: X" in offered["description"]
    asked: Any = {"model": "", "input": f"think Hm.\ncall apply_patch {SAID}", "tools": [PATCH, *SKIPPED]}
    whole = actor.openai().responses.create(**asked)
    with actor.openai().responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    for answer in (whole, final):
        assert [item.type for item in answer.output] == ["reasoning", "custom_tool_call"]
        assert fields(answer.output[1]) == CUSTOM_ITEM
        assert [tool.type for tool in answer.tools] == ["custom"]
    kinds = [event.type for event in events]
    assert "response.function_call_arguments.delta" not in kinds
    written = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(written) == PATCHED
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert done.input == PATCHED
    warned = actor.http.post("/v1/responses", json=asked).headers.get_list("x-eaglelocal-warning")
    assert len(warned) == 2 and "apply_patch" in warned[1] and "lark" in warned[1]


@pytest.mark.parametrize("is_stored", [True, False])
def test_the_call_of_a_custom_tool_and_its_output_are_read_again(actor: Server, is_stored: bool) -> None:
    first = actor.openai().responses.create(model="", input=f"call apply_patch {SAID}", tools=[PATCH])
    output: Any = {"type": "custom_tool_call_output", "call_id": "call_0", "output": "Done."}
    before = [{"id": first.output[0].id}] if is_stored else [first.output[0].model_dump(exclude_none=True)]
    call, result, _ = seen(actor, input=[*before, output, {"role": "user", "content": "show"}], tools=[PATCH])[
        "messages"
    ]
    assert json.loads(call["tool_calls"][0]["arguments"]) == {"input": PATCHED}
    assert (result["tool_call_id"], result["content"]) == ("call_0", "Done.")
    again = seen(actor, input=[output, {"role": "user", "content": "show"}], previous_response_id=first.id)
    assert again["messages"][1:3] == [call, result]


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "name": "apply_patch"}])
def test_a_custom_tool_can_be_required(actor: Server, choice: Any) -> None:
    asked = seen(actor, tools=[PATCH], tool_choice=choice)["tool_choice"]
    assert asked == {
        "use": "required",
        "name": "" if choice == "required" else "apply_patch",
        "parallel": choice == "required",
    }
    some = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "apply_patch"}]}
    assert [tool["name"] for tool in seen(actor, tools=[PATCH, *TOOLS], tool_choice=some)["tools"]] == ["apply_patch"]


def test_a_custom_tool_of_a_namespace_is_answered_with_it(actor: Server) -> None:
    answer = actor.openai().responses.create(model="", input=f"call mcp__web__patch {SAID}", tools=MCP)
    item: Any = answer.output[0]
    assert (*fields(item), item.namespace) == ("custom_tool_call", "patch", PATCHED, "call_0", "mcp__web")


def test_functions_of_a_namespace_are_tools_like_others(actor: Server) -> None:
    """Codex has its MCP tools so. The model gets unique names."""
    tools = seen(actor, tools=[*MCP, *TOOLS, *SKIPPED])["tools"]
    names = ["mcp__files__read-file", "mcp__files__patch", "mcp__web__read-file", "mcp__web__patch", "weather"]
    said = (
        "mcp__files__: Tools of a server.\n\nreads",
        HOW_TO_CALL,
        "mcp__web: Tools of a server.",
        HOW_TO_CALL,
        "of a city",
    )
    assert [(tool["name"], tool["description"]) for tool in tools] == list(zip(names, said, strict=True))
    answer = actor.openai().responses.create(model="", input="say x", tools=[*MCP, *TOOLS, *SKIPPED])
    assert [tool.type for tool in answer.tools] == ["namespace", "namespace", "function"]
    many = [{"type": "function", "name": f"f{i}"} for i in range(300)]  # more than a chat may have
    descriptions = [tool["description"] for tool in seen(actor, tools=[{**MCP[0], "tools": many}])["tools"]]
    assert descriptions == ["mcp__files__: Tools of a server.", *[""] * 299]


SPOKEN = "call mcp__web__read-file {}\ncall weather {}"


def test_a_call_names_the_namespace_of_its_function(actor: Server) -> None:
    ask = actor.openai().responses.create
    whole = ask(model="", input=SPOKEN, tools=[*MCP, *TOOLS]).output
    events = list(ask(model="", input=SPOKEN, tools=[*MCP, *TOOLS], stream=True))
    reply = [
        event.item for event in events if event.type in ("response.output_item.added", "response.output_item.done")
    ]
    for items in (whole, reply[::2], reply[1::2]):
        assert [(item.name, item.namespace) for item in items if item.type == "function_call"] == [
            ("read-file", "mcp__web"),
            ("weather", None),
        ]
    done = [event.name for event in events if event.type == "response.function_call_arguments.done"]
    assert done == ["read-file", "weather"]


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ({"name": "read", "namespace": "a"}, "a__read"),
        ({"name": "read"}, "a__read"),  # there is no other
        ({"name": "a__read"}, "a__read"),
        ({"name": "read-file", "namespace": "mcp__files__"}, "mcp__files__read-file"),
        ({"name": "read-file", "namespace": "mcp__web"}, "mcp__web__read-file"),
        ({"name": "weather"}, "weather"),
    ],
)
def test_functions_of_a_namespace_can_be_chosen(actor: Server, named: dict[str, str], shown: str) -> None:
    tools, one = [OF_A, *MCP, *TOOLS], {"type": "function", **named}
    assert seen(actor, tools=tools, tool_choice=one)["tool_choice"]["name"] == shown
    some = {"type": "allowed_tools", "mode": "required", "tools": [one]}
    assert [tool["name"] for tool in seen(actor, tools=tools, tool_choice=some)["tools"]] == [shown]


def test_a_function_that_is_given_twice_is_one(actor: Server) -> None:
    assert [tool["name"] for tool in seen(actor, tools=[*TOOLS, *TOOLS])["tools"]] == ["weather"]


def test_a_call_into_a_namespace_is_read_again(actor: Server) -> None:
    """As a client sends it, and from what was remembered."""
    asked: list[Any] = [{"role": "user", "content": SPOKEN}]
    first = actor.openai().responses.create(model="", input=asked, tools=[*MCP, *TOOLS])
    results: list[Any] = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "x"}
        for item in first.output
        if item.type == "function_call"
    ]
    more: list[Any] = [*results, {"role": "user", "content": "show"}]
    sent = seen(actor, input=[*asked, *(item.model_dump(exclude_none=True) for item in first.output), *more])
    remembered = seen(actor, input=more, previous_response_id=first.id)
    for request in (sent, remembered):
        assert [call["name"] for call in request["messages"][1]["tool_calls"]] == ["mcp__web__read-file", "weather"]


def test_only_allowed_tools_are_offered(actor: Server) -> None:
    other: Any = {"type": "function", "name": "time"}
    for choice, use in ((allowed("auto", "weather"), "auto"), (allowed("required", "weather"), "required")):
        choice["tools"].append({"type": "image_generation"})
        request = seen(actor, tools=[other, *TOOLS], tool_choice=choice)
        assert [tool["name"] for tool in request["tools"]] == ["weather"]
        assert (request["tool_choice"]["use"], request["tool_choice"]["name"]) == (use, "")
    answer = actor.openai().responses.create(
        model="", input="say x", tools=TOOLS, tool_choice=allowed("auto", "weather")
    )
    assert answer.tool_choice.type == "allowed_tools"  # type: ignore[union-attr]


def test_instructions_alone_are_answered(actor: Server, typist: Server) -> None:
    answer = actor.openai().responses.create(model="", input=[], instructions="Be brief.")
    assert answer.status == "completed"
    typed = typist.openai().responses.create(model="", input=[], instructions="Be brief.", max_output_tokens=5)
    assert len(typed.output_text) == 5
    reply = translate_items("Be brief.", [])
    assert [(place, message["role"]) for place, message in reply] == [("instructions", "system"), ("input", "user")]


def test_a_picture_that_a_call_gave_ends_nothing(actor: Server) -> None:
    output: list[Any] = [
        {"type": "input_text", "text": "Here: "},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf"},
    ]
    conversation: list[Any] = [
        {"type": "function_call", "call_id": "a", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": output},
        {"role": "user", "content": "show"},
    ]
    _, result, _ = seen(actor, input=conversation)["messages"]
    assert result["content"] == "Here: [an image, which this model cannot see][a file, which this model cannot read]"


def test_a_failure_in_the_stream_is_an_event(actor: Server) -> None:
    stream = actor.openai().responses.create(model="", input="say so far\nsleep 0.2\nfail full", stream=True)
    with pytest.raises(openai.APIError, match="no room"):
        list(stream)


@pytest.mark.parametrize("script", ["say so far\nsleep 0.2\nfail full", "say so far\nsleep 0.2\ncrash"])
def test_a_response_that_fails_in_the_stream_says_so_at_last(script: str) -> None:
    asked = {"input": script, "stream": True, "temperature": 0.5, "metadata": {"trace": "7"}}
    with served(directed()) as server:
        read = server.http.post("/v1/responses", json=asked).text
    events = [json.loads(line[6:]) for line in read.splitlines() if line.startswith("data: {")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    error, failed = ResponseErrorEvent(**events[-2]), ResponseFailedEvent(**events[-1])
    response = failed.response
    assert (response.id, response.status) == (events[0]["response"]["id"], "failed")
    assert (response.temperature, response.metadata) == (0.5, {"trace": "7"})
    assert response.error is not None
    assert (response.error.code, response.error.message) == ("server_error", error.message)
    assert (response.output[0].status, response.output_text) == ("incomplete", "so far")


def test_a_limit_beyond_any_context_is_reported_again_as_it_came(actor: Server) -> None:
    asked = {"input": "say x", "max_output_tokens": 2**31 - 1}
    answer = actor.http.post("/v1/responses", json=asked).json()
    assert (answer["status"], answer["max_output_tokens"]) == ("completed", 2**31 - 1)
