"""Edit a text in the user's own editor: $VISUAL, $EDITOR or vi."""

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
    """Return the edited text, or None if the editor failed. `suspend` releases the terminal meanwhile.

    Raises UsageError if there is no such editor, ResourceError if it cannot be run or the disk is full.
    """
    command = _command(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        return _edited(text, command, suspend)
    except FileNotFoundError as problem:
        raise UsageError(f"there is no editor {command[0]!r}", hint="EDITOR names another") from problem
    except OSError as problem:
        raise ResourceError(f"cannot run {command[0]!r}: {problem.strerror}", hint="EDITOR names another") from problem


def _command(editor: str) -> list[str]:
    try:
        return shlex.split(editor) or ["vi"]
    except ValueError as problem:
        raise UsageError(f"EDITOR is {editor!r}, which is no command: {problem}", hint="EDITOR=nano") from None


def _edited(text: str, command: list[str], suspend: Suspend) -> str | None:
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
