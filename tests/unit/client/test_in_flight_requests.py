"""The desk and crashes: what is hashed, and how long a suspect waits for another one."""

from __future__ import annotations

import time

import pytest
from doubles.patience import wait_until

from eaglelocal.client import crash_suspects
from eaglelocal.client import in_flight_requests as desk_module
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


def desk_with(engine: Engine) -> InFlightRequests:
    desk = InFlightRequests(EngineError("not started"))
    desk.take_over(engine)
    return desk


def ask(request_id: str, text: str) -> ChatRequest:
    return ChatRequest(id=request_id, text=text)


def ignore(event: RequestEvent) -> None:
    pass


def crash_with(desk: InFlightRequests, *requests: ChatRequest) -> None:
    for request in requests:
        desk.submit(request, ignore)
    desk.lose(CRASH, is_crash=True)
    desk.take_over(Engine())


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the requests that were hashed."""
    ids: list[str] = []

    def counted(request: AnyRequest) -> bytes:
        ids.append(request.id)
        return crash_suspects.digest_of(request)

    monkeypatch.setattr(desk_module, "digest_of", counted)
    return ids


def test_nothing_is_hashed_while_no_engine_has_crashed(hashed: list[str]) -> None:
    desk = desk_with(Engine())
    for n in range(3):
        desk.submit(ask(str(n), "t"), ignore)
    desk.deliver([Finished("0", "stop", "", 1, 1, Timings(), SpeculationStats())])
    desk.lose(EngineError("closed"))
    desk.submit(ask("3", "t"), ignore)
    desk.take_over(Engine())
    assert hashed == []


def test_at_a_crash_what_was_in_flight_is_hashed_and_what_comes_then_once(hashed: list[str]) -> None:
    desk = desk_with(Engine())
    desk.submit(ask("done", "a"), ignore)
    desk.deliver([Finished("done", "stop", "", 1, 1, Timings(), SpeculationStats())])
    crash_with(desk, ask("culprit", "x"))
    assert hashed == ["culprit"]
    desk.submit(ask("next", "b"), ignore)
    desk.deliver([Finished("next", "stop", "", 1, 1, Timings(), SpeculationStats())])
    assert hashed == ["culprit", "next"]


def test_who_was_in_flight_at_two_crashes_is_refused() -> None:
    desk, events = desk_with(Engine()), list[RequestEvent]()
    for n in range(2):
        crash_with(desk, ask(f"culprit {n}", "x"), ask(f"other {n}", f"o{n}"))
    desk.submit(ask("again", "x"), events.append)
    assert [type(event.error) for event in events if isinstance(event, Failed)] == [RequestError]


def test_a_suspect_waits_no_longer_than_a_trial_where_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_suspects, "TRIAL_S", 0.3)
    monkeypatch.setattr(desk_module, "LOOK_AGAIN_S", 0.05)
    desk, engine = desk_with(Engine()), Engine()
    for n in range(2):
        crash_with(desk, ask(f"x {n}", "x"), ask(f"a {n}", "a"))
    desk.take_over(engine)
    desk.submit(ask("x", "x"), ignore)  # reads its prompt for minutes and says nothing
    desk.submit(ask("a", "a"), ignore)
    assert engine.asked == ["x"] and desk.num_waiting == 1
    wait_until(lambda: engine.asked == ["x", "a"], "the trial of the other suspect is over")
    assert desk.num_waiting == 0


def test_a_long_request_is_hashed_fast() -> None:
    request = ChatRequest(id="1", tokens=tuple(range(2**20)))
    digest_s = []
    for _ in range(3):
        begun_at = time.process_time()
        crash_suspects.digest_of(request)
        digest_s.append(time.process_time() - begun_at)
    begun_at = time.process_time()
    repr(request.tokens)
    assert min(digest_s) < 0.7 * (time.process_time() - begun_at)
