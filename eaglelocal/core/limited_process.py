"""Calls one of our functions in a process with limits of time and memory, for untrusted input.

The process (child_process.py) is started once and serves calls one after another; one that exceeds its limits is
killed, and the next call starts a new one.
It knows neither the function nor how its failures are shown to users.
"""

from __future__ import annotations

import contextlib
import threading
import time

from eaglelocal.core.child_process import ChildProcess, pack
from eaglelocal.core.process_limits import CallRaised, CannotStart, LimitedProcessError, ProcessLimits
from eaglelocal.errors import EagleLocalError


class LimitedProcess:
    """Calls a function in a process of its own. Safe from any thread: calls wait for each other.

    function  "package.module:opener"; opener(*start) returns the function that serves calls
    """

    def __init__(self, function: str, *start: object, limits: ProcessLimits) -> None:
        self._function, self._start, self._limits = function, start, limits
        self._calling = threading.Lock()
        self._child: ChildProcess | None = None
        self._num_deaths = 0  # since a call succeeded
        self._last_death: tuple[float, LimitedProcessError] | None = None
        self._refusal: EagleLocalError | CallRaised | None = None  # why the function can never be opened
        self._is_closed = False

    def start(self, *, after_s: float = 0.0) -> None:
        """Start the process and open the function in the background. The first call raises what fails.

        after_s  seconds before that, unless a call needs the process sooner
        """
        with contextlib.suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=self._start_quietly, args=(after_s,), name="limited-process", daemon=True).start()

    def open(self) -> None:
        """Open the function, and return when it is open. Raises as `call` does."""
        with self._calling:
            self._get_open_child()

    def call(self, *args: object) -> object:
        """Return the function's result: text, bytes, None, or a JSON value.

        Raises the function's own EagleLocalError, CallRaised for its other errors, else a LimitedProcessError; pickle's
        error for arguments that cannot be sent.
        """
        request = pack(args)
        with self._calling:
            reply = self._ask(self._get_open_child(), request)
            self._num_deaths = 0
            return reply

    def close(self) -> None:
        """End the process, even during a call, and start no other."""
        self._is_closed = True
        if (child := self._child) is not None:
            child.kill()
        with self._calling:
            if self._child is not None:
                self._child.end()

    @property
    def pid(self) -> int | None:
        """The process id, or None while no process runs."""
        child = self._child
        return child.pid if child is not None and child.is_running else None

    def _start_quietly(self, after_s: float) -> None:
        time.sleep(after_s)
        with contextlib.suppress(LimitedProcessError, EagleLocalError):
            self.open()

    def _get_open_child(self) -> ChildProcess:
        """Return the process with the function open; start a new one if the last has ended."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if self._child is not None and self._child.is_running:
            return self._child
        if self._is_closed:
            raise CannotStart("it was closed")
        self._refuse_while_resting()
        child = self._child = ChildProcess(self._function, self._limits)
        if self._is_closed:  # while it was started
            child.end()
            raise CannotStart("it was closed")
        try:
            self._ask(child, pack(self._start))
        except (EagleLocalError, CallRaised) as error:
            self._refusal = error
            child.end()
            raise
        return child

    def _ask(self, child: ChildProcess, request: bytes) -> object:
        """Send a request to the process and return its reply; end the process if it gives none."""
        try:
            return child.ask(request)
        except (EagleLocalError, CallRaised):
            raise
        except LimitedProcessError as error:
            child.end()
            self._num_deaths += 1
            self._last_death = (time.monotonic(), error)
            raise
        except BaseException:  # an error on our side, perhaps in the middle of a message
            child.end()
            raise

    def _refuse_while_resting(self) -> None:
        """Raise the last error again after too many deaths in a row; after `rest_s` one more process is tried."""
        if self._last_death is None or self._num_deaths < self._limits.max_deaths:
            return
        died_at, error = self._last_death
        if time.monotonic() - died_at < self._limits.rest_s:
            raise error.with_traceback(None)
