"""Stored responses: a client may refer to its own responses by id, as long as there is room to keep them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from doubles.running_server import Server, directed, served

from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.server.responses.encoder import ResponsesEncoder
from eaglelocal.server.responses.routes import store_response
from eaglelocal.server.responses.schema import ResponsesBody
from eaglelocal.server.responses.stored_responses import RecentItems, StoredResponses

SCRIPT = "think It is far.\nsay Let me see.\ncall weather {}"
TOOLS: list[Any] = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
SHOW: Any = {"role": "user", "content": "show"}


def reference(id: str | None) -> Any:
    return {"type": "item_reference", "id": id}


def references(response: Any) -> list[Any]:
    """As the AI SDK sends items back."""
    return [reference(item.id) for item in response.output]


def shown(answer: Any) -> list[tuple[str, str, str]]:
    """Role, thought and text of the messages that reached the engine."""
    return [(one["role"], one["reasoning"], one["content"]) for one in json.loads(answer.output_text)["messages"]]


def refused(server: Server, *, key: str = "none", **asked: Any) -> tuple[int, Any, str]:
    with pytest.raises(openai.APIStatusError) as caught:
        server.openai(key).responses.create(model="", **{"input": "say x"} | asked)
    body: Any = caught.value.body
    return caught.value.status_code, body["param"], body["message"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_second_turn_names_what_the_first_returned(actor: Server, streams: bool) -> None:
    ask = actor.openai().responses
    if streams:
        with ask.stream(model="", input=SCRIPT, tools=TOOLS) as stream:
            first: Any = stream.get_final_response()
    else:
        first = ask.create(model="", input=SCRIPT, tools=TOOLS)
    assert first.store is True
    result: Any = {"type": "function_call_output", "call_id": "call_0", "output": "sunny"}
    user: Any = {"role": "user", "content": SCRIPT}
    for _ in range(2):  # as often as one likes
        second = ask.create(model="", input=[user, *references(first), result, SHOW], tools=TOOLS)
        assert shown(second) == [
            ("user", "", SCRIPT),
            ("assistant", "It is far. ", "Let me see."),
            ("tool", "", "sunny"),
            ("user", "", "show"),
        ]


def test_a_response_goes_on_from_another_without_its_instructions(actor: Server) -> None:
    ask = actor.openai().responses.create
    first = ask(model="", input="say one", instructions="Be brief.")
    second = ask(model="", input=[reference(first.output[0].id), {"role": "user", "content": "say two"}])
    third = ask(model="", input="say three", previous_response_id=second.id, instructions="Be long.")
    assert third.previous_response_id == second.id
    before = [("assistant", "", "one"), ("user", "", "say two"), ("assistant", "", "two"), ("user", "", "say three")]
    last = ask(model="", input=[SHOW], previous_response_id=third.id)
    assert shown(last) == [*before, ("assistant", "", "three"), ("user", "", "show")]
    again = ask(model="", input="show", previous_response_id=second.id, instructions="Be kind.")
    assert shown(again) == [("system", "", "Be kind."), *before[:3], ("user", "", "show")]  # a second branch


@pytest.mark.parametrize("more", [{}, {"type": None}])
def test_an_id_alone_is_a_reference(actor: Server, more: dict[str, Any]) -> None:
    """OpenAI's API lets clients leave out the type."""
    ask = actor.http.post
    first = ask("/v1/responses", json={"input": "think Hm.\nsay one"}).json()
    named = [{"id": item["id"], **more} for item in first["output"]]
    reply = ask("/v1/responses", json={"input": [*named, SHOW]}).json()
    assert json.loads(reply["output"][0]["content"][0]["text"])["messages"][0]["content"] == "one"
    later = ask("/v1/responses", json={"input": "show", "previous_response_id": reply["id"]})
    assert later.status_code == 200 and '\\"one\\"' in later.text
    unknown = ask("/v1/responses", json={"input": [{"id": "msg_of_nobody", **more}, SHOW]})
    error = unknown.json()["error"]
    assert (unknown.status_code, error["param"], error["code"]) == (404, "input.0.id", "item_not_found")
    unsaid = ask("/v1/responses", json={"input": [{"content": "x", **more}]}).json()["error"]
    assert (unsaid["param"], unsaid["message"]) == ("input.0.role", "a message needs a role")


@pytest.mark.parametrize("more", [{}, {"type": None}, {"id": "fc_1"}, {"id": "fc_1", "role": None, "content": None}])
def test_an_item_without_a_type_is_what_its_fields_say(actor: Server, more: dict[str, Any]) -> None:
    call = {"call_id": "c1", "name": "weather", "arguments": "{}", **more}
    items = [SHOW, {"summary": [{"type": "summary_text", "text": "Hm."}], **more}, call]
    items += [{"call_id": "c1", "output": "sunny", **more}, {"call_id": "c2", "name": "sh", "input": "ls", **more}]
    reply = actor.http.post("/v1/responses", json={"input": [*items, SHOW], "tools": TOOLS}).json()
    read = json.loads(reply["output"][0]["content"][0]["text"])["messages"]
    assert [(one["role"], one["content"]) for one in read[1:4]] == [
        ("assistant", ""), ("tool", "sunny"), ("assistant", "")
    ]  # fmt: skip
    assert read[1]["reasoning"] == "Hm."
    assert [[call["name"] for call in one["tool_calls"]] for one in read[1:4]] == [["weather"], [], ["sh"]]
    half = actor.http.post("/v1/responses", json={"input": [{"call_id": "c1", "name": "weather", **more}]}).json()
    assert (half["error"]["param"], half["error"]["message"]) == ("input.0.role", "a message needs a role")


