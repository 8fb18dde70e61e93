"""The engine's snapshots: requested while it can answer, the last one kept for when it cannot."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

from eaglelocal.client.in_flight_requests import Recipient
from eaglelocal.core.events import NOTHING_YET, EngineSnapshot, TakeSnapshot


class _PendingSnapshot:
    """A TakeSnapshot sent to one process, and its future answer."""

    def __init__(self, recipient: Recipient) -> None:
        self.recipient = recipient
        self.answer: Future[EngineSnapshot] = Future()


class Snapshots:
    """The snapshots of one client. One TakeSnapshot is in flight at a time; concurrent callers share its answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = NOTHING_YET
        self._asked: _PendingSnapshot | None = None

    @property
    def last(self) -> EngineSnapshot:
        return self._last

    def take(self, recipient: Recipient, timeout_s: float) -> EngineSnapshot:
        """Return a fresh snapshot, or the last one if none arrives within `timeout_s`."""
        with self._lock:
            asked = self._asked
            if asked is None or asked.recipient is not recipient:  # a dead process never answers
                asked = self._asked = _PendingSnapshot(recipient)
                recipient.send(TakeSnapshot())
        try:
            return asked.answer.result(timeout_s)
        except TimeoutError:
            return self._last

    def arrive(self, snapshot: EngineSnapshot) -> None:
        with self._lock:
            self._last = snapshot
            asked, self._asked = self._asked, None
        if asked is not None:
            asked.answer.set_result(snapshot)

    def lose(self) -> None:
        """Keep the totals of an engine that is gone, and set its gauges to zero."""
        self.arrive(replace(self._last, running=0, waiting=0))
