"""Engines that die, hang or fail while they answer; clients that disconnect; a server that is stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from doubles.directed_server_engine import plan
from doubles.property_tests import examples
from doubles.raw_server_client import connected, request
from doubles.running_server import Server, directed, served, typing
from doubles.timeouts import PATIENCE_S, wait_until
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from eaglelocal.server.server_state import ServerLimits
from eaglelocal.worker.supervisor import RestartPolicy

pytestmark = pytest.mark.full

QUICK = RestartPolicy(first_delay_s=0.05, max_delay_s=0.05, max_crashes=3, stable_s=600)


def run_script(script: str) -> list[Any]:
    return [{"role": "user", "content": script}]


@pytest.fixture
def mortal() -> Iterator[Server]:
    """May be killed."""
    with served(directed(restart=QUICK)) as server:
        yield server


# ---- the engine
def test_a_stream_that_breaks_ends_with_an_error_and_done(mortal: Server) -> None:
    events = events_of(mortal, "say so far\nsleep 0.2\ncrash")
    assert events[-1] == "[DONE]"
    error = json.loads(events[-2])["error"]
    assert (error["type"], error["code"]) == ("api_error", "engine_error")
    assert "so far" in "".join(json.loads(e)["choices"][0]["delta"].get("content", "") for e in events[:-2])
    assert mortal.ask("say on").json()["choices"][0]["message"]["content"] == "on"
    told_of = mortal.snapshot()
    assert (told_of["restarts"], told_of["state"]) == (1, "ready")


def events_of(server: Server, script: str) -> list[str]:
    """Data of a streamed answer, to its end."""
    with server.http.stream(
        "POST", "/v1/chat/completions", json={"messages": run_script(script), "stream": True}
    ) as answer:
        assert answer.status_code == 200
        return [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]


def test_a_kill_from_outside_is_seen_only_by_answers_that_had_begun_to_come(mortal: Server) -> None:
    """Also the same one each time: no request is refused for it."""
    for n in range(3):
        with ThreadPoolExecutor(2) as askers:
            broken = askers.submit(mortal.ask, "say once\nforever")
            wait_until(lambda: any(one.num_tokens for _, one in [*mortal.serving.active.values()]), "it is answered")
            whole = askers.submit(mortal.ask, "sleep 1\nsay whole")
            wait_until(lambda: len(mortal.serving.active) == 2, "both were sent")
            pid = mortal.clients[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert mortal.ask("say next").status_code == 200
            assert (broken.result().status_code, whole.result().status_code) == (500, 200)
        assert mortal.snapshot()["restarts"] == n + 1


def test_openais_client_raises_what_breaks_in_the_stream(mortal: Server) -> None:
    stream = mortal.openai().chat.completions.create(
        model="", messages=run_script("say so far\nsleep 0.2\ncrash"), stream=True
    )
    with pytest.raises(openai.APIError):
        list(stream)


def test_an_answer_that_breaks_is_500_in_shape(mortal: Server) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        mortal.openai().chat.completions.create(model="", messages=run_script("say so far\ncrash"))
    assert (caught.value.status_code, caught.value.code) == (500, "engine_error")
    refused = mortal.http.post("/v1/messages", json={"max_tokens": 9, "messages": run_script("crash")})
    assert (refused.status_code, refused.json()["error"]["type"]) == (500, "api_error")


def test_all_that_ran_together_break_together(mortal: Server) -> None:
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(mortal.ask("forever"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: mortal.snapshot()["running"] == 3, "they run")
    assert mortal.ask("crash").status_code == 500
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [answer.status_code for answer in answers] == [500] * 3
    mortal.wait_until_idle()


def test_while_it_restarts_the_state_is_reported_and_questions_wait() -> None:
    slow = RestartPolicy(first_delay_s=0.6, max_delay_s=0.6)
    with served(directed(restart=slow)) as server:
        server.ask("crash")
        server.ask("crash")  # the second crash in a row is followed by a pause
        health = server.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "restarting")
        assert int(health.headers["retry-after"]) >= 1
        assert server.ask("say on").status_code == 200
        assert server.http.get("/health").status_code == 200


def test_repeated_crashes_end_in_a_clear_message(mortal: Server) -> None:
    for n in range(3):
        assert mortal.ask(f"crash {n}").status_code == 500
    wait_until(lambda: mortal.serving.state == "failed", "it is given up")
    assert mortal.http.get("/health").json()["status"] == "failed"
    refused = mortal.ask("say on")
    assert "failed 3 times in a row" in refused.json()["error"]["message"]
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
    assert mortal.http.get("/metrics").status_code == mortal.http.get("/v1/snapshot").status_code == 200


def test_a_request_that_crashed_the_engine_twice_is_refused_by_name(mortal: Server) -> None:
    for _ in range(2):
        assert mortal.ask("say so far\ncrash").status_code == 500
    refused = mortal.ask("say so far\ncrash", n=2)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "request_crashes_engine")
    assert "crashed 2 times" in refused.json()["error"]["message"]
    assert mortal.ask("say on").status_code == 200
    assert mortal.snapshot()["restarts"] == 2


def test_an_engine_that_is_away_is_reported_by_every_route() -> None:
    """Not loaded, restarting, and why; no path of a report."""
    away = RestartPolicy(max_crashes=1, num_retries=9, retry_s=600, max_retry_s=600)
    with served(directed(restart=away)) as server:
        card = server.http.get("/v1/models").json()["data"][0]
        assert (card["loaded"], card["state"]) == (True, "ready")
        assert len(server.http.get("/api/ps").json()["models"]) == 1
        assert server.ask("crash").status_code == 500
        wait_until(lambda: server.serving.state == "restarting", "it is gone")
        card = server.http.get("/v1/models").json()["data"][0]
        assert (card["loaded"], card["state"]) == (False, "restarting")
        assert server.http.get("/api/ps").json()["models"] == []
        wait_until(lambda: "started again in 600 s" in server.http.get("/health").json()["detail"], "when it starts")
        health = server.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "restarting")
        assert "crashes/" not in health.text
        refused = server.ask("say on")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert "crashes/" not in refused.text


def test_no_room_is_503_and_the_engine_stays(actor: Server) -> None:
    answer = actor.ask("fail full")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")
    assert actor.ask("say on").status_code == 200


def test_an_engine_that_hangs_is_504_when_the_time_is_over() -> None:
    with served(directed(limits=ServerLimits(request_s=0.3))) as server:
        answer = server.ask("hang")
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        assert server.http.get("/health").status_code == 200


def test_a_stream_that_has_nothing_to_say_pings() -> None:
    with served(directed(limits=ServerLimits(ping_s=0.02, first_event_s=0.02))) as server:
        answer = server.ask("sleep 0.3\nsay late", stream=True)
        assert answer.text.count(": ping") >= 3
        assert "late" in answer.text
        text = server.openai().chat.completions.create(
            model="", messages=run_script("sleep 0.2\nsay late"), stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in text) == "late"


# ---- callers
def test_closing_a_stream_frees_its_slot(typist: Server) -> None:
    for _ in range(8):  # there are four slots
        stream = typist.openai().chat.completions.create(
            model="", messages=run_script("Hello."), stream=True, extra_body={"ignore_eos": True}, max_tokens=400
        )
        next(iter(stream))
        stream.close()
    typist.wait_until_idle()
    assert typist.ask("Hello.").status_code == 200


def test_hanging_up_on_a_whole_answer_cancels_it(actor: Server) -> None:
    with connected(actor.port) as sock:
        sock.sendall(request("/v1/chat/completions", json.dumps({"messages": run_script("forever")}).encode()))
        wait_until(lambda: actor.snapshot()["running"] == 1, "it runs")
    actor.wait_until_idle()


def test_hanging_up_on_one_choice_of_many_cancels_all(actor: Server) -> None:
    with connected(actor.port) as sock:
        body = json.dumps({"messages": run_script("forever"), "n": 4, "stream": True}).encode()
        sock.sendall(request("/v1/chat/completions", body))
        wait_until(lambda: actor.snapshot()["running"] == 4, "they run")
    actor.wait_until_idle()


def test_a_failure_of_one_choice_cancels_the_others(actor: Server) -> None:
    """Recognized by its prompt: plain completions take several."""
    answer = actor.http.post("/v1/completions", json={"prompt": ["forever", "forever", "refuse stop code"]})
    assert answer.status_code == 400
    actor.wait_until_idle()


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(0, 400), st.booleans(), st.integers(0, 3000), st.booleans()), max_size=6))
def test_callers_that_hang_up_anywhere_leak_nothing(typist: Server, cuts: list[tuple[int, bool, int, bool]]) -> None:
    """After so many bytes of the question and so many of the answer, politely or not."""
    before = typist.num_tasks()
    socks = []
    for num_sent, is_whole, num_read, is_rude in cuts:
        body = json.dumps({"messages": run_script("Hi."), "stream": is_whole, "max_tokens": 300, "ignore_eos": True})
        sent = request("/v1/chat/completions", body.encode())
        sock = socket.create_connection(("127.0.0.1", typist.port), timeout=PATIENCE_S)
        sock.sendall(sent if is_whole else sent[:num_sent])
        if num_read and (is_whole or num_sent >= len(sent)):
            sock.recv(num_read)
        if is_rude:  # a reset instead of an end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        socks.append(sock)
    for sock in socks:
        sock.close()
    typist.wait_until_idle()
    wait_until(lambda: typist.num_tasks() <= before, "no task is left")


def test_a_reader_that_does_not_read_does_not_hold_its_place_for_ever() -> None:
    limits = ServerLimits(request_s=0.5, linger_s=0.1)
    with served(directed(limits=limits)) as server, connected(server.port) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"messages": run_script("say " + "x" * 1_000_000), "n": 16, "stream": True}).encode()
        sock.sendall(request("/v1/chat/completions", body))
        wait_until(lambda: server.serving.admission.num_held == 16, "it runs")
        wait_until(lambda: server.serving.admission.num_held == 0, "its place is free")
        assert server.ask("say x").status_code == 200


# ---- the end
def test_a_server_that_ends_reports_it_in_its_streams() -> None:
    """Longer than it waits: what is left is cut off, in shape, and nothing stays behind (see served)."""
    with served(directed()) as server:
        stream = server.openai().chat.completions.create(model="", messages=run_script("forever"), stream=True)
        next(iter(stream))
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        list(stream)


def test_an_answer_that_the_end_cuts_off_is_the_fault_of_the_server(mortal: Server) -> None:
    stream = mortal.openai().chat.completions.create(model="", messages=run_script("forever"), stream=True)
    next(iter(stream))
    assert mortal.loop is not None
    mortal.loop.call_soon_threadsafe(mortal.serving.cut_off_answers)
    with pytest.raises(openai.APIError, match="the server is being stopped") as caught:
        list(stream)
    assert (caught.value.type, caught.value.code) == ("api_error", "cancelled")


def test_while_it_drains_nothing_new_is_taken(mortal: Server) -> None:
    mortal.serving.is_draining = True
    answer = mortal.ask("say x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert answer.json()["error"]["type"] == "api_error", "the client did nothing wrong"
    assert mortal.http.get("/health").json()["status"] == "draining"
    assert mortal.http.get("/v1/events").text == ""


def test_a_load_that_fails_at_the_start_is_reported() -> None:
    setup = directed(plans={"bad": plan("broken")}, waits=False)
    with served(setup) as server:
        wait_until(lambda: server.serving.state == "failed", "the load has failed")
        health = server.http.get("/health").json()
        assert (health["status"], "not a GGUF file" in health["detail"]) == ("failed", True)


def list_threads() -> list[str]:
    """Return the names of all threads but those of the event loop's pool, which grows up to its bound."""
    return sorted(one.name for one in threading.enumerate() if not one.name.startswith("asyncio_"))


@pytest.mark.slow
def test_an_hour_in_small_leaks_nothing() -> None:
    """Answers, hang-ups and refusals by the hundred: no task, no thread, no request is left."""
    with served(typing()) as server:
        server.ask("Hi.", max_tokens=3)
        before, threads = server.num_tasks(), list_threads()
        for i in range(300):
            stream = server.openai().chat.completions.create(
                model="", messages=run_script(f"Hi {i}."), stream=True, max_tokens=50 if i % 3 else 5
            )
            next(iter(stream))
            stream.close()
            server.ask("Hi.", max_tokens=1, n=2)
            server.ask("Hi.", max_tokens=0)
        server.wait_until_idle()
        wait_until(lambda: server.num_tasks() <= before, "no task is left")
        assert list_threads() == threads
