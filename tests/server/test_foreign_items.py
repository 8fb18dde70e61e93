"""Sessions that began on another provider, with its own tools, continue: the model gets all items that can be read."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from doubles.running_server import Server
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eaglelocal.server.content import UNSEEN_IMAGE
from eaglelocal.server.foreign_items import is_foreign_item, is_server_tool_block, translate_block, translate_item
from eaglelocal.server.responses.schema import Item

ASKED = {"type": "message", "role": "user", "content": "show"}
CALLS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "custom": (
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
        "apply_patch",
        {"input": "*** Begin"},
    ),
    "local shell": (
        {
            "type": "local_shell_call",
            "call_id": "c",
            "action": {"type": "exec", "command": ["ls"]},
            "status": "completed",
        },
        "local_shell",
        {"type": "exec", "command": ["ls"]},
    ),
    "shell": ({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}, "shell", {"commands": ["ls"]}),
    "patch": (
        {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
        "apply_patch",
        {"type": "delete_file", "path": "a"},
    ),
    "computer": ({"type": "computer_call", "call_id": "c", "action": {"type": "click"}}, "computer", {"type": "click"}),
}
OUTPUTS: dict[str, tuple[object, str]] = {
    "custom_tool_call_output": ("Done.", "Done."),
    "local_shell_call_output": ('{"output": "a"}', '{"output": "a"}'),
    "shell_call_output": ([{"stdout": "a", "stderr": ""}], '[{"stdout": "a", "stderr": ""}]'),
    "apply_patch_call_output": (None, ""),
    "computer_call_output": (
        {"type": "computer_screenshot", "image_url": "https://example.com/x.png"},
        UNSEEN_IMAGE,
    ),
    "x_call_output": (
        [{"type": "input_text", "text": "a"}, {"type": "input_audio", "data": "x"}],
        '[{"type": "input_text", "text": "a"}, {"type": "input_audio", "data": "..."}]',
    ),
    "tool_search_output": (None, ""),
    "y_call_output": ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
}
TEXTS: dict[str, tuple[dict[str, Any], str]] = {
    "web_search_call": ({"id": "ws", "action": {"type": "search", "query": "owls"}}, '"query": "owls"'),
    "file_search_call": ({"queries": ["owls"], "results": [{"text": "An owl."}]}, "An owl."),
    "code_interpreter_call": ({"code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]}, '"logs": "2"'),
    "image_generation_call": ({"result": "iVBORw0KGgo" * 1000, "revised_prompt": "an owl"}, "an owl"),
    "mcp_call": ({"name": "read", "arguments": '{"path": "a"}', "output": "text", "server_label": "files"}, "files"),
    "mcp_approval_request": ({"name": "read", "server_label": "files"}, "read"),
    "tool_search_output": ({"tools": [{"type": "function", "name": "owls"}]}, "owls"),
    "tool_search_call": ({"arguments": {"query": "owls"}}, "owls"),
}


def seen(server: Server, *items: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages that reached the engine, without the question."""
    answer = server.http.post("/v1/responses", json={"input": [*items, ASKED]})
    assert answer.status_code == 200, answer.text
    reply = json.loads(answer.json()["output"][0]["content"][0]["text"])
    messages: list[dict[str, Any]] = reply["messages"]
    return messages[:-1]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_a_call_and_its_output_a_result(actor: Server, name: str) -> None:
    item, called, arguments = CALLS[name]
    result = {"type": f"{item['type']}_output", "call_id": "c", "output": "It is done."}
    call, given = seen(actor, item, result)
    (reply,) = call["tool_calls"]
    assert (reply["id"], reply["name"], json.loads(reply["arguments"])) == ("c", called, arguments)
    assert (given["role"], given["tool_call_id"], given["content"]) == ("tool", "c", "It is done.")


@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_output_of_any_shape_is_read(actor: Server, kind: str) -> None:
    output, read = OUTPUTS[kind]
    (message,) = seen(actor, {"type": kind, "call_id": "c", "output": output})
    assert (message["role"], message["content"]) == ("tool", read)


@pytest.mark.parametrize("kind", TEXTS)
def test_what_others_did_by_themselves_is_reported_as_a_text(actor: Server, kind: str) -> None:
    item, read = TEXTS[kind]
    (message,) = seen(actor, {"type": kind, "id": "x", "status": "completed", **item})
    assert message["role"] == "assistant" and message["content"].startswith(f"[{kind}: ")
    assert read in message["content"] and "iVBORw0KGgo" not in message["content"]


