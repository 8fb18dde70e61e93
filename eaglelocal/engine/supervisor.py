"""Keeps one engine process alive: starts it, hears it out, and when it dies decides what comes next.

One thread does all of this, and calls the listener from there, in order; another watches for a process
that hangs (watchdog.py). Only crashes in a row add up to giving up: a process that has said tokens, or was
ready for `stable_s`, has shown that model and machine can do it, so its end starts a new count. What
cannot load, or dies of the first thing it does, ends as a crash loop, however slowly it loads: it is given up, or
tried again at growing distances, as the policy says. A process that the system does not start for want of
descriptors or processes is no crash: it is waited for.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

from eaglelocal.core.events import (
    EngineInfo,
    EngineSnapshot,
    Finished,
    LoadFailed,
    LoadProgress,
    Ready,
    RequestEvent,
    SnapshotTaken,
    Tokens,
)
from eaglelocal.core.plan import Plan
from eaglelocal.engine.child import EngineChild
from eaglelocal.engine.crash_report import Crash, InFlight, log_line, write_report
from eaglelocal.engine.ending import Broken, Ending
from eaglelocal.engine.watchdog import Patience, Watchdog, Watched
from eaglelocal.errors import EagleLocalError, EngineError

EngineState = Literal["loading", "ready", "restarting", "failed", "closed"]

# what the system says when it has no descriptor, process or memory left at the moment
PASSING_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
PASSING_DELAY_S = 1.0
MAX_FIRST_STARTS = 10  # of a first process that the system does not start

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # without a server's log nothing is said twice: the error says it


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When to restart: at once after the first crash, then after 1, 2, 4 ... `first_delay_s`.

    After `max_crashes` in a row requests no longer wait, and the engine is given up, or started `num_retries` times
    more, after 1, 2, 4 ... `retry_s`.
    """

    max_crashes: int = 5  # in a row, of processes that said nothing
    num_retries: int = 0
    retry_s: float = 15.0
    max_retry_s: float = 60.0
    stable_s: float = 120.0  # of being ready, after which a crash is the first again
    first_delay_s: float = 1.0
    max_delay_s: float = 8.0
    wait_limit_s: float = 60.0  # how long requests wait for an engine that is down
    patience: Patience = field(default_factory=Patience)  # with a process that says nothing

    def delay_s(self, crashes: int) -> float | None:
        """Seconds to wait after the crash with this number, counted from 1; None: give up."""
        num_tried = crashes - self.max_crashes
        if num_tried >= self.num_retries:
            return None
        if num_tried >= 0:
            return min(self.retry_s * 2.0**num_tried, self.max_retry_s)
        return 0.0 if crashes == 1 else min(self.first_delay_s * 2.0 ** (crashes - 2), self.max_delay_s)


DEFAULT_POLICY = RestartPolicy()


class Listener(Protocol):
    """Who is told; every method is called from the supervisor's thread and must not raise."""

    @property
    def awaits_answers(self) -> bool:
        """Has the process been asked what it has not answered? From any thread."""

    def on_progress(self, progress: LoadProgress) -> None: ...

    def on_ready(self, child: EngineChild, info: EngineInfo) -> None: ...

    def on_events(self, events: list[RequestEvent]) -> None: ...

    def on_snapshot(self, snapshot: EngineSnapshot) -> None: ...

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        """What the process has been asked and has not answered."""

    def on_lost(self, error: EagleLocalError, *, is_crash: bool) -> None:
        """The process is gone, or is going. What it was asked fails; what is asked now waits for another one.

        `is_crash`: what it was asked may be the reason.
        """

    def on_down(self, error: EagleLocalError, *, for_good: bool) -> None:
        """No process is on its way, for a while or for good: what waits and what comes fails."""


@dataclass(slots=True)
class _Life:
    """What is known of one child, from its start to its end."""

    ready_at_s: float | None = None
    last_message: EagleLocalError | None = None  # why it ends, said by itself
    has_answered: bool = False
    is_told: bool = False  # that it is lost, before it has ended
    in_flight: tuple[InFlight, ...] = ()  # when it ended
    lived_s: float = 0.0
    pid: int = 0
    ending: Ending | None = None  # None: it never was
    passing: bool = False  # the system would not start it at the moment

    @property
    def is_loading(self) -> bool:
        return self.ready_at_s is None

    @property
    def may_be_of_a_request(self) -> bool:
        """May what it was asked be why it ended?"""
        return not (self.is_loading or (self.ending is not None and self.ending.is_from_outside))

    def hear(self, events: list[RequestEvent]) -> None:
        if not self.has_answered:
            self.has_answered = any(isinstance(event, (Tokens, Finished)) for event in events)

    def was_good(self, stable_s: float) -> bool:
        lasted = self.ready_at_s is not None and time.monotonic() - self.ready_at_s >= stable_s
        return self.has_answered or lasted