def test_nothing_is_kept_that_must_not_be(actor: Server) -> None:
    first = actor.openai().responses.create(model="", input="say secret", store=False)
    assert first.store is False
    status, parameter, message = refused(actor, input=[SHOW, *references(first)])
    assert (status, parameter) == (404, "input.1.id")
    assert "store: false" in message and "send the item" in message
    assert refused(actor, input=[{"type": "item_reference"}])[:2] == (404, "input.0.id")
    status, parameter, message = refused(actor, previous_response_id=first.id)
    assert (status, parameter) == (400, "previous_response_id")
    assert "send the whole conversation" in message


def test_an_owner_cannot_find_the_response_of_another() -> None:
    keys = ApiKeys((("anna", "key-of-anna-000000"), ("ben", "key-of-ben-0000000")))
    with served(directed(access=Access(keys=keys))) as server:
        first = server.openai("key-of-anna-000000").responses.create(model="", input="say secret")
        bare: Any = [{"id": item.id} for item in first.output]
        for asked in ({"input": references(first)}, {"input": bare}, {"previous_response_id": first.id}):
            status, _, message = refused(server, key="key-of-ben-0000000", **asked)
            assert status in (400, 404) and "not stored" in message
        own = server.openai("key-of-anna-000000").responses.create(model="", input=[*references(first), SHOW])
        assert shown(own)[0] == ("assistant", "", "secret")


def test_a_partial_response_can_be_continued_after_a_disconnect(actor: Server) -> None:
    stream = actor.openai().responses.create(model="", input="think Hm.\nsay so far\nforever", stream=True)
    ids, text = [], ""
    for event in stream:
        if event.type == "response.output_item.added":
            ids.append(event.item.id)
        if event.type == "response.output_text.delta":
            text += event.delta
        if text.endswith("xx"):
            break
    stream.close()
    actor.wait_until_idle()
    answer = actor.openai().responses.create(model="", input=[*map(reference, ids), SHOW])
    (role, thought, said), _ = shown(answer)
    assert (role, thought) == ("assistant", "Hm. ")
    assert said.startswith("so farxx")


@pytest.mark.parametrize("ending", ["sleep 0.2\nfail full", "length"])
def test_what_ended_early_may_be_named(actor: Server, ending: str) -> None:
    read = actor.http.post("/v1/responses", json={"input": f"say so far\n{ending}", "stream": True}).text
    last = [json.loads(line[6:]) for line in read.splitlines() if line.startswith("data: {")][-1]["response"]
    assert last["status"] in ("failed", "incomplete")
    answer = actor.openai().responses.create(model="", input="show", previous_response_id=last["id"])
    assert shown(answer)[1] == ("assistant", "", "so far")


def test_an_unsent_response_is_not_kept() -> None:
    memory, body = StoredResponses(), ResponsesBody(input="say x")
    store_response(ResponsesEncoder("id", "model", body), memory, None, [])
    assert (len(memory.items), len(memory.responses)) == (0, 0)


def test_the_caller_may_leave_out_items_that_cannot_be_returned(actor: Server) -> None:
    first = actor.openai().responses.create(model="", input=f"call {'x' * 300}", tools=TOOLS)
    assert refused(actor, input=[*references(first), SHOW])[:2] == (400, "input.0")
    assert refused(actor, previous_response_id=first.id)[:2] == (400, "previous_response_id")


@pytest.mark.parametrize(
    ("sizes", "left"),
    [
        ([10] * 5, ["2", "3", "4"]),  # three entries at most
        ([50, 50], ["0", "1"]),
        ([50, 51], ["1"]),
        ([10, 90, 20], ["2"]),
        ([10, 20, 101], ["0", "1"]),  # too large by itself
    ],
)
def test_the_room_is_bounded(sizes: list[int], left: list[str]) -> None:
    recent = RecentItems(max_entries=3, max_bytes=100)
    for i, size in enumerate(sizes):
        recent.store(str(i), "x" * (size - 2))  # two quotes
    found = [str(i) for i in range(len(sizes)) if recent.find(str(i)) is not None]
    assert (found, len(recent)) == (left, len(left))
    assert recent.num_bytes == sum(sizes[int(i)] for i in left)


def test_what_is_used_stays() -> None:
    recent = RecentItems(max_entries=2)
    for id in ("a", "b"):
        recent.store(id, id)
    assert recent.find("a") == "a"
    recent.store("c", "c")
    assert [recent.find(id) for id in ("a", "b", "c")] == ["a", None, "c"]


def test_a_chain_with_a_missing_response_is_refused() -> None:
    memory = StoredResponses(responses=RecentItems(max_entries=2))
    reply = [{"id": "msg", "content": "\ud800"}]  # JSON can spell it
    memory.store("1", None, [{"content": "a"}], reply)
    memory.store("2", "1", [{"content": "b"}], [])
    assert memory.find_conversation("2") == [{"content": "a"}, *reply, {"content": "b"}]
    assert memory.find_conversation(None) == []
    memory.store("3", "2", [], [])
    assert memory.find_conversation("3") is None
    assert memory.items.find("msg") == reply[0]
