"""The limits of one call in a process, and the errors of a process that gives no result."""

from __future__ import annotations

import contextlib
import signal

from eaglelocal.core.records import dataclass


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of one call, and of opening the function.

    cpu_s         of CPU time, so that a busy machine does not fail calls
    memory_bytes  of all calls together, above what the process takes once it has started
    wall_s        of real time, as the last resort against a process that hangs
    max_reply_bytes  of what a call returns
    max_deaths    after so many killed or dead processes in a row, calls fail at once for `rest_s`, with the last error
    """

    cpu_s: float
    memory_bytes: int
    wall_s: float = 120.0
    max_reply_bytes: int = 64 * 1024 * 1024
    max_deaths: int = 3
    rest_s: float = 10.0


class LimitedProcessError(Exception):
    """The process gave no result. The text is a clause for people, such as "it ran for 2 s"."""


class TookTooLong(LimitedProcessError):
    pass


class TookTooMuchMemory(LimitedProcessError):
    """The process exceeded its memory limit. `detail` is the text of the function's MemoryError, or ""."""

    def __init__(self, max_bytes: int, detail: str = "") -> None:
        super().__init__(f"it takes more than {max_bytes // 2**20} MiB")
        self.detail = detail


class TooLargeReply(LimitedProcessError):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"its result has more than {max_bytes} bytes")


class ProcessDied(LimitedProcessError):
    """The process ended by itself. `exit_status` is negative for a signal."""

    def __init__(self, exit_status: int, last_line: str = "") -> None:
        super().__init__(f"its process ended with {format_status(exit_status)}{last_line and f': {last_line}'}")
        self.exit_status = exit_status


class CannotStart(LimitedProcessError):
    pass


class CallRaised(LimitedProcessError):
    """The function raised another error than an EagleLocalError, of the class named `kind`. The process lives on."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text or kind)
        self.kind = kind


def format_status(exit_status: int) -> str:
    if exit_status >= 0:
        return f"status {exit_status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-exit_status).name
    return f"signal {-exit_status}"
