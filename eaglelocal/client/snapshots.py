"""The engine's totals as the client knows them: asked for when it can answer, remembered when it cannot."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

from eaglelocal.client.desk import Recipient
from eaglelocal.core.events import NOTHING_YET, EngineSnapshot, TakeSnapshot


class _Asked:
    """A question on its way to one process."""

    def __init__(self, recipient: Recipient) -> None:
        self.recipient = recipient
        self.answer: Future[EngineSnapshot] = Future()


class Snapshots:
    """One question at a time is on its way; everyone who asks meanwhile shares its answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = NOTHING_YET
        self._asked: _Asked | None = None

    @property
    def last(self) -> EngineSnapshot:
        return self._last

    def take(self, recipient: Recipient, timeout_s: float) -> EngineSnapshot:
        """A fresh snapshot, or the last one when the engine is busy for longer than this."""
        with self._lock:
            asked = self._asked
            if asked is None or asked.recipient is not recipient:  # what a dead process was asked stays unanswered
                asked = self._asked = _Asked(recipient)
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
        """The engine is gone: its totals stay, its gauges do not."""
        self.arrive(replace(self._last, running=0, waiting=0))
