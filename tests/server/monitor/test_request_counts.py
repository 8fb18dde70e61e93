"""What the monitor counts: answered, refused and failed requests apart, and who waits while others are read."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until

from eaglelocal.client.servers.eaglelocal_server import parse_snapshot
from eaglelocal.core.events import Started
from eaglelocal.core.request import ChatRequest
from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.server.access_log import RequestRecord
from eaglelocal.server.active_call import ActiveCall
from eaglelocal.server.answer_state import AnswerState, ServedClient
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.server_state import ServerState, name_active_states, number_client
from eaglelocal.tui.glyphs import UNICODE
from eaglelocal.tui.monitor.monitor_text import format_requests_title
from eaglelocal.tui.monitor.table_text import TableView, format_table
from eaglelocal.tui.panel.panel_text import format_count
from eaglelocal.tui.styled_lines import plain_text
from eaglelocal.worker.supervisor import RestartPolicy

KEY = "key-of-anna-0123456"


def counts(server: Server) -> tuple[int, int, int]:
    snapshot = server.snapshot()
    return snapshot["answered"], snapshot["refused"], snapshot["failed"]


def test_a_bad_request_does_not_count_as_a_server_fault(actor: Server) -> None:
    answered, refused, failed = counts(actor)
    assert actor.ask("say x").status_code == 200
    assert actor.ask("refuse messages context_length_exceeded").status_code == 400  # by the engine
    assert actor.ask("say x", temperature="hot").status_code == 400  # by the server
    assert actor.ask("say x", model="no-such").status_code == 404
    assert actor.http.get("/v1/no-such").status_code == 404  # asks for nothing
    assert counts(actor) == (answered + 1, refused + 3, failed)
    states = [row["state"] for row in actor.snapshot()["recent"][:2]]
    assert states == ["refused", "stop"]


def test_a_wrong_key_is_refused_and_counted() -> None:
    with served(directed(access=Access(keys=ApiKeys((("anna", KEY),))))) as server:
        assert server.ask("say x").status_code == 401
        server.http.headers["Authorization"] = f"Bearer {KEY}"
        assert counts(server) == (0, 1, 0)


def test_what_breaks_here_has_failed() -> None:
    policy = RestartPolicy(first_delay_s=0.05, max_delay_s=0.05, max_crashes=9, stable_s=600)
    with served(directed(restart=policy)) as server:
        assert server.ask("say so far\ncrash").status_code == 500
        assert server.ask("say so far\nsleep 0.2\ncrash", stream=True).status_code == 200  # breaks in the stream
        wait_until(lambda: counts(server) == (0, 0, 2), "both have failed")
        assert [row["state"] for row in server.snapshot()["recent"]] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("status", "problem", "counted"),
    [
        (200, None, (0, 0)),
        (400, 400, (1, 0)),
        (503, 503, (1, 0)),  # loading, for one
        (504, 504, (0, 1)),
        (200, 504, (0, 1)),  # the same in a stream
        (200, 503, (0, 1)),
        (200, 400, (0, 0)),
        (499, None, (0, 0)),
    ],
)
def test_where_the_fault_is_decides(status: int, problem: int | None, counted: tuple[int, int]) -> None:
    state = ServerState(models=None, admission=None, metrics=None)  # type: ignore[arg-type]
    state.count_call(RequestRecord(problem=None if problem is None else Problem(problem, "no")), status)
    assert (state.num_refused, state.num_failed) == counted


def test_a_client_that_gives_up_counts_neither_as_refused_nor_as_failed(actor: Server) -> None:
    before = counts(actor)
    with actor.http.stream(
        "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "forever"}], "stream": True}
    ):
        pass
    actor.wait_until_idle()
    assert counts(actor)[1:] == before[1:]


def test_the_monitor_shows_refused_requests_apart(actor: Server) -> None:
    actor.ask("refuse messages context_length_exceeded")
    reading = parse_snapshot(actor.snapshot())
    title = format_requests_title(reading)
    assert f"{format_count(reading.refused)} refused" in title
    assert ("failed" in title) == bool(reading.failed)
    rows = [plain_text(line).split()[0] for line in format_table(reading, TableView(), 80, 9, UNICODE)]
    assert "refused" in rows


# ---- who sends
def test_clients_of_one_name_have_numbers_while_they_ask_at_the_same_time() -> None:
    listed: list[AnswerState] = []

    def begin(port: int, name: str = "curl") -> AnswerState:
        client = number_client(ServedClient(name, ("127.0.0.1", port)), listed)
        listed.append(AnswerState(0, ChatRequest(id=str(len(listed))), 1.0, client=client))
        return listed[-1]

    first, second = begin(1), begin(2)
    assert (first.client.number, second.client.number) == (1, 2)
    assert begin(1).client.number == 1, "another request of the first connection"
    assert begin(3, "opencode").client.number == 1
    for answer in listed:
        answer.close(2.0)
    assert begin(2).client.number == 2, "a connection keeps its number"
    assert [begin(port).client.number for port in (4, 1, 4)] == [1, 3, 1]


# ---- who waits
def call_of(model: str = "m", num: int = 1, *, is_submitted: bool = True) -> ActiveCall:
    async def open_call() -> ActiveCall:
        return ActiveCall(model, [ChatRequest(id=f"{model}{i}") for i in range(num)], 60.0)

    call = asyncio.run(open_call())
    if is_submitted:
        call._client = object()  # type: ignore[assignment]
    return call


def states_of(*calls: ActiveCall, num_slots: int) -> list[str]:
    active = [(call, choice) for call in calls for choice in call.choices]
    return list(name_active_states(active, lambda model: num_slots).values())


def test_what_has_just_come_is_read_while_there_are_slots() -> None:
    assert states_of(call_of(num=3), num_slots=2) == ["reading", "reading", "waiting"]


def test_slots_in_use_leave_fewer() -> None:
    call = call_of(num=3)
    call.choices[1].apply(Started("m1", 9, 0), 1.0)
    assert states_of(call, num_slots=2) == ["reading", "reading", "waiting"]
    assert states_of(call, num_slots=1) == ["waiting", "reading", "waiting"]


def test_models_do_not_share_slots() -> None:
    assert states_of(call_of("a"), call_of("b"), num_slots=1) == ["reading", "reading"]


def test_without_a_model_or_engine_a_request_waits() -> None:
    assert states_of(call_of(is_submitted=False), num_slots=4) == ["waiting"]
    assert states_of(call_of(), num_slots=0) == ["waiting"]


def test_a_new_request_is_read_although_the_engine_is_busy_in_a_step(actor: Server) -> None:
    """The engine tells of it only after its step, which may take seconds."""
    threads = [
        threading.Thread(
            target=httpx.post,
            args=(f"{actor.url}/v1/chat/completions",),
            kwargs={"json": {"messages": [{"role": "user", "content": script}]}, "timeout": 30},
        )
        for script in ("sleep 1.5", "say x")
    ]
    threads[0].start()
    wait_until(lambda: len(actor.serving.active) == 1, "the first is there")
    threads[1].start()
    wait_until(lambda: len(actor.serving.active) == 2, "the second is there")
    states = actor.serving.name_active_states().values()
    assert (set(states) <= {"reading", "running"}, actor.serving.count_active()) == (True, (2, 0))
    for thread in threads:
        thread.join(30)
    actor.wait_until_idle()
