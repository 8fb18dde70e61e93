"""Calls one of our functions in a process with limits of time and memory, for untrusted input.

The process (limited_child.py) is started once and serves calls one after another; one that exceeds its limits is
killed, and the next call starts a new one.
It knows neither the function nor how its failures are shown to users.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import threading
import time
import weakref
from dataclasses import replace
from io import FileIO
from typing import cast

import eaglelocal.errors
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, RequestError
from eaglelocal.processes import limited_child
from eaglelocal.processes.child_process import (
    Usage,
    end_process,
    has_ended_within,
    make_environment,
    name_signal,
    read_usage,
    start_module,
)
from eaglelocal.processes.limited_child import HEAD, MAX_ERROR_CHARS, Message, MessageKind


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of one call, and of opening the function.

    cpu_s            of CPU time, so that a busy machine does not fail calls
    memory_bytes     of all calls together, above what the process takes once it has started
    wall_s           of real time, as the last resort against a process that hangs
    max_reply_bytes  of what a call returns
    max_deaths       after so many killed or dead processes in a row, calls fail for `rest_s` with the last error
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
        how = f"status {exit_status}" if exit_status >= 0 else name_signal(-exit_status) or f"signal {-exit_status}"
        super().__init__(f"its process ended with {how}{last_line and f': {last_line}'}")
        self.exit_status = exit_status


class CannotStart(LimitedProcessError):
    pass


class CallRaised(LimitedProcessError):
    """The function raised another error than an EagleLocalError, of the class named `kind`. The process lives on."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text or kind)
        self.kind = kind


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


# ---- one process: its pipes, and the checks of its time and memory
#
# Requests are pickled; replies are text, bytes or JSON, so that the parent never unpickles output of a process that
# reads untrusted input. The process runs limited_child.py.
START_CPU_S, START_WALL_S = 60.0, 600.0  # for Python and what the function imports
# The system limits addresses, of which some are there before they are used: resident memory may grow a little more.
# This is for systems that set no limit.
SLACK_PART = 8
CHECK_S = 0.1  # between two checks of a process that takes long
READ_BYTES = 1024 * 1024
NOTHING = Usage(0.0, 0)  # where the system does not report it


