"""The process that learns: python -m eaglelocal.learning.learning_process, a pickled LearningJob on stdin.

It reports its progress in lines of JSON on stdout. It has the lowest priority, ends with its parent, and may be killed
at any moment; on SIGTERM training writes a checkpoint first.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from io import BufferedReader, FileIO
from typing import IO, BinaryIO, cast

from eaglelocal.backend.parent_watch import end_frozen_with_parent, end_with_parent
from eaglelocal.core.json_text import read_object, read_record
from eaglelocal.errors import EagleLocalError
from eaglelocal.learning.learner import LearningJob, LearningSession, SessionReport
from eaglelocal.processes.child_process import start_module
from eaglelocal.training.device import choose_device

NICE = 19
FAILED = "failed"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    lower_priority()
    job: LearningJob = pickle.load(sys.stdin.buffer)
    os.environ["OMP_NUM_THREADS"] = str(job.threads)  # read by torch when it is imported
    end_with_parent()
    end_frozen_with_parent()
    run(job, sys.stdout.buffer)


def run(job: LearningJob, out: BinaryIO) -> None:
    """Run a session, and write its reports; an error is the last one."""

    def tell(report: SessionReport) -> None:
        out.write(json.dumps(asdict(report)).encode() + b"\n")
        out.flush()

    try:
        choose_device("cpu")  # reports a missing torch
        LearningSession(job, tell).run()
    except EagleLocalError as error:
        tell(SessionReport(state=FAILED, note=f"{error.message}{f' ({error.hint})' if error.hint else ''}"))
    except Exception as error:
        tell(SessionReport(state=FAILED, note=f"{type(error).__name__}: {error}"))


def lower_priority() -> None:
    """Give this process the lowest priority."""
    with suppress(OSError):
        os.nice(NICE)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


# ---- the parent's side: start the process, read its reports, and get it out of the way
#
# `give_way` freezes the process at once, so that it takes nothing from an answer; when all is quiet again, it writes a
# checkpoint and ends. `stop` ends it within STOP_S. Both return at once.
MODULE = "eaglelocal.learning.learning_process"
STOP_S = 0.2  # between SIGTERM and SIGKILL
FROZEN_S = 30.0  # at most; its memory may be needed
SAVE_S = 5.0  # for a checkpoint, once all is quiet
POLL_S = 0.1


class LearningChild:
    """A process that learns. Raises OSError where it cannot be started."""

    def __init__(self, job: LearningJob) -> None:
        self._process = start_module(MODULE, stderr=subprocess.DEVNULL, has_own_group=True)
        self.was_stopped = False
        with suppress(OSError), cast(IO[bytes], self._process.stdin) as stdin:
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
                with suppress(ValueError):
                    yield read_record(SessionReport, read_object(line))
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
        with suppress(OSError):
            self._process.terminate()
        self._signal(signal.SIGCONT)

    def _start_or_kill(self, thread: threading.Thread) -> None:
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError:  # no thread can be started
            self.kill()

    def _signal(self, number: int) -> None:
        with suppress(OSError):
            if self.is_running:
                os.killpg(self.pid, number)


if __name__ == "__main__":
    main()
