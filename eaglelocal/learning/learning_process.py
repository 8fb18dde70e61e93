"""The process that learns: python -m eaglelocal.learning.learning_process, a pickled LearningJob on stdin.

It reports its progress in lines of JSON on stdout. It has the lowest priority, ends with its parent, and may be killed
at any moment; on SIGTERM training writes a checkpoint first.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from eaglelocal.learning.learner import LearningJob, SessionReport

NICE = 19
FAILED = "failed"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    lower_priority()
    job: LearningJob = pickle.load(sys.stdin.buffer)
    os.environ["OMP_NUM_THREADS"] = str(job.threads)  # read by torch when it is imported
    from eaglelocal.backend.parent_watch import end_frozen_with_parent, end_with_parent

    end_with_parent()
    end_frozen_with_parent()
    run(job, sys.stdout.buffer)


def run(job: LearningJob, out: BinaryIO) -> None:
    """Run a session, and write its reports; an error is the last one."""
    from eaglelocal.errors import EagleLocalError
    from eaglelocal.learning.learner import LearningSession, SessionReport
    from eaglelocal.training.device import choose_device

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


if __name__ == "__main__":
    main()
