"""The engine's snapshots: taken while it can answer; the last one is kept for when it cannot."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

from eaglelocal.client.in_flight_requests import EngineProcess
from eaglelocal.core.events import NOTHING_YET, EngineSnapshot, TakeSnapshot


class _PendingSnapshot:
    """A TakeSnapshot sent to one process, and its answer to come."""

    def __init__(self, process: EngineProcess) -> None:
        self.process = process
        self.answer: Future[EngineSnapshot] = Future()


class Snapshots:
    """The snapshots of one client. One TakeSnapshot is in flight at a time; concurrent callers share its answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = NOTHING_YET
        self._pending: _PendingSnapshot | None = None

    @property
    def last(self) -> EngineSnapshot:
        return self._last

    def take(self, process: EngineProcess, timeout_s: float) -> EngineSnapshot:
        """Return a fresh snapshot, or the last one if none arrives within `timeout_s`."""
        with self._lock:
            pending = self._pending
            if pending is None or pending.process is not process:  # a dead process never answers
                pending = self._pending = _PendingSnapshot(process)
                process.send(TakeSnapshot())
        try:
            return pending.answer.result(timeout_s)
        except TimeoutError:
            return self._last

    def receive(self, snapshot: EngineSnapshot) -> None:
        with self._lock:
            self._last = snapshot
            pending, self._pending = self._pending, None
        if pending is not None:
            pending.answer.set_result(snapshot)

    def clear_gauges(self) -> None:
        """Keep the totals of an engine that is gone, and set its gauges to zero."""
        self.receive(replace(self._last, running=0, waiting=0))
