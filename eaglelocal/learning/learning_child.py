"""The parent's side of a process that learns: start it, read its reports, and end it quickly.

`stop` returns at once; the process has STOP_S to write a checkpoint, and is killed then.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from io import FileIO
from typing import IO, cast

from eaglelocal.core.child_process import make_environment
from eaglelocal.core.json_text import read_object
from eaglelocal.learning.learner import LearningJob, SessionReport
from eaglelocal.learning.learning_process import FAILED

MODULE = "eaglelocal.learning.learning_process"
STOP_S = 0.2  # between SIGTERM and SIGKILL


def read_report(line: bytes) -> SessionReport:
    """Return the report in a line of JSON. Raises ValueError, KeyError or TypeError for anything else."""
    fields = read_object(line)
    version = fields["version"]
    return SessionReport(
        state=str(fields["state"]),
        version=None if version is None else int(cast(int, version)),
        head=str(fields["head"]),
        missing=int(cast(int, fields["missing"])),
        note=str(fields["note"]),
        trouble=str(fields["trouble"]),
    )


class LearningChild:
    """A process that learns. Raises OSError where it cannot be started."""

    def __init__(self, job: LearningJob, environ: Mapping[str, str] = os.environ) -> None:
        folders = {name: value for name, value in environ.items() if name.startswith("XDG_")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=make_environment() | folders,
            process_group=0,
        )
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
        with cast(FileIO, self._process.stdout) as stdout:
            for line in stdout:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    yield read_report(line)
        status = self._process.wait()
        if status and not self.was_stopped:
            yield SessionReport(state=FAILED, note=f"the learning process ended with status {status}")

    def stop(self) -> None:
        """Ask the process to end, and kill it soon. Returns at once; safe from any thread."""
        self.was_stopped = True
        with contextlib.suppress(OSError):
            self._process.terminate()
        timer = threading.Timer(STOP_S, self.kill)
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread can be started
            timer.start()
            return
        self.kill()

    def kill(self) -> None:
        """Kill the process, and the engine that answers what it rehearses: they are one group."""
        self.was_stopped = True
        with contextlib.suppress(OSError):
            if self.is_running:
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self.kill()
        self._process.wait()