@pytest.mark.parametrize("kind", ["compaction", "mcp_list_tools", "reasoning"])
def test_items_without_text_are_skipped(actor: Server, kind: str) -> None:
    item = {"type": kind, "id": "x", "encrypted_content": "gAAAA", "tools": [], "summary": []}
    before = {"type": "message", "role": "assistant", "content": "a"}
    assert [message["content"] for message in seen(actor, item, before, item)] == ["a"]


def test_an_approval_is_the_person_s(actor: Server) -> None:
    (message,) = seen(actor, {"type": "mcp_approval_response", "approval_request_id": "x", "approve": True})
    assert message["role"] == "user" and '"approve": true' in message["content"]


def test_a_foreign_item_can_be_continued_by_its_id(actor: Server) -> None:
    first = actor.http.post("/v1/responses", json={"input": [CALLS["custom"][0], {**ASKED, "content": "say x"}]}).json()
    answer = actor.http.post("/v1/responses", json={"input": [ASKED], "previous_response_id": first["id"]})
    reply = json.loads(answer.json()["output"][0]["content"][0]["text"])
    assert reply["messages"][0]["tool_calls"][0]["name"] == "apply_patch"


def test_a_custom_tool_s_call_in_a_chat_is_one_of_a_function(actor: Server) -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin"}}
    said = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "Done."}]
    answer = actor.http.post("/v1/chat/completions", json={"messages": [*said, {"role": "user", "content": "show"}]})
    reply = json.loads(answer.json()["choices"][0]["message"]["content"])["messages"][0]["tool_calls"][0]
    assert (reply["name"], json.loads(reply["arguments"])) == ("apply_patch", {"input": "*** Begin"})


def test_what_anthropic_s_own_tools_did_is_reported_as_a_text(actor: Server) -> None:
    result = {"type": "web_search_result", "title": "Owls", "url": "https://example.com", "encrypted_content": "gAAAA"}
    said = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "owls"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [result]},
        {"type": "mcp_tool_use", "id": "m", "name": "read", "server_name": "files", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "a"}]},
        {"type": "text", "text": "Owls are birds."},
    ]
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "show"},
    ]
    answer = actor.http.post("/v1/messages", json={"messages": turns, "max_tokens": 9})
    assert answer.status_code == 200, answer.text
    content = json.loads(answer.json()["content"][0]["text"])["messages"][1]["content"]
    assert '"query": "owls"' in content and "Owls are birds." in content and "gAAAA" not in content


def test_blocks_of_searches_and_compactions_are_reported_as_texts(actor: Server) -> None:
    found = {"type": "search_result", "source": "https://example.com", "title": "Owls", "content": [{"type": "text"}]}
    kept = {"type": "compaction", "content": "We spoke of birds."}
    for role, block, read in (("assistant", kept, "We spoke of birds."), ("user", found, "https://example.com")):
        turns = [{"role": role, "content": [block]}, {"role": "user", "content": "show"}]
        asked = {"messages": turns, "max_tokens": 9}
        answer = actor.http.post("/v1/messages", json=asked)
        assert answer.status_code == 200, answer.text
        content = json.loads(answer.json()["content"][0]["text"])["messages"][0]["content"]
        assert content.startswith(f"[{block['type']}: ") and read in content


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("call_id", "name", "input", "action", "operation", "output", "content", "namespace", "result", "id", "role")


@given(
    st.sampled_from([*OUTPUTS, *TEXTS, *(item["type"] for item, _, _ in CALLS.values()), "x_call", "y_tool_result"]),
    st.dictionaries(st.sampled_from(FIELDS), values),
)
def test_whatever_stands_in_an_item_it_is_read_or_refused(kind: str, said: dict[str, Any]) -> None:
    if is_foreign_item(kind):
        made = translate_item({"type": kind, **said})
        assert made["type"] in ("reasoning", "message", "function_call", "function_call_output")
        with contextlib.suppress(ValidationError):
            assert Item.model_validate({"type": kind, **said}).type == made["type"]
    if is_server_tool_block(kind):
        assert translate_block({"type": kind, **said})["text"].startswith(f"[{kind}")
