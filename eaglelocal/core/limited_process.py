"""A function of ours in a process of its own, with limits of time and memory: for input that anyone may have written.

`LimitedProcess` is the parent's hold on it. The process (limited_child.py) is started once and serves calls one after
another; one that goes beyond its limits is killed, and the next call starts a fresh one. Requests are pickled; replies
are text, bytes or JSON: what reads anyone's input must not have the parent unpickle anything.
Knows neither what is called nor how its failures are told to people.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import cast

import eaglelocal.errors
from eaglelocal.core import limited_child
from eaglelocal.core.limited_child import HEAD, MAX_ERROR_CHARS, Kind, Message
from eaglelocal.core.process_usage import usage_of
from eaglelocal.errors import EagleLocalError, RequestError

START_CPU_S, START_WALL_S = 60.0, 600.0  # for Python and what the function imports
LOOK_S = 0.1  # between two looks at a process that takes long
READ_BYTES = 1024 * 1024
VARIABLES = (
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "TZ",
    "TZDIR",
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONDONTWRITEBYTECODE",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may take, and opening the function too.

    cpu_s         of the processor: a machine that is busy must fail no call
    memory_bytes  of all calls together, above what the process takes when it has started
    wall_s        on the clock, as the last resort against a process that waits
    max_reply_bytes  of what a call returns
    max_deaths    after so many in a row that had to be ended, calls fail at once for `rest_s`, with the last failure
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
    """`detail` is what the function's MemoryError said, or ""."""

    def __init__(self, max_bytes: int, detail: str = "") -> None:
        super().__init__(f"it takes more than {max_bytes // 2**20} MiB")
        self.detail = detail


class TooLargeReply(LimitedProcessError):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"its result has more than {max_bytes} bytes")


class ProcessDied(LimitedProcessError):
    """`exit_status` is negative for a signal."""

    def __init__(self, exit_status: int, last_words: str = "") -> None:
        super().__init__(f"its process ended with {_status_text(exit_status)}{last_words and f': {last_words}'}")
        self.exit_status = exit_status


class CannotStart(LimitedProcessError):
    pass


class CallRaised(LimitedProcessError):
    """The function raised an error that is none of ours: `kind` is the name of its class. The process lives on."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text or kind)
        self.kind = kind


class LimitedProcess:
    """Calls a function in a process of its own. Use it from any threads: calls wait for each other.

    function  "package.module:opener"; opener(*start) returns the function that serves calls
    """

    def __init__(self, function: str, *start: object, limits: Limits) -> None:
        self._function, self._start, self._limits = function, start, limits
        self._calling = threading.Lock()
        self._child: _Child | None = None
        self._num_deaths = 0  # since a call succeeded
        self._last_death: tuple[float, LimitedProcessError] | None = None
        self._refusal: EagleLocalError | CallRaised | None = None  # it cannot be opened, now or later
        self._is_closed = False

    def start(self) -> None:
        """Start the process and open the function beside other work. What fails is told by the first call."""
        with contextlib.suppress(RuntimeError):  # the system gives no thread
            threading.Thread(target=self._start_quietly, name="limited-process", daemon=True).start()

    def open(self) -> None:
        """Return when the function is open. Raises as `call` does."""
        with self._calling:
            self._opened()

    def call(self, *args: object) -> object:
        """Return what the function returns: text, bytes, None, or what JSON can say.

        Raises the function's own EagleLocalError, CallRaised for its other errors, else a LimitedProcessError; what
        pickle says of arguments that cannot be sent.
        """
        request = packed(args)
        with self._calling:
            reply = self._ask(self._opened(), request)
            self._num_deaths = 0
            return reply

    def close(self) -> None:
        """End the process, also in the middle of a call, and start no other."""
        self._is_closed = True
        if (child := self._child) is not None:
            child.kill()
        with self._calling:
            if self._child is not None:
                self._child.end()

    @property
    def pid(self) -> int | None:
        """Of the process, where one runs."""
        child = self._child
        return child.pid if child is not None and child.is_running else None

    def _start_quietly(self) -> None:
        with contextlib.suppress(LimitedProcessError, EagleLocalError):
            self.open()

    def _opened(self) -> _Child:
        """The process with the function open; a fresh one where the last has ended."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if self._child is not None and self._child.is_running:
            return self._child
        if self._is_closed:
            raise CannotStart("it was closed")
        self._rest()
        child = self._child = _Child(self._function, self._limits)
        if self._is_closed:  # meanwhile
            child.end()
            raise CannotStart("it was closed")
        try:
            self._ask(child, packed(self._start))
        except (EagleLocalError, CallRaised) as error:
            self._refusal = error
            child.end()
            raise
        return child

    def _ask(self, child: _Child, request: bytes) -> object:
        """End a process that gives no reply."""
        try:
            return child.ask(request)
        except (EagleLocalError, CallRaised):
            raise
        except LimitedProcessError as error:
            child.end()
            self._num_deaths += 1
            self._last_death = (time.monotonic(), error)
            raise
        except BaseException:  # of this side, perhaps in the middle of a message
            child.end()
            raise

    def _rest(self) -> None:
        """Raise the last failure again where too many came in a row; after a while one more process is tried."""
        if self._last_death is None or self._num_deaths < self._limits.max_deaths:
            return
        died_at, error = self._last_death
        if time.monotonic() - died_at < self._limits.rest_s:
            raise error.with_traceback(None)


