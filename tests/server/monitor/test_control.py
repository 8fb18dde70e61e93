"""Control routes for monitors: cancel a request, switch drafting; and access to them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until

from eaglelocal.client.servers.eaglelocal_server import parse_snapshot
from eaglelocal.server.access import THIS_MACHINE, Access, ApiKeys
from eaglelocal.worker.supervisor import RestartPolicy

ANNA, BEN, OWN = "key-of-anna-0123456", "key-of-ben-01234567", "key-of-this-machine"


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """Several people have keys, and the machine's user has one."""
    keys = ApiKeys((("anna", ANNA), ("ben", BEN), (THIS_MACHINE, OWN)))
    with served(directed(access=Access(keys=keys))) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def asked_aside(server: Server, answers: list[httpx.Response], **more: object) -> threading.Thread:
    """An endless question on a thread of its own; its answer, once it comes, is in the list."""
    headers = bearer(ANNA) if server.setup.access.keys else {}
    body = {"messages": [{"role": "user", "content": "forever"}], **more}

    def ask() -> None:
        answers.append(httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=30))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def running_id(server: Server, headers: dict[str, str] | None = None) -> str:
    def rows() -> list[dict[str, object]]:
        found: list[dict[str, object]] = server.http.get("/v1/snapshot", headers=headers).json()["requests"]
        return [row for row in found if row["state"] == "running"]

    wait_until(lambda: bool(rows()), "it runs")
    return str(rows()[0]["id"])


def test_a_request_is_cancelled_and_its_caller_notified(actor: Server) -> None:
    answers: list[httpx.Response] = []
    thread = asked_aside(actor, answers)
    wanted = running_id(actor)
    reply = actor.http.post(f"/v1/requests/{wanted}/cancel")
    assert (reply.status_code, reply.json()) == (200, {"id": wanted, "cancelled": True})
    thread.join(10)
    assert answers[0].status_code == 499  # clients ask again after a 5xx, and take 403 for a matter of keys
    error = answers[0].json()["error"]
    assert (error["type"], error["code"]) == ("request_cancelled", "cancelled")
    assert "cancelled at the server" in error["message"]
    actor.wait_until_idle()


@pytest.mark.parametrize(
    ("path", "more"),
    [("/v1/messages", {"max_tokens": 9}), ("/v1/responses", {}), ("/api/chat", {"stream": False})],
)
def test_every_api_says_that_it_was_cancelled(actor: Server, path: str, more: dict[str, object]) -> None:
    said = [{"role": "user", "content": "forever"}]
    body = {"model": "actor", ("input" if path == "/v1/responses" else "messages"): said, **more}
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(actor.http.post(path, json=body)))
    thread.start()
    actor.http.post(f"/v1/requests/{running_id(actor)}/cancel")
    thread.join(10)
    assert (answers[0].status_code, "cancelled at the server" in answers[0].text) == (499, True)
    actor.wait_until_idle()


def test_clients_without_keys_are_distinguished(actor: Server) -> None:
    body = {"messages": [{"role": "user", "content": "say x"}]}
    for agent in ("curl/7.88.1", "OpenAI/Python 2.1"):
        assert actor.http.post("/v1/chat/completions", json=body, headers={"User-Agent": agent}).status_code == 200
    reading = parse_snapshot(actor.http.get("/v1/snapshot").json())
    assert {row.owner for row in reading.recent} >= {"curl", "OpenAI"}


def test_a_stream_that_is_cancelled_ends_with_an_error(actor: Server) -> None:
    answers: list[httpx.Response] = []
    thread = asked_aside(actor, answers, stream=True)
    actor.http.post(f"/v1/requests/{running_id(actor)}/cancel")
    thread.join(10)
    lines = [line for line in answers[0].text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "cancelled"
    actor.wait_until_idle()


def test_what_does_not_run_cannot_be_cancelled(actor: Server) -> None:
    reply = actor.http.post("/v1/requests/no-such/cancel")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "request_not_found")


def test_who_may_cancel_whose(shared: Server) -> None:
    answers: list[httpx.Response] = []
    thread = asked_aside(shared, answers)
    wanted = f"/v1/requests/{running_id(shared, bearer(ANNA))}/cancel"
    assert shared.http.post(wanted).status_code == 401
    assert shared.http.post(wanted, headers=bearer(BEN)).status_code == 403
    assert thread.is_alive()
    assert shared.http.post(wanted, headers=bearer(ANNA)).status_code == 200
    thread.join(10)
    thread = asked_aside(shared, answers)
    wanted = f"/v1/requests/{running_id(shared, bearer(OWN))}/cancel"
    assert shared.http.post(wanted, headers=bearer(OWN)).status_code == 200
    thread.join(10)
    assert [answer.status_code for answer in answers] == [499, 499]


