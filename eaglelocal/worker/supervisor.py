"""Keep one engine process alive: start it, pass on its messages, and restart it when it ends.

One thread does all of this, and calls the listener in order; another watches for a process that hangs (watchdog.py).
Only consecutive crashes count: a process that has emitted tokens, or was ready for `stable_s`, has shown that model
and machine work, so its crash starts a new count. One that cannot load, or dies of its first request, is a crash loop,
however slowly it loads: it is given up, or retried at growing intervals, as the policy says. Failing to start
a process for lack of descriptors or processes is no crash: the start is repeated.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from dataclasses import field
from typing import Literal, Protocol, cast

from eaglelocal.core.events import (
    Begun,
    EngineInfo,
    EngineSnapshot,
    Finished,
    HeadSwapped,
    LoadFailed,
    LoadProgress,
    RequestEvent,
    Rested,
    Tokens,
    Warned,
    WorkEvent,
)
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, EngineError, RpcServerError
from eaglelocal.worker.child import EngineChild, SpareProcess
from eaglelocal.worker.crash_report import Crash, InFlight, format_log_line, write_report
from eaglelocal.worker.exit_reason import Broken, ExitReason
from eaglelocal.worker.watchdog import SilenceLimits, Watchdog

EngineState = Literal["loading", "ready", "restarting", "failed", "closed"]

# temporary lack of descriptors, processes or memory
TEMPORARY_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
TEMPORARY_DELAY_S = 1.0
MAX_FIRST_STARTS = 10  # attempts to start the first process

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # outside a server nothing is logged: the error itself is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Delays before restarts: none after the first crash, then 1, 2, 4 ... times `first_delay_s`.

    After `max_crashes` in a row requests no longer wait, and the engine is given up, or restarted `num_retries` times
    more, after 1, 2, 4 ... times `retry_s`.
    """

    max_crashes: int = 5  # in a row, of processes that emitted nothing
    num_retries: int = 0
    retry_s: float = 15.0
    max_retry_s: float = 60.0
    stable_s: float = 120.0  # of being ready, after which the count of crashes starts again
    first_delay_s: float = 1.0
    max_delay_s: float = 8.0
    wait_limit_s: float = 60.0  # how long requests wait for an engine that is down
    silence_limits: SilenceLimits = field(default_factory=SilenceLimits)  # before a process counts as hung

    def delay_s(self, crashes: int) -> float | None:
        """Return the seconds to wait after the crash with this number, counted from 1; None means give up."""
        num_tried = crashes - self.max_crashes
        if num_tried >= self.num_retries:
            return None
        if num_tried >= 0:
            return min(self.retry_s * 2.0**num_tried, self.max_retry_s)
        return 0.0 if crashes == 1 else min(self.first_delay_s * 2.0 ** (crashes - 2), self.max_delay_s)


DEFAULT_POLICY = RestartPolicy()


EngineReport = LoadProgress | WorkEvent | EngineSnapshot | HeadSwapped


class Listener(Protocol):
    """The receiver of an engine's messages and of its losses. Called from the supervisor's thread; must not raise."""

    @property
    def awaits_answers(self) -> bool:
        """Return whether the process has unanswered requests or commands. Safe from any thread."""

    def on_ready(self, child: EngineChild, info: EngineInfo) -> None: ...

    def on_events(self, events: list[RequestEvent]) -> None: ...

    def on_report(self, report: EngineReport) -> None: ...

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        """Return the requests that the process has not answered yet."""

    def on_lost(self, error: EagleLocalError, *, is_crash: bool) -> None:
        """Handle the end of the process: requests that had begun fail, the others wait for the next process.

        `is_crash`: a request may be the cause. Otherwise a begun request without any event yet may wait too.
        """

    def on_down(self, error: EagleLocalError, *, for_good: bool) -> None:
        """Handle that no process will come soon, or ever (`for_good`): waiting and new requests fail."""


