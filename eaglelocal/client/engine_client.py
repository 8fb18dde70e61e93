"""The client of our own engine: a supervised child process behind the Client interface.

    with EngineClient(plan) as client:
        info = client.start()
        print(client.stream(ChatRequest(id="1", text="hello")).result().text)

Connects the supervisor (the process), the Desk (the requests) and the snapshots; decides nothing itself except how
long requests wait for an engine that is down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from eaglelocal.client.answer_stream import RequestStream, stream
from eaglelocal.client.client import OnEvent
from eaglelocal.client.in_flight_requests import InFlightRequests
from eaglelocal.client.snapshots import Snapshots
from eaglelocal.core.events import EngineInfo, EngineSnapshot, LoadProgress, RequestEvent
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AnyRequest, ChatRequest, Spec
from eaglelocal.errors import EagleLocalError, EngineAwayError, EngineError
from eaglelocal.worker.child import EngineChild
from eaglelocal.worker.crash_report import InFlight
from eaglelocal.worker.supervisor import DEFAULT_POLICY, EngineState, RestartPolicy, Supervisor

_log = logging.getLogger(__name__)

OnProgress = Callable[[LoadProgress], None]


class EngineClient:
    """An engine in a process of its own. Thread-safe; many requests at once.

    Events of requests arrive on one thread, the supervisor's; requests that never reached the engine
    may be failed or cancelled on another. Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        builder: str = "eaglelocal.loading.engine_builder:build",
        on_progress: OnProgress | None = None,
        restart: RestartPolicy = DEFAULT_POLICY,
    ) -> None:
        self._desk = InFlightRequests(EngineError("the engine has not been started"))
        self._snapshots = Snapshots()
        self._switchboard = _Switchboard(self._desk, self._snapshots, on_progress, restart.wait_limit_s)
        self._supervisor = Supervisor(plan, builder, restart, self._switchboard)
        self._lock = threading.Lock()  # guards _started and _closed
        self._started = False
        self._closed = False

    @property
    def state(self) -> EngineState:
        return "closed" if self._closed else self._supervisor.state

    @property
    def restarts(self) -> int:
        return self._supervisor.restarts

    @property
    def trouble(self) -> str:
        """Return why there is no engine at the moment; empty while it runs or loads for the first time."""
        return self._switchboard.trouble

    @property
    def pid(self) -> int | None:
        """Return the process id of the engine; None while there is none."""
        return self._supervisor.pid

    def start(self) -> EngineInfo:
        """Load the model and wait until the engine is ready. Raises the error that prevents it."""
        with self._lock:
            if not (self._started or self._closed):
                self._started = True
                self._desk.accept()
                self._supervisor.start()
        return self._switchboard.wait()

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None:
        """Submit a request; see Client. It waits while the engine loads, and up to `wait_limit_s` while it restarts."""
        self._desk.submit(request, on_event)

    def stream(self, request: ChatRequest) -> RequestStream:
        """Submit a request and return an iterator over its events."""
        return stream(self, request)

    def cancel(self, request_id: str) -> None:
        self._desk.cancel(request_id)

    def set_spec(self, spec: Spec) -> None:
        """Set how to draft for requests that do not say it themselves, running ones included."""
        self._desk.set_spec(spec)

    def snapshot(self, *, timeout_s: float = 1.0) -> EngineSnapshot:
        """Return totals since the engine process started.

        While the process is down, or does not reply within `timeout_s`, the last known ones.
        """
        recipient = self._desk.recipient
        if recipient is not None:
            return self._snapshots.take(recipient, timeout_s)
        return replace(self._snapshots.last, waiting=self._desk.num_waiting)

    def close(self) -> None:
        """End the engine process and all threads of this client, within about 4 s. Requests in flight fail."""
        with self._lock:
            self._closed = True
        self._supervisor.close()
        self._switchboard.close()

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Switchboard:
    """The supervisor's listener: passes its events on to Desk, snapshots and the caller."""

    def __init__(
        self, desk: InFlightRequests, snapshots: Snapshots, on_progress: OnProgress | None, wait_limit_s: float
    ) -> None:
        self._desk = desk
        self._snapshots = snapshots
        self._on_progress = on_progress
        self._wait_limit_s = wait_limit_s
        self.trouble = ""  # why there is no engine; empty while it runs
        self._limit: threading.Timer | None = None
        self._settled = threading.Event()  # set when the first load has succeeded or failed
        self._outcome: EngineInfo | EagleLocalError = EngineError("the engine has not been started")

    def wait(self) -> EngineInfo:
        self._settled.wait()
        if isinstance(self._outcome, EagleLocalError):
            raise self._outcome
        return self._outcome

    def close(self) -> None:
        self._end_limit()
        closed = EngineError("the engine is closed")
        self._desk.lose(closed)
        self._desk.refuse(closed)
        self._settle(closed)

    @property
    def awaits_answers(self) -> bool:
        return self._desk.awaits_answers

    def on_progress(self, progress: LoadProgress) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress)
        except Exception:
            _log.exception("the listener of the load's progress failed")

    def on_ready(self, child: EngineChild, info: EngineInfo) -> None:
        self._end_limit()
        self.trouble = ""
        self._desk.take_over(child)
        self._settle(info)

    def on_events(self, events: list[RequestEvent]) -> None:
        self._desk.deliver(events)

    def on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self._snapshots.arrive(snapshot)

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        return self._desk.in_flight

    def on_lost(self, error: EagleLocalError, *, is_crash: bool) -> None:
        self.trouble = error.message
        self._desk.lose(error, is_crash=is_crash)
        self._snapshots.lose()
        if self._limit is None:
            self._limit = threading.Timer(self._wait_limit_s, self._desk.refuse, (self._late(error),))
            self._limit.daemon = True
            self._limit.start()

    def on_down(self, error: EagleLocalError, *, for_good: bool) -> None:
        self.trouble = error.message
        self._end_limit()
        self._desk.refuse(_away(error))
        if for_good:
            self._settle(error)

    def _late(self, error: EagleLocalError) -> EngineAwayError:
        what = f"the engine has not come back within {self._wait_limit_s:g} s: {error.message}"
        return EngineAwayError(what, hint=error.hint)

    def _settle(self, outcome: EngineInfo | EagleLocalError) -> None:
        """Store what start() returns or raises: the info of the running process, or why there is none."""
        self._outcome = outcome
        self._settled.set()

    def _end_limit(self) -> None:
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.cancel()
            if limit is not threading.current_thread():
                limit.join()


def _away(error: EagleLocalError) -> EagleLocalError:
    """Return an EngineError as EngineAwayError; other errors (a bad file, too little memory) unchanged."""
    return EngineAwayError(error.message, hint=error.hint) if isinstance(error, EngineError) else error