@pytest.mark.parametrize("spec", ["off", "auto", "pid", 3])
def test_drafting_is_switched(actor: Server, spec: str | int) -> None:
    try:
        reply = actor.http.post("/v1/speculation", json={"spec": spec})
        assert (reply.status_code, reply.json()) == (200, {"spec": str(spec)})
        wait_until(lambda: actor.snapshot()["engine"]["spec"] == str(spec), "the engine has received it")
    finally:
        actor.http.post("/v1/speculation", json={"spec": "auto"})


@pytest.mark.parametrize("body", [{}, {"spec": "on"}, {"spec": 17}, {"spec": -1}, {"spec": None}, []])
def test_an_invalid_spec_is_refused(actor: Server, body: object) -> None:
    assert actor.http.post("/v1/speculation", json=body).status_code == 400


def test_only_the_operator_switches_for_everybody(shared: Server) -> None:
    def switch(key: str) -> int:
        return shared.http.post("/v1/speculation", json={"spec": "off"}, headers=bearer(key)).status_code

    assert [switch(key) for key in (ANNA, BEN, OWN)] == [403, 403, 200]
    reply = {key: shared.http.get("/v1/snapshot", headers=bearer(key)).json()["is_operator"] for key in (ANNA, OWN)}
    assert reply == {ANNA: False, OWN: True}


def test_the_only_key_that_was_given_out_is_an_operators() -> None:
    assert Access().operators == {"local", THIS_MACHINE}
    assert Access(keys=ApiKeys((("anna", ANNA), (THIS_MACHINE, OWN)))).operators == {"local", THIS_MACHINE, "anna"}
    assert "anna" not in Access(keys=ApiKeys((("anna", ANNA), ("ben", BEN)))).operators


def test_a_process_that_comes_after_a_crash_drafts_as_was_switched() -> None:
    with served(directed(restart=RestartPolicy(max_crashes=9, first_delay_s=0.01))) as server:
        server.http.post("/v1/speculation", json={"spec": "off"})
        before = server.snapshot()["engine"]["pid"]
        assert server.ask("crash").status_code >= 500
        wait_until(lambda: server.snapshot()["engine"]["pid"] not in (before, 0), "another process runs")
        wait_until(lambda: server.snapshot()["engine"]["spec"] == "off", "it has received it")


def test_an_answer_that_runs_stops_drafting_and_begins_again(typist: Server) -> None:
    """The text is the same, however it was switched meanwhile."""
    body = {"prompt": "Once upon", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    whole = typist.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    parts = []
    with typist.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                parts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
                if len(parts) in (5, 20):
                    spec = "off" if len(parts) == 5 else 4
                    assert typist.http.post("/v1/speculation", json={"spec": spec}).status_code == 200
    typist.http.post("/v1/speculation", json={"spec": 4})
    assert "".join(parts) == whole
    newest = typist.snapshot()["recent"][0]
    assert 0 < newest["accepted_tokens"] < newest["completion_tokens"]


def test_a_request_that_waits_for_its_model_is_cancelled() -> None:
    """What came behind it for the model that is loaded need not wait for it any longer."""
    with served(directed("one", "two")) as server:
        running: list[httpx.Response] = []
        waiting: list[httpx.Response] = []
        first = asked_aside(server, running, model="one")
        wanted = running_id(server)
        second = asked_aside(server, waiting, model="two")
        wait_until(lambda: len(server.snapshot()["requests"]) == 2, "it waits for its model")
        other = next(row["id"] for row in server.snapshot()["requests"] if row["id"] != wanted)
        assert server.http.post(f"/v1/requests/{other}/cancel").status_code == 200
        second.join(10)
        assert (waiting[0].status_code, waiting[0].json()["error"]["code"]) == (499, "cancelled")
        assert first.is_alive() and server.ask("say x", model="one").status_code == 200
        assert server.http.post(f"/v1/requests/{wanted}/cancel").status_code == 200
        first.join(10)


def test_a_model_that_is_loaded_later_drafts_as_was_switched() -> None:
    with served(directed("one", "two")) as server:
        server.http.post("/v1/speculation", json={"spec": "off"})
        assert server.ask("say x", model="two").status_code == 200
        wait_until(lambda: server.snapshot()["engine"]["spec"] == "off", "it has received it")


@pytest.mark.parametrize(("spec", "is_cut"), [(8, True), (7, False), ("auto", False), (None, False)])
def test_an_unsupported_draft_length_is_reported_in_a_header(
    actor: Server, spec: int | str | None, is_cut: bool
) -> None:
    reply = actor.ask("say x", **({} if spec is None else {"spec": spec}))
    said = "spec: at most 7 tokens can be drafted here, not 8"
    assert (reply.status_code, reply.headers.get("x-eaglelocal-warning")) == (200, said if is_cut else None)
