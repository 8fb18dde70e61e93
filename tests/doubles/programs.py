"""Programs that tests start: interruptible, with a time limit, and ended with the test.

`nohup` and a shell's `&` leave SIGINT and SIGHUP ignored, and every child inherits that, so a program that a test
interrupts would run for ever. Within `interruptible` all programs start with the default handlers.
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

from .timeouts import PATIENCE_S

LIMIT_S = 600.0  # of any program
INHERITED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT)


@contextmanager
def interruptible() -> Iterator[None]:
    """Replace ignored signals by an empty handler, which has the same effect here but is not inherited by children."""
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
    """The programs of a test, each in a session of its own. A context manager that ends them and their children."""

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
        """Start a program with pipes; options are those of subprocess.Popen. stdin is empty by default."""
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
    """End the program when the block is left, in any way; subprocess.Popen's own block waits for ever."""
    try:
        yield program
    finally:
        if program.poll() is None:
            program.kill()
        program.wait(PATIENCE_S)


def output_of(
    program: subprocess.Popen[bytes], stdin: bytes | None = None, *, patience_s: float = PATIENCE_S
) -> tuple[int, bytes, bytes]:
    """Wait for the end and return exit code, stdout and stderr. Kills the program and raises if it takes too long."""
    try:
        stdout, stderr = program.communicate(stdin, timeout=patience_s)
    except subprocess.TimeoutExpired:
        end_group(program)
        raise
    return program.returncode, stdout, stderr


def end_group(program: subprocess.Popen[bytes]) -> None:
    """Kill the program at once, with all that it started."""
    _kill_group(program.pid)
    program.wait(PATIENCE_S)
    for pipe in (program.stdin, program.stdout, program.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _kill_group(number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)
