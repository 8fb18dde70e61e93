"""The end of an engine process: its own last message, or an error made of exit status and last stderr lines.

Pure functions on plain data. The stderr lines include llama.cpp's own messages; lines that name a failure are
preferred to the ones that came last.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from eaglelocal.errors import EagleLocalError, EngineError

_TELLING = re.compile(r"error|fail|assert|abort|exception|out of memory|unable|cannot|can't|could not|not enough", re.I)
_TRACE = re.compile(
    r'^\s|^Traceback |^Fatal Python error|^Current thread 0x|^Thread 0x|^Extension modules: |^ggml_abort|^  File "'
    r"|^libggml|^lib\w+\.so|^\[0x"
)
REQUESTS_TO_END = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})  # sent by a person or a service manager
_NUM_QUOTED = 2
_MAX_QUOTED_CHARS = 300

_HINT_KILLED = (
    "the system kills what takes too much memory: use a smaller model or --ctx if nobody stopped it; then ask again"
)
_HINT = "ask again; EAGLELOCAL_ENGINE_LOG=1 shows the engine's own messages"


@dataclass(frozen=True, slots=True)
class Broken:
    """The process's own last message: it cannot go on. Requests in flight fail, new ones wait for the next process."""

    error: EagleLocalError


@dataclass(frozen=True, slots=True)
class ExitReason:
    """The end of a child process. `ended_for` is our reason if we killed it."""

    exit_status: int  # as in subprocess: negative for a signal
    last_lines: tuple[str, ...] = ()  # of stderr, oldest first
    ended_for: str = ""

    @property
    def is_from_outside(self) -> bool:
        """True if a person or service ended it. SIGKILL does not count: it may be for memory that a request took."""
        return not self.ended_for and -self.exit_status in REQUESTS_TO_END

    @property
    def telling_lines(self) -> tuple[str, ...]:
        """The stderr lines that explain the end, oldest first; at most two."""
        spoken = [line.strip() for line in self.last_lines if line.strip() and not _TRACE.match(line)]
        telling = [line for line in spoken if _TELLING.search(line)]
        by_itself = (
            self.exit_status >= 0
        )  # a process killed by a signal could not explain itself: older output says nothing about it
        return tuple((telling or (spoken if by_itself else []))[-_NUM_QUOTED:])

    def error(self, when: str = "") -> EngineError:
        """Return the end as an error; `when` says what the process was doing, such as " while it loaded the model"."""
        if self.ended_for:
            return EngineError(f"the engine process was ended{when}: {self.ended_for}", hint=_HINT)
        quoted = "; ".join(self.telling_lines)[-_MAX_QUOTED_CHARS:]
        what = f"{_how(self.exit_status, when)}: {quoted}" if quoted else _how(self.exit_status, when)
        return EngineError(what, hint=_HINT_KILLED if self._was_killed else _HINT)

    @property
    def _was_killed(self) -> bool:
        return self.exit_status == -9


def _how(exit_status: int, when: str) -> str:
    if exit_status == -9:
        return f"the engine process was killed{when} (signal 9)"
    if exit_status == -signal.SIGABRT:
        return f"the engine process aborted{when} (signal {-exit_status})"
    if -exit_status in REQUESTS_TO_END:
        return f"the engine process was ended from outside{when} (signal {-exit_status}, {_signal_name(-exit_status)})"
    if exit_status < 0:
        return f"the engine process crashed{when} (signal {-exit_status}, {_signal_name(-exit_status)})"
    return f"the engine process ended{when} (exit status {exit_status})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