class ChildProcess:
    """A handle of one process, until it ends. Raises CannotStart."""

    def __init__(self, function: str, limits: ProcessLimits) -> None:
        self._limits = limits
        numbers = map(str, (limits.cpu_s, limits.memory_bytes, limits.max_reply_bytes))
        try:  # in a group of its own, so that Ctrl-C does not end it during a call
            self._process = start_module(
                limited_child.__name__, function, *numbers, variables=make_environment(), has_own_group=True
            )
        except OSError as error:
            raise CannotStart(f"no process can be started for it: {error.strerror or error}") from error
        self.end = weakref.finalize(self, end_process, self._process, 5.0)
        self._requests, self._replies = (cast(FileIO, p) for p in (self._process.stdin, self._process.stdout))
        for pipe in (self._requests, self._replies):
            os.set_blocking(pipe.fileno(), False)
        self._first_bytes: int | None = None  # resident memory just after the start

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self.end.alive and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process, from any thread; a call in progress then fails."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def ask(self, request: bytes) -> object:
        """Send a request and return the value of the reply."""
        limits = self._limits
        if self._first_bytes is None:
            self._receive(UsageWatch(self.pid, replace(limits, cpu_s=START_CPU_S, wall_s=START_WALL_S), 0))
            self._first_bytes = (read_usage(self.pid) or NOTHING).resident_bytes
        watch = UsageWatch(self.pid, limits, self._first_bytes)
        with contextlib.suppress(BrokenPipeError):  # its last reply may give the reason
            self._send(HEAD.pack(MessageKind.REQUEST, len(request)) + request, watch)
        return self._value(*self._receive(watch))

    def _value(self, kind: int, body: bytes) -> object:
        if kind == MessageKind.NO_MEMORY:
            raise TookTooMuchMemory(self._limits.memory_bytes, body.decode(errors="replace"))
        if kind == MessageKind.TOO_LARGE:
            raise TooLargeReply(self._limits.max_reply_bytes)
        return decode(kind, body)

    def _send(self, frame: bytes, watch: UsageWatch) -> None:
        rest = memoryview(frame)
        while rest:
            watch.wait(self._requests.fileno(), select.POLLOUT)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._requests.fileno(), rest) :]

    def _receive(self, watch: UsageWatch) -> Message:
        kind, length = HEAD.unpack(self._read(HEAD.size, watch))
        if length > self._limits.max_reply_bytes + MAX_ERROR_CHARS * 32:
            raise TooLargeReply(self._limits.max_reply_bytes)
        return kind, self._read(length, watch)

    def _read(self, length: int, watch: UsageWatch) -> bytes:
        pieces: list[bytes] = []
        while length:
            watch.wait(self._replies.fileno(), select.POLLIN)
            try:
                pieces.append(os.read(self._replies.fileno(), min(length, READ_BYTES)))
            except BlockingIOError:
                continue
            if not pieces[-1]:
                raise self._death()
            length -= len(pieces[-1])
        return b"".join(pieces)

    def _death(self) -> LimitedProcessError:
        """Reap the process; return the error that explains its end."""
        has_ended_within(self._process, 1.0)
        self.kill()
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            return ran_too_long(self._limits.cpu_s)
        return ProcessDied(status, self._read_last_line())

    def _read_last_line(self) -> str:
        """Return the last line on stderr, which the process closes once it has started."""
        stderr = cast(FileIO, self._process.stderr)
        os.set_blocking(stderr.fileno(), False)
        lines = (stderr.read(READ_BYTES) or b"").decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class UsageWatch:
    """Waits for a pipe of a process, and checks the process's time and memory. first_bytes: at its start; 0: unknown"""

    def __init__(self, pid: int, limits: ProcessLimits, first_bytes: int) -> None:
        self._pid, self._limits, self._first_bytes = pid, limits, first_bytes
        self._ends_at = time.monotonic() + limits.wall_s
        self._used_before_s: float | None = None  # read at the first check: most calls end before

    def wait(self, fd: int, event: int) -> None:
        """Wait until the pipe is ready or broken. Raises TookTooLong, TookTooMuchMemory."""
        poll = select.poll()
        poll.register(fd, event)
        while not poll.poll(CHECK_S * 1000):
            self._check_usage()

    def _check_usage(self) -> None:
        usage, limits = read_usage(self._pid) or NOTHING, self._limits
        if self._used_before_s is None:
            self._used_before_s = usage.cpu_s
        if usage.cpu_s - self._used_before_s > limits.cpu_s:
            raise ran_too_long(limits.cpu_s)
        if time.monotonic() > self._ends_at:
            raise TookTooLong(f"it gave no answer in {limits.wall_s:g} s")
        most_bytes = self._first_bytes + limits.memory_bytes + limits.memory_bytes // SLACK_PART
        if self._first_bytes and usage.resident_bytes > most_bytes:
            raise TookTooMuchMemory(limits.memory_bytes)


def ran_too_long(cpu_s: float) -> TookTooLong:
    return TookTooLong(f"it ran for {cpu_s:g} s")


# ---- requests and replies
def pack(args: tuple[object, ...]) -> bytes:
    return pickle.dumps(args, pickle.HIGHEST_PROTOCOL)


def decode(kind: int, body: bytes) -> object:
    """Return the value of a reply, or raise the error that the function raised."""
    match kind:
        case MessageKind.TEXT:
            return body.decode("utf-8", "surrogatepass")
        case MessageKind.BYTES:
            return body
        case MessageKind.JSON:
            return json.loads(body)
        case MessageKind.ERROR:
            raise make_error(*map(str, json.loads(body)))
        case MessageKind.OTHER_ERROR:
            raise CallRaised(*map(str, json.loads(body)))
    raise CallRaised("ValueError", f"the process sent a message of the kind {kind}")


def make_error(kind: str, message: str, hint: str, parameter: str, code: str) -> EagleLocalError:
    found = getattr(eaglelocal.errors, kind, None)
    if found is RequestError:
        return RequestError(message, hint=hint, parameter=parameter, code=code)
    is_ours = isinstance(found, type) and issubclass(found, EagleLocalError)
    return cast(type[EagleLocalError], found)(message, hint=hint) if is_ours else EagleLocalError(message, hint=hint)
