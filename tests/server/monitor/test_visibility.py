"""What each key may read: operators everything, others their own requests, and nothing of other owners or of paths."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until

from eaglelocal.client.servers.eaglelocal_server import parse_snapshot
from eaglelocal.core.stats import LearningStatus
from eaglelocal.server.access import THIS_MACHINE, Access, ApiKeys
from eaglelocal.server.app import TABLES
from eaglelocal.worker.supervisor import RestartPolicy

ANNA, BEN, OWN = "key-of-anna-0123456", "key-of-ben-01234567", "key-of-this-machine"
KEYS = ApiKeys((("anna", ANNA), ("ben", BEN), (THIS_MACHINE, OWN)))
LEARNED = LearningStatus(kept_answers=31337, version=4242, note="/home/anna/heads is full")
DRIFTED = "anna's model"
SECRETS = ("anna", "31337", "4242", "no-such.gguf")  # the last: why a model was not loaded
ROUTES = sorted({one.path for table in TABLES for one in table.routes if one.method == "GET" and "{" not in one.path})


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """Anna has asked and is still asking; learning is on, something has drifted, and a model could not be loaded."""
    with served(directed("actor", "broken", access=Access(keys=KEYS))) as server:
        server.serving.read_learning = lambda: LEARNED
        for number in range(80):
            server.serving.drift.add(DRIFTED, "code", 20, 14 if number < 60 else 2, {"draft": "a"})
        assert ask(server, BEN, "say x").status_code == ask(server, ANNA, "say y").status_code == 200
        assert ask(server, ANNA, "say x", model="broken").status_code == 503
        running = server.http.stream("POST", "/v1/completions", json=FOREVER, headers=bearer(ANNA))
        with running:
            wait_until(lambda: len(server.serving.active) == 1, "it runs")
            yield server
        server.serving.drift._targets.pop(DRIFTED)


FOREVER = {"model": "", "prompt": "forever", "stream": True}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(server: Server, key: str, script: str, **more: object) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": script}], **more}
    return server.http.post("/v1/chat/completions", json=body, headers=bearer(key))


def read(server: Server, path: str, key: str) -> str:
    """Return headers and body; of a stream its first event."""
    with server.http.stream("GET", path, headers=bearer(key)) as response:
        body = next(response.iter_lines()) if path == "/v1/events" else response.read().decode()
    return f"{response.headers} {body}"


@pytest.mark.parametrize("path", [*ROUTES, "/props?model=broken", "/slots?model=broken", "/v1/models/broken"])
def test_an_owner_reads_nothing_of_other_owners(shared: Server, path: str) -> None:
    (request_id,) = shared.serving.active
    shown = read(shared, path, BEN)
    assert [secret for secret in (*SECRETS, request_id, ANNA, OWN) if secret in shown] == []


@pytest.mark.parametrize("path", ["/v1/snapshot", "/v1/events"])
def test_an_operator_reads_everything(shared: Server, path: str) -> None:
    shown = read(shared, path, OWN)
    assert [secret for secret in ("anna", "31337", "4242", *shared.serving.active) if secret not in shown] == []


def test_metrics_of_learning_are_an_operators(shared: Server) -> None:
    mine, all_of_them = read(shared, "/metrics", BEN), read(shared, "/metrics", OWN)
    assert "eaglelocal:learning_kept_answers 31337.0" in all_of_them
    assert f'target="{DRIFTED}"' in all_of_them
    assert "num_requests_running 1.0" in mine and "generation_tokens_total" in all_of_them


def test_no_figure_of_a_key_changes_by_what_another_asks(shared: Server) -> None:
    """Totals would: what is left of them without one's own is the others'."""

    def figures() -> list[object]:
        snapshot = shared.http.get("/v1/snapshot", headers=bearer(BEN)).json()
        changing = {name: snapshot.pop(name) for name in ("time", "uptime_s")}
        assert len(changing) == 2
        return [snapshot, read(shared, "/metrics", BEN).splitlines()[1:]]

    before = figures()
    assert ask(shared, ANNA, "say what only anna knows").status_code == 200
    wait_until(lambda: len(shared.serving.active) == 1, "only the endless one runs")
    assert figures() == before


def test_a_monitor_shows_ones_own_requests_and_the_model(shared: Server) -> None:
    def reading(key: str) -> tuple[object, ...]:
        found = parse_snapshot(shared.http.get("/v1/snapshot", headers=bearer(key)).json())
        rows = (*(found.requests or ()), *found.recent)
        return found.model, found.state, found.num_slots, found.running, sorted({row.owner for row in rows})

    assert reading(BEN) == ("actor", "ready", 4, 1, ["ben"])
    assert reading(ANNA) == ("actor", "ready", 4, 1, ["anna"])
    assert reading(OWN) == ("actor", "ready", 4, 1, ["anna", "ben"])


def test_operators_see_why_a_model_is_not_loaded(shared: Server) -> None:
    answers = {key: ask(shared, key, "say x", model="broken") for key in (BEN, OWN)}
    assert {answer.status_code for answer in answers.values()} == {503}
    messages = {key: answer.json()["error"]["message"] for key, answer in answers.items()}
    assert messages[BEN] == "broken cannot be loaded; its operator finds the reason in the server's log"
    assert "no-such.gguf is not a GGUF file" in messages[OWN]


def test_operators_see_why_an_engine_failed() -> None:
    """Its error quotes llama.cpp's last lines, with the paths of files."""
    restart = RestartPolicy(max_crashes=99, first_delay_s=0.01)
    with served(directed(access=Access(keys=KEYS), restart=restart)) as server:

        def fail(path: str, key: str) -> httpx.Response:
            said = [{"role": "user", "content": f"say {path} {key}\nfail broken"}]  # the same one would be refused
            body = {"model": "", ("input" if path == "/v1/responses" else "messages"): said, "stream": False}
            limit = {} if path == "/v1/responses" else {"max_tokens": 9}
            return server.http.post(path, json=body | limit, headers=bearer(key))

        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            answers = {key: fail(path, key) for key in (BEN, OWN)}
            assert {answer.status_code for answer in answers.values()} == {500}
            assert "it broke" not in answers[BEN].text and "the engine failed" in answers[BEN].text
            assert "it broke" in answers[OWN].text
