"""The end of an engine process: its own last message, or an error from exit status and last stderr lines.

The stderr lines include llama.cpp's own messages; lines that name a failure are
preferred to the last ones.
"""

from __future__ import annotations

import re
import signal
import traceback

from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, EngineError
from eaglelocal.processes.child_process import name_signal

_FAILURE_LINE = re.compile(
    r"error|fail|assert|abort|exception|out of memory|unable|cannot|can't|could not|not enough", re.I
)
_TRACE_LINE = re.compile(
    r'^\s|^Traceback |^Fatal Python error|^Current thread 0x|^Thread 0x|^Extension modules: |^ggml_abort|^  File "'
    r"|^libggml|^lib\w+\.so|^\[0x"
)
_FATAL = "Fatal Python error: "  # of faulthandler, then one of:
_FATAL_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
}
# sent to all processes of a group: Ctrl-C, Ctrl-\, a closed terminal, a service manager; only the parent acts on them
GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM})
# sent by people, service managers and the system where memory is short; not by a fault of the process itself
_OUTSIDE_SIGNALS = GROUP_SIGNALS | {signal.SIGKILL}
# llama.cpp aborts when it loses an rpc-server; its transport logs what failed before
_RPC_LINE = re.compile(
    r"Remote RPC server crashed|RPC handshake failed|^(send|recv) failed \(bytes_|Failed to connect to \S+:\d"
)
_NUM_QUOTED = 2
_MAX_QUOTED_CHARS = 300

_HINT_KILLED = (
    "the system kills processes that take too much memory: unless you stopped it, use a smaller model or --ctx, "
    "then try again"
)
LOG_VARIABLE = "EAGLELOCAL_ENGINE_LOG"
_HINT = f"try again; {LOG_VARIABLE}=1 shows the engine's messages"


@dataclass(frozen=True, slots=True)
class Broken:
    """The last message of a process: why it cannot go on. Running requests fail, new ones wait for the next process."""

    error: EagleLocalError


@dataclass(frozen=True, slots=True)
class ExitReason:
    """The end of a child process. `kill_reason` is our reason if we killed it."""

    exit_status: int  # as in subprocess: negative for a signal
    last_lines: tuple[str, ...] = ()  # of stderr, oldest first
    kill_reason: str = ""
    rpc: tuple[str, ...] = ()  # addresses of the rpc-servers that it used

    @property
    def first_status(self) -> int:
        """Return the exit status of the first fault.

        faulthandler lists the frames of threads that still run, and may crash over it: an abort would look like a
        crash.
        """
        if self.exit_status >= 0:
            return self.exit_status
        fatal = (line.removeprefix(_FATAL) for line in self.last_lines if line.startswith(_FATAL))
        return -_FATAL_SIGNALS.get(next(fatal, ""), -self.exit_status)

    @property
    def is_from_outside(self) -> bool:
        """Return whether another process or user ended it, so that its own work is not the cause."""
        return not self.kill_reason and -self.exit_status in _OUTSIDE_SIGNALS

    @property
    def failure_lines(self) -> tuple[str, ...]:
        """Return the stderr lines that explain the end, oldest first; at most two."""
        lines = [line.strip() for line in self.last_lines if line.strip() and not _TRACE_LINE.match(line)]
        failures = [line for line in lines if _FAILURE_LINE.search(line)]
        if self.exit_status < 0:  # killed by a signal: its other output says nothing about the end
            lines = []
        return tuple((failures or lines)[-_NUM_QUOTED:])

    def error(self, when: str = "") -> EngineError:
        """Return the end as an error; `when` says what the process was doing, such as " while it loaded the model"."""
        if self.kill_reason:
            return EngineError(f"the engine process was killed{when}: {self.kill_reason}", hint=_HINT)
        if self.rpc and any(map(_RPC_LINE.search, self.last_lines)):
            lost = f"the connection to an rpc-server was lost{when}: {', '.join(self.rpc)}"
            return EngineError(lost, hint="start it again there; the engine tries again by itself")
        quoted = "; ".join(self.failure_lines)[-_MAX_QUOTED_CHARS:]
        what = _describe_exit(self.first_status, when) + (f": {quoted}" if quoted else "")
        return EngineError(what, hint=_HINT_KILLED if self.exit_status == -9 else _HINT)


def _describe_exit(exit_status: int, when: str) -> str:
    if exit_status == -9:
        return f"the engine process was killed{when} (signal 9)"
    if exit_status == -signal.SIGABRT:
        return f"the engine process aborted{when} (signal {-exit_status})"
    if exit_status < 0:
        return f"the engine process crashed{when} (signal {-exit_status}, {name_signal(-exit_status) or 'unknown'})"
    return f"the engine process ended{when} (exit status {exit_status})"


def make_engine_error(error: BaseException, what: str) -> EagleLocalError:
    """Return `error` itself if it is an EagleLocalError, else an EngineError that asks for a report.

    The traceback of an unexpected error goes to stderr, which the parent keeps.
    """
    if isinstance(error, EagleLocalError):
        return error
    traceback.print_exception(error)
    return EngineError(
        f"{what}: {type(error).__name__}: {error}",
        hint=f"this is a bug: please report it; {LOG_VARIABLE}=1 shows the traceback",
    )
