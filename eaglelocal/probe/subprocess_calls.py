"""Calls of other programs with a timeout, after which the caller continues without them.

A driver that hangs can make a process unkillable, so a program that is out of time is killed but not waited for.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import TypeVar

from eaglelocal.processes.child_process import end_process, make_environment, module_command


class NoAnswer(Exception):
    """A program that did not answer in time."""


def run_module(name: str, *, timeout_s: float) -> CompletedProcess[bytes] | None:
    """Run a module of this package, wherever the package is. Returns None and raises NoAnswer as `run` does."""
    return run(module_command(name), timeout_s=timeout_s)


def run(command: Sequence[str], *, timeout_s: float) -> CompletedProcess[bytes] | None:
    """Run a command to its end. Returns None if it cannot be started; raises NoAnswer after `timeout_s`."""
    pipe, environ = subprocess.PIPE, make_environment(with_settings=True)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environ)
    except (OSError, ValueError):
        return None
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end_process(process, 0.1)  # most end at once, and then leave no zombie
        raise NoAnswer(f"{command[0]} did not answer within {timeout_s:g} s") from None
    return CompletedProcess(command, process.returncode, stdout, stderr)


def ask_text(command: Sequence[str], *, timeout_s: float) -> str | None:
    """Return a command's stdout, stripped; None if it fails, prints nothing or is out of time."""
    try:
        ran = run(command, timeout_s=timeout_s)
    except NoAnswer:
        return None
    return ran.stdout.decode(errors="replace").strip() or None if ran and ran.returncode == 0 else None


# ---- facts: whatever fails, and the small text files in which a system states its facts, such as those below /proc
T = TypeVar("T")


def attempt_or(ask: Callable[[], T], otherwise: T) -> T:
    """Return the answer of a call; `otherwise` where it fails."""
    try:
        return ask()
    except Exception:  # one missing fact must not prevent the others
        return otherwise


def read_text(path: Path) -> str:
    """Return a file's text without surrounding white space; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def parse_count(text: str | None) -> int | None:
    """Return the whole number that a text is; None for anything else, a negative number included."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdecimal() else None
