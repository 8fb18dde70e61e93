"""Requests in flight at a crash: which are hashed, and how long a suspect waits for another one."""

from __future__ import annotations

import time

import pytest
from doubles.timeouts import wait_until

from eaglelocal.client import crash_suspects, in_flight_requests
from eaglelocal.client.in_flight_requests import InFlightRequests
from eaglelocal.core.events import Command, Failed, Finished, RequestEvent, Submit
from eaglelocal.core.request import AnyRequest, ChatRequest
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EngineError, RequestError

CRASH = EngineError("the engine process crashed (signal 11, SIGSEGV)")


class Engine:
    """A process that takes everything and says nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def send(self, command: Command) -> bool:
        if isinstance(command, Submit):
            self.asked.append(command.request.id)
        return True


def requests_with(engine: Engine) -> InFlightRequests:
    in_flight = InFlightRequests(EngineError("not started"))
    in_flight.connect(engine)
    return in_flight


def ask(request_id: str, text: str) -> ChatRequest:
    return ChatRequest(id=request_id, text=text)


def ignore(event: RequestEvent) -> None:
    pass


def crash_with(in_flight: InFlightRequests, *requests: ChatRequest) -> None:
    for request in requests:
        in_flight.submit(request, ignore)
    in_flight.fail_sent(CRASH, is_crash=True)
    in_flight.connect(Engine())


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the requests that were hashed."""
    ids: list[str] = []

    def counted(request: AnyRequest) -> bytes:
        ids.append(request.id)
        return crash_suspects.digest_request(request)

    monkeypatch.setattr(in_flight_requests, "digest_request", counted)
    return ids


def test_nothing_is_hashed_while_no_engine_has_crashed(hashed: list[str]) -> None:
    in_flight = requests_with(Engine())
    for n in range(3):
        in_flight.submit(ask(str(n), "t"), ignore)
    in_flight.deliver([Finished("0", "stop", "", 1, 1, Timings(), SpeculationStats())])
    in_flight.fail_sent(EngineError("closed"))
    in_flight.submit(ask("3", "t"), ignore)
    in_flight.connect(Engine())
    assert hashed == []


def test_at_a_crash_what_was_in_flight_is_hashed_and_what_comes_then_once(hashed: list[str]) -> None:
    in_flight = requests_with(Engine())
    in_flight.submit(ask("done", "a"), ignore)
    in_flight.deliver([Finished("done", "stop", "", 1, 1, Timings(), SpeculationStats())])
    crash_with(in_flight, ask("culprit", "x"))
    assert hashed == ["culprit"]
    in_flight.submit(ask("next", "b"), ignore)
    in_flight.deliver([Finished("next", "stop", "", 1, 1, Timings(), SpeculationStats())])
    assert hashed == ["culprit", "next"]


def test_who_was_in_flight_at_two_crashes_is_refused() -> None:
    in_flight, events = requests_with(Engine()), list[RequestEvent]()
    for n in range(2):
        crash_with(in_flight, ask(f"culprit {n}", "x"), ask(f"other {n}", f"o{n}"))
    in_flight.submit(ask("again", "x"), events.append)
    assert [type(event.error) for event in events if isinstance(event, Failed)] == [RequestError]


def test_a_suspect_waits_no_longer_than_a_trial_where_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_suspects, "TRIAL_S", 0.3)
    monkeypatch.setattr(in_flight_requests, "RECHECK_S", 0.05)
    in_flight, engine = requests_with(Engine()), Engine()
    for n in range(2):
        crash_with(in_flight, ask(f"x {n}", "x"), ask(f"a {n}", "a"))
    in_flight.connect(engine)
    in_flight.submit(ask("x", "x"), ignore)  # reads its prompt for minutes and says nothing
    in_flight.submit(ask("a", "a"), ignore)
    assert engine.asked == ["x"] and in_flight.num_waiting == 1
    wait_until(lambda: engine.asked == ["x", "a"], "the trial of the other suspect is over")
    assert in_flight.num_waiting == 0


def test_a_long_request_is_hashed_fast() -> None:
    request = ChatRequest(id="1", tokens=tuple(range(2**20)))
    digest_s = []
    for _ in range(3):
        begun_at = time.process_time()
        crash_suspects.digest_request(request)
        digest_s.append(time.process_time() - begun_at)
    begun_at = time.process_time()
    repr(request.tokens)
    assert min(digest_s) < 0.7 * (time.process_time() - begun_at)
