"""The parent's handle of one engine process: start it, send commands, read messages, stop it and reap it.

Covers one process from start to end; restarts are the supervisor's task. `send` and `stop` are safe from any thread
and never raise because the process is gone; `messages` and `reap` belong to one thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from io import BufferedReader, FileIO
from types import MappingProxyType
from typing import TYPE_CHECKING, TextIO, cast

from eaglelocal.errors import EngineError
from eaglelocal.processes.child_process import (
    TUNABLES,
    has_ended_within,
    make_environment,
    start_module,
    tunables,
)
from eaglelocal.worker.channel import Channel
from eaglelocal.worker.exit_reason import GROUP_SIGNALS, LOG_VARIABLE, ExitReason

if TYPE_CHECKING:  # a process is started before these are imported
    from eaglelocal.core.events import Command
    from eaglelocal.core.plan import Plan

_NUM_STDERR_LINES = 200
_MAX_LINE_BYTES = 4096
_READ_BYTES = 64 * 1024
_STOP_TIMEOUT_S = 2.0  # until a Shutdown takes effect
_STORE_TIMEOUT_S = 10.0  # the same, if conversations are written to disk at the end
_REAP_TIMEOUT_S = 1.0  # for a process to end after its pipe


# llama.cpp would attach a debugger before it aborts, which delays the restart.
NO_DEBUGGER = MappingProxyType({"GGML_NO_BACKTRACE": "1"})
# libgomp's threads spin for milliseconds at each of a step's hundreds of barriers. On a busy machine the thread they
# wait for is not running, and decoding becomes many times slower. A thousand spins cost little on an idle machine and
# keep most of the speed on a busy one (tests/measures/busy.py).
# numpy's threads spin for a tenth of a second after they were started: beside the parent's imports, on each core.
DEFAULTS = MappingProxyType({"GOMP_SPINCOUNT": "1000", "OPENBLAS_NUM_THREADS": "1"})


class EngineChild:
    """A running `eaglelocal.worker.process`; it waits for its plan. Raises OSError when it cannot be started."""

    def __init__(self, builder: str) -> None:
        self._process = _spawn(builder)
        # raw files, because the process was started without buffers
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        stdin, stdout, stderr = (cast(FileIO, pipe) for pipe in pipes)
        self._channel = Channel(BufferedReader(stdout, _READ_BYTES), stdin)
        self.started_at_s = time.monotonic()
        try:
            self._stderr_tail = _StderrTail(stderr)
        except RuntimeError as error:  # no thread can be started
            self._process.kill()
            self._process.wait()
            self._channel.close()
            raise OSError(errno.EAGAIN, str(error)) from error
        self._kill_reason, self._stop_timeout_s = "", _STOP_TIMEOUT_S
        self._rpc: tuple[str, ...] = ()  # addresses of the rpc-servers it uses

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def load(self, plan: Plan) -> None:
        """Send the plan, which must be the first message. Its age counts from here."""
        self.started_at_s = time.monotonic()
        self._rpc = plan.rpc
        if plan.cache_disk:
            self._stop_timeout_s = _STORE_TIMEOUT_S
        self.send(plan)

    def send(self, message: Command | Plan) -> bool:
        """Send a command, first the plan. Return False if the process is gone and never received it."""
        try:
            self._channel.send(message)
        except OSError:
            return False
        return True

    def messages(self) -> Iterator[object]:
        """Yield the messages of the process until its pipe ends."""
        while True:
            try:
                message = self._channel.receive()
            except EngineError as error:
                self.kill(error.message)
                return
            except (EOFError, OSError):
                return
            yield message

    def kill(self, reason: str) -> None:
        """Kill a process that hangs or breaks the protocol; its ExitReason gives `reason`. Safe from any thread."""
        self._kill_reason = reason
        self._process.kill()

    def reap(self) -> ExitReason:
        """Reap the process after `messages` has ended, close its pipes, and return how it ended."""
        if not has_ended_within(self._process, _REAP_TIMEOUT_S):
            self._process.kill()
        exit_status = self._process.wait()
        self._channel.close()
        return ExitReason(exit_status, self._stderr_tail.close(), self._kill_reason, self._rpc)

    def stop(self, *, is_graceful: bool = True) -> None:
        """End the process and wait for that: by Shutdown (if `is_graceful`), then by SIGKILL."""
        from eaglelocal.core.events import Shutdown

        # Send Shutdown from another thread: the pipe of a process that hangs may be full.
        sending = threading.Thread(target=self.send, args=(Shutdown(),), name="engine-shutdown", daemon=True)
        if is_graceful:
            sending.start()
        if not (is_graceful and has_ended_within(self._process, self._stop_timeout_s)):
            self._process.kill()
            self._process.wait()
        if is_graceful:
            sending.join()


class SpareProcess:
    """A process that is started before there is a plan, until one engine takes it: it imports while its parent plans.

    Nothing depends on it: without one, or if it ended too early, the supervisor starts a process as usual.
    Close it: one that was not taken is ended.

    with SpareProcess(builder) as spare:
        client = EngineClient(make_plan(), builder=builder, spare=spare)
    """

    def __init__(self, builder: str) -> None:
        self._builder = builder
        self._lock = threading.Lock()  # an engine may take it from another thread than the one that closes
        self._child: EngineChild | None = None
        try:
            self._child = EngineChild(builder)
        except OSError:
            return  # the supervisor tries again, and reports it

    @property
    def pid(self) -> int | None:
        """Return the process id; None if there is no process, or it was taken."""
        child = self._child
        return child.pid if child else None

    def take(self, builder: str) -> EngineChild | None:
        """Return the process, which the caller then owns; None if there is none for this builder. It can be taken once.

        A process that cannot be used is ended.
        """
        with self._lock:
            child = self._child
            if child is not None and builder == self._builder and child.is_running:
                self._child = None
                return child
        self.close()
        return None

    def close(self) -> None:
        """End the process unless it was taken. Safe from any thread, and more than once."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.stop(is_graceful=False)
            child.reap()

    def __enter__(self) -> SpareProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _StderrTail:
    """The last lines that a process wrote to stderr, read by a thread until the pipe ends."""

    def __init__(self, stream: FileIO) -> None:
        self._stream = BufferedReader(stream)
        self._echo: TextIO | None = sys.stderr if os.environ.get(LOG_VARIABLE) else None
        self._lines: deque[str] = deque(maxlen=_NUM_STDERR_LINES)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="engine-stderr", daemon=True)
        self._thread.start()

    def close(self) -> tuple[str, ...]:
        """Return the lines once the process has ended. Does not wait long: a grandchild may hold the pipe open."""
        self._thread.join(_REAP_TIMEOUT_S)
        with self._lock:
            return tuple(self._lines)

    def _read(self) -> None:
        with self._stream:
            while raw := self._stream.readline(_MAX_LINE_BYTES):
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                with self._lock:
                    self._lines.append(line)
                if self._echo is not None:
                    with contextlib.suppress(OSError, ValueError):
                        self._echo.write(f"{line}\n")


def _spawn(builder: str) -> subprocess.Popen[bytes]:
    # faulthandler: a crash in native code leaves the Python frames on stderr, for the crash report.
    with _block_group_signals():
        return start_module(
            "eaglelocal.worker.process", builder, options=("-X", "faulthandler"), variables=make_engine_environment()
        )


def make_engine_environment() -> dict[str, str]:
    return {**DEFAULTS, **make_environment(with_settings=True), **NO_DEBUGGER, TUNABLES: tunables(os.environ)}


@contextlib.contextmanager
def _block_group_signals() -> Iterator[None]:
    """Block GROUP_SIGNALS while the child is started: it inherits this, so none can end it before it ignores them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
