"""Asking another program, and going on without it when it does not answer in time.

A driver that hangs can make a process unkillable; so a program that is out of time is killed, but never waited for.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class NoAnswer(Exception):
    """The program was out of time."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended; a negative code is the signal that killed it."""

    code: int
    stdout: bytes
    stderr: bytes


def run_module(name: str, *, timeout_s: float) -> Ran | None:
    """A module of this very package, however the package was found. None and NoAnswer as of `run`."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = (sys.executable, "-P", "-m", name)
    return run(command, timeout_s=timeout_s, environ={**os.environ, "PYTHONPATH": path})


def run(command: Sequence[str], *, timeout_s: float, environ: Mapping[str, str] | None = None) -> Ran | None:
    """None where it cannot be started. Raises NoAnswer."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environ)
    except (OSError, ValueError):
        return None
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _leave(process)
        raise NoAnswer(f"{command[0]} gave no answer in {timeout_s:g} s") from None
    return Ran(process.returncode, stdout, stderr)


def ask_text(command: Sequence[str], *, timeout_s: float) -> str | None:
    """What it writes to stdout, without white space around it; None where it fails, says nothing or is out of time."""
    try:
        ran = run(command, timeout_s=timeout_s)
    except NoAnswer:
        return None
    return ran.stdout.decode(errors="replace").strip() or None if ran and ran.code == 0 else None


def _leave(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.1)  # most do end, and leave no zombie then
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
