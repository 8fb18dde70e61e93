"""Swaps of the draft head: one command at a time, whose outcome the caller waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from eaglelocal.client.in_flight_requests import EngineProcess
from eaglelocal.core.events import HeadSwapped, SwapHead
from eaglelocal.errors import EagleLocalError, EngineError

OnSuccess = Callable[[], None]


class HeadSwaps:
    """The swaps of one client."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._lock = threading.Lock()  # guards those below
        self._number = 0
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
                self._number += 1
                outcome, self._on_success = Future[None](), on_success
                self._outcome = outcome
                command = SwapHead(self._number, path, version)
            if process is None or not process.send(command):
                raise EngineError("the head was not exchanged: the engine is not running", hint="eaglelocal doctor")
            try:
                outcome.result(timeout_s)
            except TimeoutError:
                raise EngineError(f"the head was not exchanged within {timeout_s:g} s: {path}") from None

    def receive(self, swapped: HeadSwapped) -> None:
        self._finish(swapped.number, swapped.error)

    def fail(self, error: EagleLocalError) -> None:
        """Fail the swap in progress, if there is one: its process is gone."""
        self._finish(self._number, error)

    def _finish(self, number: int, error: EagleLocalError | None) -> None:
        with self._lock:
            outcome = self._outcome if number == self._number else None
            self._outcome = None if outcome else self._outcome
        if outcome is None:
            return
        if error is None:
            self._on_success()
            outcome.set_result(None)
        else:
            outcome.set_exception(error)
