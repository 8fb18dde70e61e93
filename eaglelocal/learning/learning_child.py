"""The parent's side of a process that learns: start it, read its reports, and get it out of the way.

`give_way` freezes the process at once, so that it takes nothing from an answer; when all is quiet again, it writes a
checkpoint and ends. `stop` ends it within STOP_S. Both return at once.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from io import BufferedReader, FileIO
from typing import IO, Any, cast

from eaglelocal.core.json_text import read_object
from eaglelocal.learning.learner import LearningJob, SessionReport
from eaglelocal.learning.learning_process import FAILED
from eaglelocal.processes.child_process import start_module

MODULE = "eaglelocal.learning.learning_process"
STOP_S = 0.2  # between SIGTERM and SIGKILL
FROZEN_S = 30.0  # at most; its memory may be needed
SAVE_S = 5.0  # for a checkpoint, once all is quiet
POLL_S = 0.1


def read_report(line: bytes) -> SessionReport:
    """Parse a report from a line of JSON. Raises ValueError, KeyError or TypeError if it is malformed."""
    fields: Any = read_object(line)
    version = fields["version"]
    return SessionReport(
        state=str(fields["state"]),
        version=None if version is None else int(version),
        head=str(fields["head"]),
        missing=int(fields["missing"]),
        note=str(fields["note"]),
        trouble=str(fields["trouble"]),
    )


class LearningChild:
    """A process that learns. Raises OSError where it cannot be started."""

    def __init__(self, job: LearningJob) -> None:
        self._process = start_module(MODULE, stderr=subprocess.DEVNULL, has_own_group=True)
        self.was_stopped = False
        with contextlib.suppress(OSError), cast(IO[bytes], self._process.stdin) as stdin:
            stdin.write(pickle.dumps(job))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def reports(self) -> Iterator[SessionReport]:
        """Yield the reports until the process has ended; a failed one if it died without being stopped."""
        with BufferedReader(cast(FileIO, self._process.stdout)) as stdout:
            for line in stdout:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    yield read_report(line)
        status = self._process.wait()
        if status and not self.was_stopped:
            yield SessionReport(state=FAILED, note=f"the learning process ended with status {status}")

    def give_way(self, is_quiet: Callable[[], bool]) -> None:
        """Freeze the process; end it once all is quiet, or after FROZEN_S. Returns at once; safe from any thread."""
        if self.was_stopped:
            return
        self.was_stopped = True
        self._signal(signal.SIGSTOP)
        self._start_or_kill(threading.Thread(target=self._leave, args=(is_quiet,), name="learning-leaves"))

    def _leave(self, is_quiet: Callable[[], bool]) -> None:
        until = time.monotonic() + FROZEN_S
        while self.is_running and not is_quiet() and time.monotonic() < until:
            time.sleep(POLL_S)
        if not is_quiet():
            self.kill()
            return
        self._terminate()
        until = time.monotonic() + SAVE_S
        while self.is_running and is_quiet() and time.monotonic() < until:
            time.sleep(POLL_S)
        self.kill()

    def stop(self) -> None:
        """Ask the process to end, and kill it soon. Returns at once; safe from any thread."""
        self.was_stopped = True
        self._terminate()
        self._start_or_kill(threading.Timer(STOP_S, self.kill))

    def kill(self) -> None:
        """Kill the process and its rehearsal engine: they are one process group."""
        self.was_stopped = True
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self.kill()
        self._process.wait()

    def _terminate(self) -> None:
        """Ask the process to end, also if it is frozen."""
        with contextlib.suppress(OSError):
            self._process.terminate()
        self._signal(signal.SIGCONT)

    def _start_or_kill(self, thread: threading.Thread) -> None:
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError:  # no thread can be started
            self.kill()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            if self.is_running:
                os.killpg(self.pid, number)
