"""The end of an engine process: what it says itself, or what exit status and last words mean to people.

Pure functions on plain data. The last words are what the process wrote to stderr, llama.cpp's own
messages among them; the lines that name a failure are worth more than the ones that came last.
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
    """The process's own last message: it cannot go on. What it was asked fails, what is asked now must wait."""

    error: EagleLocalError


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended. `ended_for` says why, where we ended it."""

    exit_status: int  # as subprocess gives it: negative is a signal
    last_lines: tuple[str, ...] = ()  # of stderr, oldest first
    ended_for: str = ""

    @property
    def is_from_outside(self) -> bool:
        """Was it asked to end, which no request does? SIGKILL may be for the memory that a request took."""
        return not self.ended_for and -self.exit_status in REQUESTS_TO_END

    @property
    def telling_lines(self) -> tuple[str, ...]:
        """The lines that say why, oldest first."""
        spoken = [line.strip() for line in self.last_lines if line.strip() and not _TRACE.match(line)]
        telling = [line for line in spoken if _TELLING.search(line)]
        by_itself = (
            self.exit_status >= 0
        )  # what a signal strikes had no last words: chatter from its start explains nothing
        return tuple((telling or (spoken if by_itself else []))[-_NUM_QUOTED:])

    def error(self, when: str = "") -> EngineError:
        """`when` says what it was doing, such as " while it loaded the model"."""
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
