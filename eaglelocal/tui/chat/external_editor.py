"""The user's own editor for a question: $VISUAL, $EDITOR or vi."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from eaglelocal.errors import ResourceError, UsageError

Suspend = Callable[[], AbstractContextManager[None]]


def edit_text(text: str, suspend: Suspend) -> str | None:
    """Return the edited text, or None if the editor failed. `suspend` lends the terminal to the editor.

    Raises UsageError if there is no such editor, ResourceError if it cannot be run or the disk is full.
    """
    command = _split_command(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        return _run_editor(text, command, suspend)
    except FileNotFoundError as problem:
        raise UsageError(f"editor not found: {command[0]!r}", hint="export EDITOR=nano") from problem
    except OSError as problem:
        raise ResourceError(f"cannot run {command[0]!r}: {problem.strerror}", hint="export EDITOR=nano") from problem


def _split_command(editor: str) -> list[str]:
    try:
        return shlex.split(editor) or ["vi"]
    except ValueError as problem:
        what = f"EDITOR is {editor!r}, which is not a command: {problem}"
        raise UsageError(what, hint="export EDITOR=nano") from None


def _run_editor(text: str, command: list[str], suspend: Suspend) -> str | None:
    handle, name = tempfile.mkstemp(prefix="question-", suffix=".md")  # with mode 0600
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        with suspend():
            done = subprocess.run([*command, name], check=False)
        return path.read_text(encoding="utf-8", errors="replace") if done.returncode == 0 else None
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