class Supervisor:
    """Owner of the engine process."""

    def __init__(self, plan: Plan, builder: str, policy: RestartPolicy, listener: Listener) -> None:
        self._plan = plan
        self._builder = builder
        self._policy = policy
        self._listener = listener
        self._lock = threading.Lock()  # of _child against close()
        self._child: EngineChild | None = None
        self._closing = threading.Event()
        self._state: EngineState = "loading"
        self._crashes = 0
        self._num_starts_failed = 0  # in a row, by the system's fault
        self._down_since_s = 0.0
        self._restarts = 0
        self._thread = threading.Thread(target=self._run, name="engine-supervisor", daemon=True)

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def restarts(self) -> int:
        """How often a process was started anew."""
        return self._restarts

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child else None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the process and the thread. Safe from any thread, more than once, before start too."""
        self._closing.set()
        with self._lock:
            child = self._child
        if child is not None:
            child.stop(gently=self._state == "ready")
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        delay_s: float | None = 0.0
        while delay_s is not None and not self._closing.wait(delay_s):
            life = _Life()
            error = self._live(life)
            delay_s = self._follow(life, error)
        if self._closing.is_set():
            self._state = "closed"
            closed = EngineError("the engine was closed")
            self._listener.on_lost(closed, is_crash=False)
            self._listener.on_down(closed, for_good=True)

    def _live(self, life: _Life) -> EagleLocalError:
        """Start a process and hear it out; why it ended."""
        try:
            child = EngineChild(self._builder, self._plan)
        except OSError as error:
            life.passing = error.errno in PASSING_ERRORS
            return EngineError(f"the engine process cannot be started: {error}", hint="free memory or processes")
        with self._lock:
            self._child = child
        if self._closing.is_set():
            child.stop(gently=False)
        for message in self._watchdog(child, life).listening(child.messages()):
            self._hear(child, message, life)
        life.ending = child.bury()
        life.lived_s, life.pid = time.monotonic() - child.started_at_s, child.pid
        life.in_flight = life.in_flight or self._listener.in_flight
        with self._lock:
            self._child = None
        return life.last_message or life.ending.error(" while it loaded the model" if life.is_loading else "")

    def _watchdog(self, child: EngineChild, life: _Life) -> Watchdog:
        def has_work() -> bool:
            return self._state != "ready" or self._listener.awaits_answers

        watched = Watched(pid=child.pid, has_work=has_work, is_loading=lambda: life.is_loading, end=child.end)
        return Watchdog(watched, self._policy.patience)

    def _hear(self, child: EngineChild, message: object, life: _Life) -> None:
        match message:
            case list():
                events = cast("list[RequestEvent]", message)
                life.hear(events)
                self._listener.on_events(events)
            case LoadProgress():
                self._listener.on_progress(message)
            case Ready(info):
                life.ready_at_s = time.monotonic()
                self._state = "ready"
                self._num_starts_failed = 0
                self._listener.on_ready(child, info)
                if self._restarts:
                    down_s = time.monotonic() - self._down_since_s
                    _log.info("%s: the engine is back after %.1f s", self._plan.target_label, down_s)
            case LoadFailed(error):
                life.last_message = error
            case Broken(error):
                life.last_message, life.is_told = error, True
                life.in_flight = self._listener.in_flight
                self._state = "restarting"
                self._listener.on_lost(error, is_crash=True)  # nothing must be sent to it while it ends
            case SnapshotTaken(snapshot):
                self._listener.on_snapshot(snapshot)
            case _:
                child.end(f"its pipe carries an unknown message, {type(message).__name__}")

    def _follow(self, life: _Life, error: EagleLocalError) -> float | None:
        """What comes after an end: the seconds until the next start, or None."""
        if self._closing.is_set():
            return None
        if life.passing:
            return self._wait_for_system(error)
        self._crashes = 1 if life.was_good(self._policy.stable_s) else self._crashes + 1
        never_ran = life.is_loading and self._restarts == 0
        delay_s = None if never_ran else self._policy.delay_s(self._crashes)
        self._record(life, error, delay_s, never_ran=never_ran)
        if self._state == "ready" or life.is_told:
            self._down_since_s = time.monotonic()
        self._state = "failed" if delay_s is None else "restarting"
        self._restarts += delay_s is not None
        if not life.is_told:
            self._listener.on_lost(error, is_crash=life.may_be_of_a_request)
        if never_ran:
            self._listener.on_down(error, for_good=True)
        elif self._crashes >= self._policy.max_crashes:
            self._listener.on_down(_down(error, self._crashes, delay_s), for_good=delay_s is None)
        return delay_s

    def _wait_for_system(self, error: EagleLocalError) -> float | None:
        """A process that the system could not start just now is no crash. The first one is not waited for long."""
        self._num_starts_failed += 1
        is_first = self._restarts == 0
        if self._num_starts_failed == 1:
            _log.warning("%s: %s; trying again every %g s", self._plan.target_label, error.message, PASSING_DELAY_S)
        if is_first and self._num_starts_failed >= MAX_FIRST_STARTS:
            self._state = "failed"
            self._listener.on_lost(error, is_crash=False)
            self._listener.on_down(error, for_good=True)
            return None
        self._listener.on_lost(error, is_crash=False)
        return PASSING_DELAY_S

    def _record(self, life: _Life, error: EagleLocalError, delay_s: float | None, *, never_ran: bool) -> None:
        """Log a crash, and write its report. A load that says why it fails needs no report, the first one no line."""
        says_why = life.is_loading and life.last_message is not None and not isinstance(error, EngineError)
        if life.ending is None or (says_why and never_ran):
            return
        crash = Crash(
            target=self._plan.target_label,
            pid=life.pid,
            ending=life.ending,
            error=error,
            lived_s=life.lived_s,
            was_loading=life.is_loading,
            in_flight=life.in_flight,
        )
        report = None if says_why else write_report(crash)
        error.report = str(report or "")
        _log.error("%s", log_line(crash, _next_start(delay_s), report))


def _next_start(delay_s: float | None) -> str:
    if delay_s is None:
        return "given up"
    return f"started again in {delay_s:g} s" if delay_s else "started again at once"


def _down(error: EagleLocalError, crashes: int, delay_s: float | None) -> EngineError:
    then = "is not started again" if delay_s is None else f"is started again in {delay_s:g} s"
    down = EngineError(f"the engine failed {crashes} times in a row and {then}: {error.message}", hint=error.hint)
    down.report = error.report
    return down