@dataclass(slots=True)
class _ChildRun:
    """One child from its start to its end."""

    ready_at_s: float | None = None
    last_message: EagleLocalError | None = None  # the process's own words on why it ended
    has_answered: bool = False
    is_reported: bool = False  # the listener knows of the loss, before the process has ended
    in_flight: tuple[InFlight, ...] = ()  # when it ended
    uptime_s: float = 0.0
    pid: int = 0
    exit_reason: ExitReason | None = None  # None: it was never started
    is_temporary: bool = False  # starting it failed for a temporary reason

    @property
    def is_loading(self) -> bool:
        return self.ready_at_s is None

    @property
    def may_be_caused_by_request(self) -> bool:
        """Return whether a request may have caused the end."""
        return not (self.is_loading or (self.exit_reason is not None and self.exit_reason.is_from_outside))

    @property
    def error(self) -> EagleLocalError:
        """Return why it ended; its own last message comes first."""
        assert self.exit_reason is not None
        return self.last_message or self.exit_reason.error(" while it loaded the model" if self.is_loading else "")

    def was_stable(self, stable_s: float) -> bool:
        is_old = self.ready_at_s is not None and time.monotonic() - self.ready_at_s >= stable_s
        return self.has_answered or is_old


class Supervisor:
    """The owner of the engine process: starts, watches and restarts it."""

    def __init__(
        self, plan: Plan, builder: str, policy: RestartPolicy, listener: Listener, spare: SpareProcess | None = None
    ) -> None:
        """`spare`: the first process, if it is still there when the supervisor starts."""
        self.plan = plan  # loaded whenever the process is started
        self._spare = spare
        self._builder = builder
        self._policy = policy
        self._listener = listener
        self._lock = threading.Lock()  # of _child against close()
        self._child: EngineChild | None = None
        self._is_closing = threading.Event()
        self.state: EngineState = "loading"
        self._num_crashes = 0
        self._num_starts_failed = 0  # in a row, for temporary reasons
        self._down_since_s = 0.0
        self.restarts = 0
        self._thread = threading.Thread(target=self._run, name="engine-supervisor", daemon=True)

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child else None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the process and the thread. Safe from any thread, more than once, and before start()."""
        self._is_closing.set()
        with self._lock:
            child = self._child
        if child is not None:
            child.stop(is_graceful=self.state == "ready")
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        delay_s: float | None = 0.0
        while delay_s is not None and not self._is_closing.wait(delay_s):
            run = _ChildRun()
            error = self._run_child(run)
            delay_s = self._decide_restart(run, error)
        if self._is_closing.is_set():
            self.state = "closed"
            closed = EngineError("the engine was closed")
            self._listener.on_lost(closed, is_crash=False)
            self._listener.on_down(closed, for_good=True)

    def _run_child(self, run: _ChildRun) -> EagleLocalError:
        """Run one process from start to end; return why it ended."""
        try:
            spare, self._spare = self._spare, None
            child = (spare and spare.take(self._builder)) or EngineChild(self._builder)
            child.load(self.plan)
        except OSError as error:
            run.is_temporary = error.errno in TEMPORARY_ERRORS
            return EngineError(f"the engine process cannot be started: {error}", hint="free memory or processes")
        with self._lock:
            self._child = child
        if self._is_closing.is_set():
            child.stop(is_graceful=False)
        watchdog = Watchdog(
            pid=child.pid,
            limits=self._policy.silence_limits,
            has_work=lambda: self.state != "ready" or self._listener.awaits_answers,
            is_loading=lambda: run.is_loading,
            kill=child.kill,
        )
        for message in watchdog.watch(child.messages()):
            self._handle_message(child, message, run)
        run.exit_reason, run.pid = child.reap(), child.pid
        run.uptime_s = time.monotonic() - child.started_at_s
        run.in_flight = run.in_flight or self._listener.in_flight
        with self._lock:
            self._child = None
        return run.error

    def _handle_message(self, child: EngineChild, message: object, run: _ChildRun) -> None:
        match message:
            case list():
                events = cast("list[RequestEvent]", message)
                run.has_answered = run.has_answered or any(isinstance(event, (Tokens, Finished)) for event in events)
                self._listener.on_events(events)
            case LoadProgress() | Begun() | Rested() | EngineSnapshot() | HeadSwapped():
                self._listener.on_report(message)
            case EngineInfo():
                run.ready_at_s = time.monotonic()
                self.state, self._num_starts_failed = "ready", 0
                self._listener.on_ready(child, message)
                if self.restarts:
                    down_s = time.monotonic() - self._down_since_s
                    _log.info("%s: the engine is back after %.1f s", self.plan.target_label, down_s)
            case LoadFailed(error):
                run.last_message = error
            case Broken(error):
                run.last_message, run.in_flight, run.is_reported = error, self._listener.in_flight, True
                self.state = "restarting"
                self._listener.on_lost(error, is_crash=True)  # at once, so that nothing is sent to it while it ends
            case Warned(text):
                _log.warning("%s: %s", self.plan.target_label, text)
            case _:
                child.kill(f"it sent an unknown message, {type(message).__name__}")

    def _decide_restart(self, run: _ChildRun, error: EagleLocalError) -> float | None:
        """Record how a process ended, notify the listener, and return the seconds until the next start, if any."""
        if self._is_closing.is_set():
            return None
        if run.is_temporary:
            return self._wait_for_system(error)
        self._num_crashes = 1 if run.was_stable(self._policy.stable_s) else self._num_crashes + 1
        never_ran = run.is_loading and self.restarts == 0
        delay_s = None if never_ran else self._policy.delay_s(self._num_crashes)
        self._report_crash(run, error, delay_s, never_ran=never_ran)
        if self.state == "ready" or run.is_reported:
            self._down_since_s = time.monotonic()
        self.state = "failed" if delay_s is None else "restarting"
        self.restarts += delay_s is not None
        if not run.is_reported:
            self._listener.on_lost(error, is_crash=run.may_be_caused_by_request)
        if never_ran:
            self._listener.on_down(error, for_good=True)
        elif self._num_crashes >= self._policy.max_crashes:
            self._listener.on_down(_down_error(error, self._num_crashes, delay_s), for_good=delay_s is None)
        return delay_s

    def _wait_for_system(self, error: EagleLocalError) -> float | None:
        """Return the delay after a temporary failure to start; None if the first process failed to start too often."""
        self._num_starts_failed += 1
        is_first = self.restarts == 0
        if self._num_starts_failed == 1:
            _log.warning("%s: %s; trying again every %g s", self.plan.target_label, error.message, TEMPORARY_DELAY_S)
        self._listener.on_lost(error, is_crash=False)
        if is_first and self._num_starts_failed >= MAX_FIRST_STARTS:
            self.state = "failed"
            self._listener.on_down(error, for_good=True)
            return None
        return TEMPORARY_DELAY_S

    def _report_crash(self, run: _ChildRun, error: EagleLocalError, delay_s: float | None, *, never_ran: bool) -> None:
        """Log a crash and write its report.

        A failed load with its own message gets no report, and the first load's failure no log line either.
        """
        is_explained = isinstance(error, RpcServerError) or not isinstance(error, EngineError)
        has_own_message = run.is_loading and run.last_message is not None and is_explained
        if run.exit_reason is None or (has_own_message and never_ran):
            return
        crash = Crash(
            target=self.plan.target_label,
            pid=run.pid,
            exit_reason=run.exit_reason,
            error=error,
            uptime_s=run.uptime_s,
            was_loading=run.is_loading,
            in_flight=run.in_flight,
        )
        report = None if has_own_message else write_report(crash)
        error.add_report(str(report or ""))
        _log.error("%s", format_log_line(crash, _next_start(delay_s), report))


def _next_start(delay_s: float | None) -> str:
    if delay_s is None:
        return "given up"
    return f"started again in {delay_s:g} s" if delay_s else "started again at once"


def _down_error(error: EagleLocalError, crashes: int, delay_s: float | None) -> EngineError:
    then = "is not started again" if delay_s is None else f"is started again in {delay_s:g} s"
    down = EngineError(f"the engine failed {crashes} times in a row and {then}: {error.message}", hint=error.hint)
    down.add_report(error.report)
    return down
