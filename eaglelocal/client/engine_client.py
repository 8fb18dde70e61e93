"""The client of our own engine: a supervised child process behind the Client interface.

    with EngineClient(plan) as client:
        info = client.start()
        print(client.stream(ChatRequest(id="1", text="hello")).result().text)

Connects the supervisor (which keeps the process alive), the requests and the snapshots. Decides only how long
requests wait for an engine that is down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from eaglelocal.client.client import OnEvent, RequestStream, stream
from eaglelocal.client.in_flight_requests import EngineProcess, InFlightRequests
from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.events import (
    NOTHING_YET,
    EngineInfo,
    EngineSnapshot,
    HeadSwapped,
    LoadProgress,
    SetAdapters,
    SetSpec,
    SwapHead,
    TakeSnapshot,
)
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AnyRequest, ChatRequest, Spec
from eaglelocal.errors import EagleLocalError, EngineAwayError, EngineError
from eaglelocal.worker.child import EngineChild, SpareProcess
from eaglelocal.worker.crash_report import InFlight
from eaglelocal.worker.supervisor import DEFAULT_POLICY, EngineReport, EngineState, RestartPolicy, Supervisor

_log = logging.getLogger(__name__)

WAIT_PER_LOAD = 2.0  # requests wait for a restart at least so many times the seconds of a load
SWAP_TIMEOUT_S = 180.0  # a head is read from disk, and follows the running answers for some steps

OnProgress = Callable[[LoadProgress], None]
Submit = Callable[[AnyRequest, OnEvent], None]
WatchSubmit = Callable[[Submit, AnyRequest, OnEvent], None]


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
        spare: SpareProcess | None = None,
        watch: WatchSubmit | None = None,
    ) -> None:
        """`spare`: a process that already waits for a plan; the caller closes it.

        watch  called with each request and the function that submits it
        """
        self.trouble = ""  # why there is no engine at the moment; empty while it runs or loads for the first time
        self._watch, self._on_progress, self._wait_limit_s = watch, on_progress, restart.wait_limit_s
        self._requests = InFlightRequests(EngineError("the engine has not been started"))
        self.on_events = self._requests.deliver
        self._snapshots, self._heads = Snapshots(), HeadSwaps()
        self._supervisor = Supervisor(plan, builder, restart, self, spare)
        self._lock = threading.Lock()  # guards _is_started and _is_closed
        self._is_started = self._is_closed = False
        self._wait_timer: threading.Timer | None = None
        self._start_is_decided = threading.Event()  # set when the first load has succeeded or failed
        self._outcome: EngineInfo | EagleLocalError = EngineError("the engine has not been started")

    @property
    def state(self) -> EngineState:
        return "closed" if self._is_closed else self._supervisor.state

    @property
    def restarts(self) -> int:
        return self._supervisor.restarts

    @property
    def pid(self) -> int | None:
        """Return the process id of the engine; None while there is none."""
        return self._supervisor.pid

    def start(self) -> EngineInfo:
        """Load the model and wait until the engine is ready. Raises the error that prevents it."""
        self.begin()
        self._start_is_decided.wait()
        if isinstance(self._outcome, EagleLocalError):
            raise self._outcome
        return self._outcome

    def begin(self) -> None:
        """Begin to load the model without waiting."""
        with self._lock:
            if not (self._is_started or self._is_closed):
                self._is_started = True
                self._requests.accept()
                self._supervisor.start()

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None:
        """Submit a request; see Client.

        It waits while the engine loads, and while it restarts for `wait_limit_s`, or longer if loading takes long.
        """
        if self._watch is None:
            self._requests.submit(request, on_event)
        else:
            self._watch(self._requests.submit, request, on_event)

    def stream(self, request: ChatRequest) -> RequestStream:
        """Submit a request and return an iterator over its events."""
        return stream(self, request)

    def cancel(self, request_id: str) -> None:
        self._requests.cancel(request_id)

    def set_spec(self, spec: Spec) -> None:
        """Set how to draft for requests that do not say it themselves, running ones included."""
        self._requests.set_default(SetSpec(spec))

    def set_adapters(self, mix: AdapterMix) -> None:
        """Set the LoRA adapters of later requests that choose none, after restarts too."""
        self._requests.set_default(SetAdapters(mix))

    def swap_head(self, path: Path, version: int, *, timeout_s: float = SWAP_TIMEOUT_S) -> None:
        """Draft with the head in another file from now on, and after restarts too; return when it drafts.

        version  its number among the learned versions; 0: the base head

        Running answers go on. Raises EagleLocalError where the head cannot replace the one in use, which then stays.
        """

        def keep() -> None:
            self._supervisor.plan = self._supervisor.plan.with_head(path, version)

        self._heads.swap(self._requests.process, path, version, on_success=keep, timeout_s=timeout_s)

    def snapshot(self, *, timeout_s: float = 1.0) -> EngineSnapshot:
        """Return totals since the engine process started.

        While the process is down, or does not reply within `timeout_s`, the last known ones.
        """
        process = self._requests.process
        if process is not None:
            return self._snapshots.take(process, timeout_s)
        return replace(self._snapshots.last, waiting=self._requests.num_waiting)

    def close(self) -> None:
        """End the engine process and all threads of this client, within about 4 s. Requests in flight fail."""
        with self._lock:
            self._is_closed = True
        self._supervisor.close()
        self._cancel_wait_timer()
        closed = EngineError("the engine is closed")
        self._requests.disconnect(closed)
        self._requests.refuse(closed)
        self._decide_start(closed)

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the supervisor's Listener, on its thread
    @property
    def awaits_answers(self) -> bool:
        return self._requests.awaits_answers

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        return self._requests.in_flight

    def on_report(self, report: EngineReport) -> None:
        match report:
            case LoadProgress():
                self._pass_progress(report)
            case EngineSnapshot():
                self._snapshots.receive(report)
            case HeadSwapped(number, error):
                self._heads.finish(number, error)
            case _:
                self._requests.note_work(report)

    def _pass_progress(self, progress: LoadProgress) -> None:
        try:
            if self._on_progress is not None:
                self._on_progress(progress)
        except Exception:
            _log.exception("the listener for load progress failed")

    def on_ready(self, child: EngineChild, info: EngineInfo) -> None:
        self._cancel_wait_timer()
        self._wait_limit_s = max(self._wait_limit_s, WAIT_PER_LOAD * info.load_s)
        self.trouble = ""
        self._requests.connect(child)
        self._decide_start(info)

    def on_lost(self, error: EagleLocalError, *, is_crash: bool) -> None:
        self.trouble = error.message
        self._requests.disconnect(error, is_crash=is_crash)
        self._heads.finish(self._heads.number, error)
        self._snapshots.clear_gauges()
        if self._wait_timer is None:
            what = f"the engine was not restarted within {self._wait_limit_s:g} s: {error.message}"
            late = EngineAwayError(what, hint=error.hint)
            self._wait_timer = threading.Timer(self._wait_limit_s, self._requests.refuse, (late,))
            self._wait_timer.daemon = True
            self._wait_timer.start()

    def on_down(self, error: EagleLocalError, *, for_good: bool) -> None:
        self.trouble = error.message
        self._cancel_wait_timer()
        if for_good:
            self._decide_start(error)  # first: after a refused request `start` raises too
        is_engine_error = isinstance(error, EngineError)  # not a bad file or too little memory
        self._requests.refuse(EngineAwayError(error.message, hint=error.hint) if is_engine_error else error)

    def _decide_start(self, outcome: EngineInfo | EagleLocalError) -> None:
        """Set what `start` returns or raises: the info of the running process, or why there is none."""
        self._outcome = outcome
        self._start_is_decided.set()

    def _cancel_wait_timer(self) -> None:
        timer, self._wait_timer = self._wait_timer, None
        if timer is not None:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join()


# ---- swaps of the draft head: one command at a time, whose outcome the caller waits for
OnSuccess = Callable[[], None]


class HeadSwaps:
    """The exchanges of heads of one client; `number` counts them."""

    def __init__(self) -> None:
        self.number = 0
        self._one_at_a_time = threading.Lock()
        self._lock = threading.Lock()  # guards those below
        self._outcome: Future[None] | None = None
        self._on_success: OnSuccess = lambda: None

    def swap(
        self, process: EngineProcess | None, path: Path, version: int, *, on_success: OnSuccess, timeout_s: float
    ) -> None:
        """Let the engine draft with another head, and wait until it does.

        on_success  called once it does, on the thread that would restart the engine

        Raises the error for which it does not: the old head stays in use then. After EngineError for a timeout the
        swap may still happen.
        """
        with self._one_at_a_time:
            with self._lock:
                self.number += 1
                outcome, self._on_success = Future[None](), on_success
                self._outcome = outcome
            if process is None or not process.send(SwapHead(self.number, path, version)):
                raise EngineError("the head was not exchanged: the engine is not running", hint="eaglelocal doctor")
            try:
                outcome.result(timeout_s)
            except TimeoutError:
                raise EngineError(f"the head was not exchanged within {timeout_s:g} s: {path}") from None

    def finish(self, number: int, error: EagleLocalError | None) -> None:
        """End the swap with this number, if it is in progress: it succeeded, or failed with the error."""
        with self._lock:
            outcome = self._outcome if number == self.number else None
            self._outcome = None if outcome else self._outcome
        if outcome is None:
            return
        if error is None:
            self._on_success()
            outcome.set_result(None)
        else:
            outcome.set_exception(error)


# ---- snapshots: taken while the engine can answer; the last one is kept for when it cannot
class Snapshots:
    """The snapshots of one client. One TakeSnapshot is in flight at a time; concurrent callers share its answer."""

    def __init__(self) -> None:
        self.last = NOTHING_YET
        self._lock = threading.Lock()
        self._asked: EngineProcess | None = None  # to which a TakeSnapshot was sent
        self._answer: Future[EngineSnapshot] = Future()

    def take(self, process: EngineProcess, timeout_s: float) -> EngineSnapshot:
        """Return a fresh snapshot, or the last one if none arrives within `timeout_s`."""
        with self._lock:
            if self._asked is not process:  # a dead process never answers
                self._asked, self._answer = process, Future()
                process.send(TakeSnapshot())
            answer = self._answer
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            return self.last

    def receive(self, snapshot: EngineSnapshot) -> None:
        with self._lock:
            self.last = snapshot
            answer = None if self._asked is None else self._answer
            self._asked = None
        if answer is not None:
            answer.set_result(snapshot)

    def clear_gauges(self) -> None:
        """Keep the totals of an engine that is gone, and set its gauges to zero."""
        self.receive(replace(self.last, running=0, waiting=0))
