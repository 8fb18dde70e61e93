"""Asking another program, and going on without it when it does not answer in time.

A driver that hangs can make a process unkillable; so a program that is out of time is killed, but never waited for.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence


class NoAnswer(Exception):
    """The program was out of time."""


def ask(command: Sequence[str], *, timeout_s: float) -> bytes | None:
    """What it writes to stdout; None where it cannot be started or fails. Raises NoAnswer."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=True
        )
    except (OSError, ValueError):
        return None
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _leave(process)
        raise NoAnswer(f"{command[0]} gave no answer in {timeout_s:g} s") from None
    return said if process.returncode == 0 else None


def ask_text(command: Sequence[str], *, timeout_s: float) -> str | None:
    """The same as text without white space around it; None also for an empty answer, or for none in time."""
    with contextlib.suppress(NoAnswer):
        said = ask(command, timeout_s=timeout_s)
        return (said or b"").decode(errors="replace").strip() or None
    return None


def _leave(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.1)  # most do end, and leave no zombie then
    if process.stdout:
        process.stdout.close()
