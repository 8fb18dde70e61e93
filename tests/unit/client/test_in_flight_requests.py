"""Requests in flight at a crash: which are hashed, and how long a suspect waits for another one."""

from __future__ import annotations

import dataclasses
import time

import pytest
from doubles.timeouts import wait_until

from eaglelocal.client import crash_suspects, in_flight_requests
from eaglelocal.client.client import OnEvent
from eaglelocal.client.in_flight_requests import InFlightRequests
from eaglelocal.core.events import Begun, Command, Failed, Finished, RequestEvent, Rested, Submit, Tokens
from eaglelocal.core.request import AnyRequest, ChatRequest, Image, Message
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EagleLocalError, EngineError, RequestError

CRASH = EngineError("the engine process crashed (signal 11, SIGSEGV)")
KILL = EngineError("the engine process was killed (signal 9)")


class Engine:
    """A process that takes everything and says nothing."""

    def __init__(self) -> None:
        self.requests: list[AnyRequest] = []

    @property
    def asked(self) -> list[str]:
        return [request.id for request in self.requests]

    def send(self, command: Command) -> bool:
        if isinstance(command, Submit):
            self.requests.append(command.request)
        return True


def requests_with(engine: Engine) -> InFlightRequests:
    in_flight = InFlightRequests(EngineError("not started"))
    in_flight.connect(engine)
    return in_flight


def ask(request_id: str, text: str) -> ChatRequest:
    return ChatRequest(id=request_id, text=text)


def finished(request_id: str) -> Finished:
    return Finished(request_id, "stop", "", 1, 1, Timings(), SpeculationStats())


def ignore(event: RequestEvent) -> None:
    pass


def begin(in_flight: InFlightRequests, *requests: AnyRequest, on_event: OnEvent = ignore) -> None:
    for request in requests:
        in_flight.submit(request, on_event)
        in_flight.note_work(Begun(request.id))


def crash_with(in_flight: InFlightRequests, *requests: AnyRequest) -> None:
    begin(in_flight, *requests)
    in_flight.disconnect(CRASH, is_crash=True)
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
    in_flight.deliver([finished("0")])
    in_flight.disconnect(EngineError("closed"))
    in_flight.submit(ask("3", "t"), ignore)
    in_flight.connect(Engine())
    assert hashed == []


def test_at_a_crash_what_was_in_flight_is_hashed_and_what_comes_then_once(hashed: list[str]) -> None:
    in_flight = requests_with(Engine())
    in_flight.submit(ask("done", "a"), ignore)
    in_flight.deliver([finished("done")])
    crash_with(in_flight, ask("culprit", "x"))
    assert hashed == ["culprit"]
    in_flight.submit(ask("next", "b"), ignore)
    in_flight.deliver([finished("next")])
    assert hashed == ["culprit", "next"]


def errors_of(events: list[RequestEvent]) -> list[tuple[str, type[EagleLocalError]]]:
    return [(event.request_id, type(event.error)) for event in events if isinstance(event, Failed)]


def test_who_alone_had_begun_at_two_crashes_is_refused_to_its_owner() -> None:
    in_flight, events, engine = requests_with(Engine()), list[RequestEvent](), Engine()
    for n in range(2):
        in_flight.submit(ask(f"queued {n}", "o"), ignore)
        crash_with(in_flight, ask(f"culprit {n}", "x"))
    in_flight.connect(engine)
    in_flight.submit(ask("again", "x"), events.append)
    in_flight.submit(ChatRequest(id="other", text="x", owner="ann"), events.append)
    assert errors_of(events) == [("again", RequestError)]
    assert engine.asked[-1] == "other"


def test_a_suspect_runs_alone_and_all_wait_no_longer_than_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_suspects, "TRIAL_S", 0.3)
    monkeypatch.setattr(in_flight_requests, "RECHECK_S", 0.05)
    in_flight, engine = requests_with(Engine()), Engine()
    for n in range(2):
        crash_with(in_flight, ask(f"x {n}", "x"), ask(f"a {n}", "a"))
    in_flight.connect(engine)
    for name in ("x", "a", "b"):  # x reads its prompt for minutes and says nothing
        in_flight.submit(ask(name, name), ignore)
    assert engine.asked == ["x"] and in_flight.num_waiting == 2
    in_flight.cancel("a")
    wait_until(lambda: engine.asked == ["x", "b"], "the trial of the other suspect is over")
    assert in_flight.num_waiting == 0


def test_a_suspect_waits_until_running_requests_end_and_none_overtakes_it() -> None:
    in_flight, engine = requests_with(Engine()), Engine()
    for n in range(2):
        crash_with(in_flight, ask(f"x {n}", "x"), ask(f"a {n}", "a"))
    in_flight.connect(engine)
    for name in ("b", "x", "c"):
        in_flight.submit(ask(name, name), ignore)
    assert engine.asked == ["b"]
    in_flight.deliver([finished("b")])
    assert engine.asked == ["b", "x"]
    in_flight.deliver([finished("x")])
    assert engine.asked == ["b", "x", "c"]