# ---- the parent's side of one process
class _Child:
    """One process, until it ends. Raises CannotStart."""

    def __init__(self, function: str, limits: Limits) -> None:
        self._limits = limits
        numbers = map(str, (limits.cpu_s, limits.memory_bytes, limits.max_reply_bytes))
        self._process = _spawn([sys.executable, "-P", "-m", limited_child.__name__, function, *numbers])
        self._end = weakref.finalize(self, _end, self._process)
        self._requests, self._replies = (cast(FileIO, p) for p in (self._process.stdin, self._process.stdout))
        for pipe in (self._requests, self._replies):
            os.set_blocking(pipe.fileno(), False)
        self._first_bytes: int | None = None  # resident, when it had started

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._end.alive and self._process.poll() is None

    def kill(self) -> None:
        """From any thread; a call in the making then fails."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def end(self) -> None:
        self._end()

    def ask(self, request: bytes) -> object:
        """One message there and one back."""
        if self._first_bytes is None:
            self._receive(_Watch(self.pid, START_CPU_S, START_WALL_S))
            self._first_bytes = usage_of(self.pid).resident_bytes
        watch = _Watch(self.pid, self._limits.cpu_s, self._limits.wall_s)
        watch.limit_memory(self._first_bytes, self._limits.memory_bytes)
        with contextlib.suppress(BrokenPipeError):  # it may have said why
            self._send(HEAD.pack(Kind.REQUEST, len(request)) + request, watch)
        return self._value(*self._receive(watch))

    def _value(self, kind: int, body: bytes) -> object:
        if kind == Kind.NO_MEMORY:
            raise TookTooMuchMemory(self._limits.memory_bytes, body.decode(errors="replace"))
        if kind == Kind.TOO_LARGE:
            raise TooLargeReply(self._limits.max_reply_bytes)
        return decoded(kind, body)

    def _send(self, frame: bytes, watch: _Watch) -> None:
        rest = memoryview(frame)
        while rest:
            watch.wait(self._requests.fileno(), select.POLLOUT)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._requests.fileno(), rest) :]

    def _receive(self, watch: _Watch) -> Message:
        kind, length = HEAD.unpack(self._read(HEAD.size, watch))
        if length > self._limits.max_reply_bytes + MAX_ERROR_CHARS * 32:
            raise TooLargeReply(self._limits.max_reply_bytes)
        return kind, self._read(length, watch)

    def _read(self, length: int, watch: _Watch) -> bytes:
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
        """Why the replies have ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self.kill()
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            return _ran_for(self._limits.cpu_s)
        return ProcessDied(status, self._last_words())

    def _last_words(self) -> str:
        """The last line on stderr, which the process keeps open until it has started."""
        stderr = cast(FileIO, self._process.stderr)
        os.set_blocking(stderr.fileno(), False)
        lines = (stderr.read(READ_BYTES) or b"").decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class _Watch:
    """Waits for a pipe of a process, and looks at what the process takes meanwhile."""

    def __init__(self, pid: int, cpu_s: float, wall_s: float) -> None:
        self._pid, self._cpu_s, self._wall_s = pid, cpu_s, wall_s
        self._memory: tuple[int, int] | None = None  # at the start, and what may be taken beside it
        self._ends_at = time.monotonic() + wall_s
        self._used_before_s: float | None = None  # asked for at the first look: most calls end before

    def limit_memory(self, first_bytes: int, more_bytes: int) -> None:
        if first_bytes:  # 0: the system does not tell
            self._memory = first_bytes, more_bytes

    def wait(self, fd: int, event: int) -> None:
        """Return when the pipe is ready, or broken. Raises TookTooLong, TookTooMuchMemory."""
        poll = select.poll()
        poll.register(fd, event)
        while not poll.poll(LOOK_S * 1000):
            self._look()

    def _look(self) -> None:
        usage = usage_of(self._pid)
        if self._used_before_s is None:
            self._used_before_s = usage.cpu_s
        if usage.cpu_s - self._used_before_s > self._cpu_s:
            raise _ran_for(self._cpu_s)
        if time.monotonic() > self._ends_at:
            raise TookTooLong(f"it gave no answer in {self._wall_s:g} s")
        if self._memory is not None and usage.resident_bytes > sum(self._memory):  # where the system does not see it
            raise TookTooMuchMemory(self._memory[1])


