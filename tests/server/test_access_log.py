"""The access log: what it says of answers and refusals, as fields and as a line, and never of texts."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from doubles.directed_server_engine import plan
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until

from eaglelocal.cli.json_output import JsonOutput
from eaglelocal.cli.output import Output
from eaglelocal.cli.serve_log import LineHandler, format_line
from eaglelocal.core.events import Finished, LoadProgress, Started
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EagleLocalError
from eaglelocal.server.access_log import RequestRecord
from eaglelocal.server.answer_state import AnswerState

CHAT = "/v1/chat/completions"
SAID = [{"role": "user", "content": "x"}]


class Logged:
    """The log of a server, as records and as lines of text."""

    def __init__(self) -> None:
        self._json, self._text = io.StringIO(), io.StringIO()
        plain = Output(stdout=io.StringIO(), stderr=self._text, environ={})
        self.handlers = [LineHandler(JsonOutput(self._json), None), LineHandler(plain, None)]

    @property
    def records(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._json.getvalue().splitlines()]

    @property
    def lines(self) -> list[str]:
        return self._text.getvalue().splitlines()

    def last(self, number: int = 1) -> dict[str, object]:
        """Return the last of so many records; a response arrives before its record is written."""
        wait_until(lambda: len(self.records) >= number and len(self.lines) >= number, "the record")
        return self.records[-1]


@pytest.fixture
def logged() -> Iterator[Logged]:
    made, logger = Logged(), logging.getLogger("eaglelocal.server")
    before = logger.level
    logger.setLevel(logging.INFO)
    for handler in made.handlers:
        logger.addHandler(handler)
    yield made
    for handler in made.handlers:
        logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_model_tokens_rate_acceptance_and_duration(actor: Server, logged: Logged, stream: bool) -> None:
    assert actor.ask("say secret\nsay words\nsay here", stream=stream).status_code == 200
    record = logged.last()
    assert (record["model"], record["status"], record["path"]) == ("actor", 200, CHAT)
    assert record["completion_tokens"] == 3 and record["prompt_tokens"]
    assert record["acceptance_rate"] == pytest.approx(5 / 8)
    assert record["finish_reason"] == "stop"
    assert isinstance(record["seconds"], float) and isinstance(record["ttft_s"], float)
    assert record["tok_s"] is None or isinstance(record["tok_s"], float)
    assert "  3 tokens, " in logged.lines[-1] and logged.lines[-1].endswith(", acceptance 62%, actor")
    assert "secret" not in json.dumps(logged.records)


def test_calls_that_could_not_be_read_are_logged() -> None:
    problem = "lfm: arguments have no names"
    ended = Finished("a", "stop", "", 1, 1, Timings(), SpeculationStats(), unread_calls=(problem,))
    record = RequestRecord()
    for _ in range(2):
        record.add_answer("actor", AnswerState(0, ChatRequest(id="a", text="x"), 100.0, started=None, finished=ended))
    assert record.fields()["unread_calls"] == [problem, problem]
    logged = logging.makeLogRecord({"msg": "POST", "owner": "", "seconds": 0.1, **record.fields()})
    assert f"a call was not read: {problem}" in format_line(logged)


@pytest.mark.parametrize(("delays_s", "shown"), [((0.0001,), 0.0), ((None,), None), ((None, 0.25), 0.25)])
def test_the_time_of_the_first_token_is_that_of_answers_that_have_one(
    delays_s: tuple[float | None, ...], shown: float | None
) -> None:
    record = RequestRecord()
    for delay_s in delays_s:
        choice = AnswerState(0, ChatRequest(id="a", text="x"), requested_at=100.0, started=Started("a", 1, 0))
        choice.first_token_at = 100.0 + delay_s if delay_s is not None else 0.0
        record.add_answer("actor", choice)
    assert record.fields()["ttft_s"] == shown


def test_several_answers_to_a_request_are_summed(actor: Server, logged: Logged) -> None:
    assert actor.ask("say a\nsay b", n=2).status_code == 200
    record = logged.last()
    assert (record["completion_tokens"], record["acceptance_rate"]) == (4, pytest.approx(5 / 8))


@pytest.mark.parametrize(
    ("path", "body", "status", "reason", "param"),
    [
        (CHAT, {"messages": [], "temperature": 0}, 400, "messages: ", "messages"),
        (
            CHAT,
            {"messages": SAID, "temperature": -1},
            400,
            "temperature: ",
            "temperature",
        ),
        (CHAT, {"messages": SAID, "model": "none"}, 404, "none", "model"),
        ("/v1/messages", {"messages": SAID, "max_tokens": 0}, 400, "max_tokens", "max_tokens"),
        ("/api/chat", {"model": "actor", "messages": 3}, 400, "messages", "messages"),
        ("/nowhere", {}, 404, "Not Found", None),
        ("/v1/models", {}, 405, "Method Not Allowed", None),
    ],
)
def test_a_refusal_has_its_reason_and_its_field(
    actor: Server, logged: Logged, path: str, body: dict[str, object], status: int, reason: str, param: str | None
) -> None:
    assert actor.http.post(path, json=body).status_code == status
    record = logged.last()
    assert (record["status"], record["param"]) == (status, param)
    assert reason in str(record["reason"])
    assert reason in logged.lines[-1]
    assert "model" not in record  # there is no answer


def test_refusals_before_any_route_have_a_reason_too(actor: Server, logged: Logged) -> None:
    assert actor.http.get("/v1/models", headers={"Host": "evil.example"}).status_code == 421
    assert "evil.example" in str(logged.last()["reason"])
    assert actor.http.post(CHAT, content=b"x", headers={"Content-Encoding": "br"}).status_code == 415
    assert "br is not supported" in str(logged.last(2)["reason"])
    with socket.create_connection(("127.0.0.1", actor.port)) as client:
        client.sendall(b"nonsense\r\n\r\n")
        assert b" 400 " in client.recv(4096)
    record = logged.last(3)
    assert (record["status"], record["reason"]) == (400, "this is not a valid HTTP request")


def test_a_failure_within_a_stream_is_logged_with_its_own_status(actor: Server, logged: Logged) -> None:
    answer = actor.ask("say a\nsleep 0.5\nfail full", stream=True)
    assert (answer.status_code, "error" in answer.text) == (200, True)
    record = logged.last()
    assert record["status"] == 503
    assert "the cache has no room" in str(record["reason"])


def test_a_client_that_disconnects_has_a_status_of_its_own(actor: Server, logged: Logged) -> None:
    said = {"messages": [{"role": "user", "content": "forever"}], "stream": True}
    with actor.http.stream("POST", CHAT, json=said) as answer:
        next(answer.iter_bytes())
    record = logged.last()
    assert (answer.status_code, record["status"], record["reason"]) == (200, 499, "the client disconnected")
    assert "499  the client disconnected" in logged.lines[-1]
    actor.wait_until_idle()


def test_a_request_has_an_id_a_client_and_two_times(actor: Server, logged: Logged) -> None:
    answer = actor.ask("say x")
    record = logged.last()
    assert record["request_id"] == answer.headers["x-request-id"] != ""
    assert (record["client"], str(record["user_agent"]).partition("/")[0]) == ("127.0.0.1", "python-httpx")
    moment = datetime.fromisoformat(str(record["timestamp"]))
    assert moment.tzinfo is not None and moment.timestamp() == pytest.approx(record["time"], abs=0.01)
    headers = {"x-request-id": "mine-7", "user-agent": "x" * 200, "Host": "evil.example"}
    assert actor.http.get("/v1/models", headers=headers).headers["x-request-id"] == "mine-7"
    record = logged.last(2)
    assert (record["request_id"], record["status"], "user_agent" in record) == ("mine-7", 421, False)
    assert actor.http.get("/nowhere", headers={"x-request-id": "y" * 200}).headers["x-request-id"] != "y" * 200


def test_a_log_shows_the_date_where_the_day_changes() -> None:
    stderr = io.StringIO()
    handler = LineHandler(Output(stdout=io.StringIO(), stderr=stderr, environ={}), None)
    for number, day in enumerate((3, 3, 4)):
        record = logging.makeLogRecord({"msg": f"line {number}", "name": "eaglelocal.x"})
        record.created = datetime(2026, 5, day, 12).timestamp()
        handler.handle(record)
    lines = [line.rpartition("  ")[2] for line in stderr.getvalue().splitlines()]
    assert lines == ["line 0", "line 1", "2026-05-04", "line 2"]


def test_names_in_a_request_write_no_lines_of_the_log(actor: Server, logged: Logged) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "te\nxt\x1b[2J": 1}]}]}
    assert actor.http.post(CHAT, json=body).status_code == 400
    wait_until(lambda: CHAT in {record["path"] for record in logged.records}, "the record")
    wait_until(lambda: len(logged.lines) == len(logged.records), "a line for each record")  # of a test before, perhaps
    (line,) = [line for line in logged.lines if CHAT in line]
    assert "\x1b" not in line


def test_every_line_of_json_output_is_a_record() -> None:
    stderr = io.StringIO()
    output = JsonOutput(stderr)
    output.message("loading x")
    output.note("one\ntwo")
    output.message("warning: the key is short")
    output.progress()(LoadProgress(0.1, "reading"))
    output.error(EagleLocalError("it failed", hint="eaglelocal doctor"))
    records = [json.loads(line) for line in stderr.getvalue().splitlines()]
    assert [(record["level"], record["message"]) for record in records] == [
        ("info", "loading x"),
        ("info", "one\ufffdtwo"),
        ("warning", "the key is short"),
        ("info", "reading"),
        ("error", "it failed"),
    ]
    assert records[-1]["hint"] == "eaglelocal doctor"
    assert all(isinstance(record["time"], float) for record in records)


def test_a_request_that_gets_no_answer_has_no_figures(logged: Logged, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with served(directed(plans={"slow": plan("hesitant", gate)}, waits=False)) as server:
        assert server.ask("say x").status_code == 503
        record = logged.last()
        gate.unlink()
        wait_until(lambda: server.http.get("/health").status_code == 200, "it is loaded")
    assert (record["model"], record["status"], record["code"]) == ("slow", 503, "unavailable")
    assert not {"completion_tokens", "tok_s", "finish_reason"} & set(record)