def test_a_suspect_waits_for_a_long_answer_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_suspects, "DRAIN_S", 0.2)
    monkeypatch.setattr(in_flight_requests, "RECHECK_S", 0.05)
    in_flight, engine = requests_with(Engine()), Engine()
    for n in range(2):
        crash_with(in_flight, ask(f"x {n}", "x"), ask(f"a {n}", "a"))
    in_flight.connect(engine)
    for name in ("long", "also", "x", "c"):
        in_flight.submit(ask(name, name), ignore)
    assert engine.asked == ["long", "also"]
    wait_until(lambda: engine.asked == ["long", "also", "x", "c"], "the suspect waits no longer")


# ---- what becomes of requests when their process is gone
@pytest.mark.parametrize("is_crash", [False, True])
def test_what_had_not_begun_goes_on_in_the_next_process_in_order(is_crash: bool) -> None:
    in_flight, second, events = requests_with(Engine()), Engine(), list[RequestEvent]()
    for name in ("unread", "read", "being read", "with a slot", "cancelled", "last"):
        in_flight.submit(ask(name, name), events.append)
    for work in (Begun("read", is_reading=True), Rested("read"), Begun("being read", is_reading=True)):
        in_flight.note_work(work)
    in_flight.note_work(Begun("with a slot"))
    in_flight.deliver([Tokens("with a slot", ())])
    in_flight.cancel("cancelled")
    assert [each.id for each in in_flight.in_flight if each.has_begun] == ["being read", "with a slot"]
    in_flight.disconnect(CRASH if is_crash else KILL, is_crash=is_crash)
    in_flight.submit(ask("new", "new"), events.append)
    in_flight.connect(second)
    interrupted = [] if is_crash else ["being read"]
    assert second.asked == ["unread", "read", *interrupted, "last", "new"]
    failed = [name for name, _ in errors_of(events)]
    assert failed == [name for name in ("being read", "with a slot") if name not in second.asked]
    assert [event.request_id for event in events if isinstance(event, Finished)] == ["cancelled"]


def test_what_was_begun_when_an_engine_was_killed_is_sent_again_once() -> None:
    """It may be why the system killed the engine."""
    in_flight, events = requests_with(Engine()), list[RequestEvent]()
    begin(in_flight, ask("greedy", "x"), on_event=events.append)
    for num_failed, number in ((0, 1), (1, 2)):
        in_flight.disconnect(KILL)
        assert len(errors_of(events)) == num_failed
        in_flight.connect(Engine())
        begin(in_flight, ask(f"next {number}", "y"), on_event=events.append)
        in_flight.note_work(Begun("greedy"))
    assert errors_of(events) == [("greedy", EngineError)]


def test_kills_make_no_suspects(hashed: list[str]) -> None:
    in_flight, events = requests_with(Engine()), list[RequestEvent]()
    for n in range(5):
        begin(in_flight, ask(str(n), "x"), on_event=events.append)
        in_flight.deliver([Tokens(str(n), ())])
        in_flight.disconnect(KILL)
        in_flight.connect(Engine())
    assert errors_of(events) == [(str(n), EngineError) for n in range(5)]
    assert hashed == []


def test_a_request_cancelled_while_being_read_casts_suspicion_on_no_other() -> None:
    """The engine goes on reading what was cancelled, and crashes on it."""
    in_flight, events = requests_with(Engine()), list[RequestEvent]()
    for n in range(3):
        in_flight.submit(ask(f"attack {n}", f"x {n}"), ignore)
        if n:
            in_flight.note_work(Begun(f"attack {n}", is_reading=True))
        in_flight.deliver([Finished(f"attack {n}", "cancelled", "", 0, 0, Timings(), SpeculationStats())])
        if not n:
            in_flight.note_work(Begun(f"attack {n}", is_reading=True))  # both at once
        crash_with(in_flight, ask(f"bystander {n}", "same"))
    in_flight.submit(ask("bystander", "same"), events.append)
    assert errors_of(events) == []


def test_what_has_been_read_is_no_suspect_until_it_has_a_slot() -> None:
    in_flight, events = requests_with(Engine()), list[RequestEvent]()
    for n in range(3):
        in_flight.submit(ask(f"waits {n}", "w"), events.append)
        in_flight.note_work(Begun(f"waits {n}", is_reading=True))
        in_flight.note_work(Rested(f"waits {n}"))
        crash_with(in_flight)
    assert events == [] and not in_flight._suspects


def test_images_are_kept_until_there_is_no_going_back() -> None:
    photo = ChatRequest(id="p", messages=(Message("user", "?", images=(Image(b"png"),)),))
    in_flight, second = requests_with(Engine()), Engine()
    begin(in_flight, photo)
    in_flight.disconnect(KILL)
    in_flight.connect(second)
    assert second.requests == [photo]
    in_flight.deliver([Tokens("p", ())])
    assert in_flight._sent["p"].request == dataclasses.replace(photo, messages=())


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
