"""GET and POST /lora-adapters, and `lora` in requests, as llama-server has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.directed_server_engine import plan
from doubles.running_server import Server, directed, served

from eaglelocal.client.http_client import HttpClient
from eaglelocal.client.servers.eaglelocal_server import parse_snapshot
from eaglelocal.core.adapters import AdapterFile, describe_adapters
from eaglelocal.server.access import THIS_MACHINE, Access, ApiKeys

OPERATOR, GUEST, OTHER = "o" * 20, "g" * 20, "h" * 20
CHAT = {"messages": [{"role": "user", "content": "show"}]}


@pytest.fixture(scope="module")
def adapted() -> Iterator[Server]:
    """A model with two adapters; the guest is no operator."""
    adapters = (AdapterFile(Path("/home/anna/poems.gguf"), 0.5), AdapterFile(Path("code.gguf"), 0.0))
    access = Access(keys=ApiKeys(((THIS_MACHINE, OPERATOR), ("guest", GUEST), ("other", OTHER))))
    setup = directed(plans={"actor": replace(plan(), adapters=adapters)}, access=access)
    with served(setup) as server:
        server.http.headers["Authorization"] = f"Bearer {OPERATOR}"
        yield server


def scales(server: Server) -> list[float]:
    return [adapter["scale"] for adapter in server.http.get("/lora-adapters").json()]


def test_adapters_are_listed_and_their_scales_are_set(adapted: Server) -> None:
    listed = adapted.http.get("/lora-adapters").json()
    assert listed == [{"id": 0, "path": "poems.gguf", "scale": 0.5}, {"id": 1, "path": "code.gguf", "scale": 0.0}]
    reply = adapted.http.post("/lora-adapters", json=[{"id": 1, "scale": 2}])
    assert (reply.status_code, reply.json()) == (200, {"success": True})
    assert scales(adapted) == [0.0, 2.0]
    assert adapted.http.post("/lora-adapters", json=[]).status_code == 200
    assert scales(adapted) == [0.0, 0.0]


def test_they_are_shown_wherever_a_model_is(adapted: Server) -> None:
    assert adapted.http.post("/lora-adapters", json=[{"id": 1, "scale": 2}]).status_code == 200
    expected = [{"id": 0, "name": "poems.gguf", "scale": 0.0}, {"id": 1, "name": "code.gguf", "scale": 2.0}]
    props = adapted.http.get("/props").json()
    lora = props["default_generation_settings"]["params"]["lora"]
    assert (props["adapters"], [each["scale"] for each in lora]) == (expected, [0.0, 2.0])
    assert adapted.http.get("/v1/models").json()["data"][0]["adapters"] == expected
    snapshot = adapted.http.get("/v1/snapshot").json()
    assert snapshot["model"]["adapters"] == snapshot["loaded"][0]["adapters"] == expected
    assert parse_snapshot(snapshot).adapters == "0 poems.gguf off, 1 code.gguf x 2"
    client = HttpClient(adapted.url, api_key=OPERATOR)
    assert describe_adapters(client.start().adapters) == "0 poems.gguf off, 1 code.gguf x 2"
    client.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([{"id": 2, "scale": 1}], "the ids are 0 to 1"),
        ([{"id": 0, "scale": 1}, {"id": 0, "scale": 1}], "twice"),
        ([{"id": 0, "scale": 5000}], "scale"),
        ([{"id": 0}], "scale"),
        ([{"scale": 1}], "id"),
        ({"id": 0, "scale": 1}, "list"),
        ([{"id": "a", "scale": 1}], "id"),
        ([7], "0"),
    ],
)
def test_an_invalid_list_of_scales_is_refused(adapted: Server, body: object, said: str) -> None:
    before = scales(adapted)
    reply = adapted.http.post("/lora-adapters", json=body)
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]
    assert scales(adapted) == before


def test_only_the_operator_sets_them_for_everybody(adapted: Server) -> None:
    guest = {"Authorization": f"Bearer {GUEST}"}
    assert adapted.http.post("/lora-adapters", json=[], headers=guest).status_code == 403
    assert adapted.http.get("/lora-adapters", headers=guest).status_code == 200


@pytest.mark.parametrize(
    ("lora", "wanted"),
    [
        ([{"id": 1, "scale": 0.5}], [[1, 0.5]]),
        ([{"id": 1, "scale": 0.5}, {"id": 0, "scale": -1}], [[1, 0.5], [0, -1.0]]),
        ([], None),
        (None, None),
    ],
)
def test_requests_of_every_api_choose_their_own(adapted: Server, lora: object, wanted: object) -> None:
    chat = adapted.http.post("/v1/chat/completions", json={**CHAT, "lora": lora}).json()
    messages = adapted.http.post("/v1/messages", json={**CHAT, "max_tokens": 64, "lora": lora}).json()
    text = adapted.http.post("/v1/completions", json={"prompt": "show", "lora": lora}).json()
    own = adapted.http.post("/completion", json={"prompt": "show", "lora": lora}).json()
    for said in (
        chat["choices"][0]["message"]["content"],
        messages["content"][0]["text"],
        text["choices"][0]["text"],
        own["content"],
    ):
        assert json.loads(said)["adapters"] == wanted