def _ran_for(cpu_s: float) -> TookTooLong:
    return TookTooLong(f"it ran for {cpu_s:g} s")


def _status_text(exit_status: int) -> str:
    if exit_status >= 0:
        return f"status {exit_status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-exit_status).name
    return f"signal {-exit_status}"


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    """In a process group of its own, for Ctrl-C must not end it in the middle of a call."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=_environment(), process_group=0
        )
    except OSError as error:
        raise CannotStart(f"no process can be started for it: {error.strerror or error}") from error


def _environment() -> dict[str, str]:
    """What Python needs, with our own import path: parent and child are one program. Nobody's tokens are among it."""
    root = str(Path(__file__).parents[2])
    ours = [entry for entry in sys.path if entry == root or (entry and entry != os.getcwd())]
    kept = {name: value for name, value in os.environ.items() if name in VARIABLES or name.startswith("LC_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(ours if root in ours else [*ours, root])}


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


# ---- requests and replies
def packed(args: tuple[object, ...]) -> bytes:
    return pickle.dumps(args, pickle.HIGHEST_PROTOCOL)


def decoded(kind: int, body: bytes) -> object:
    """The value, or the error that the function raised."""
    match kind:
        case Kind.NONE:
            return None
        case Kind.TEXT:
            return body.decode("utf-8", "surrogatepass")
        case Kind.BYTES:
            return body
        case Kind.JSON:
            return json.loads(body)
        case Kind.ERROR:
            raise _own_error(*map(str, json.loads(body)))
        case Kind.OTHER_ERROR:
            raise CallRaised(*map(str, json.loads(body)))
    raise CallRaised("ValueError", f"the process sent a message of the kind {kind}")


def _own_error(kind: str, message: str, hint: str, parameter: str, code: str) -> EagleLocalError:
    found = getattr(eaglelocal.errors, kind, None)
    if found is RequestError:
        return RequestError(message, hint=hint, parameter=parameter, code=code)
    is_ours = isinstance(found, type) and issubclass(found, EagleLocalError)
    return cast(type[EagleLocalError], found)(message, hint=hint) if is_ours else EagleLocalError(message, hint=hint)
