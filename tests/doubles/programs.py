"""Programs that tests start: interruptible, waited for with an end, and ended with the test.

`nohup` and a shell's `&` leave SIGINT and SIGHUP ignored, and every child inherits that: who is to be interrupted would
go on for ever. `interruptible` makes all that is started from here on, by whatever means, begin with the defaults.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from .patience import PATIENCE_S

LIMIT_S = 600.0  # of any program
INHERITED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT)


@contextmanager
def interruptible() -> Iterator[None]:
    """What is ignored stays without effect here, but by a handler: that one a child does not inherit."""
    ignored = [number for number in INHERITED if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, _ignore)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Somebody wanted it ignored."""


class Programs:
    """Each program in a session of its own. Use as a context manager: leaving ends them, their children too."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self._limits: list[threading.Timer] = []

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *exception: object) -> None:
        for limit in self._limits:
            limit.cancel()
        for program in self._started:
            end_group(program)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """With pipes, as subprocess.Popen has it. stdin is empty unless told otherwise."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        program = subprocess.Popen(list(command), start_new_session=True, **{**pipes, **options})
        self._started.append(program)
        limit = threading.Timer(LIMIT_S, _kill_group, [program.pid])  # then who reads its pipe comes to an end
        limit.daemon = True
        limit.start()
        self._limits.append(limit)
        return program


@contextmanager
def ending(program: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """It ends with the block, however that is left; subprocess.Popen's own block waits for ever."""
    try:
        yield program
    finally:
        if program.poll() is None:
            program.kill()
        program.wait(PATIENCE_S)


def output_of(
    program: subprocess.Popen[bytes], stdin: bytes | None = None, *, patience_s: float = PATIENCE_S
) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr, when it has ended; it is made to if it does not."""
    try:
        stdout, stderr = program.communicate(stdin, timeout=patience_s)
    except subprocess.TimeoutExpired:
        end_group(program)
        raise
    return program.returncode, stdout, stderr


def end_group(program: subprocess.Popen[bytes]) -> None:
    """At once, with what it started."""
    _kill_group(program.pid)
    program.wait(PATIENCE_S)
    for pipe in (program.stdin, program.stdout, program.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _kill_group(number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)
