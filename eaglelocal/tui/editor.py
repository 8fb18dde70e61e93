"""A text handed to the person's own editor and back."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from eaglelocal.errors import UsageError

Suspend = Callable[[], AbstractContextManager[None]]


def edited(text: str, suspend: Suspend) -> str | None:
    """What the editor left; None when it failed. `suspend` gives the terminal away for the time being.

    Raises UsageError when there is no editor.
    """
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    handle, name = tempfile.mkstemp(prefix="question-", suffix=".md")  # 0600 by itself
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        with suspend():
            done = subprocess.run([*command, name], check=False)
        return path.read_text(encoding="utf-8", errors="replace") if done.returncode == 0 else None
    except FileNotFoundError as problem:
        raise UsageError(f"there is no editor {command[0]!r}", hint="EDITOR names another") from problem
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
