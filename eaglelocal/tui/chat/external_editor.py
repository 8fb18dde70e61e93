"""Edit a question in the user's own editor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from eaglelocal.errors import ResourceError
from eaglelocal.processes.editor import run_editor

Suspend = Callable[[], AbstractContextManager[None]]


def edit_text(text: str, suspend: Suspend) -> str | None:
    """Return the edited text, or None if the editor failed. `suspend` lends the terminal to the editor.

    Raises UsageError if there is no such editor, ResourceError if it cannot be run or the disk is full.
    """
    path: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix="question-", suffix=".md")  # with mode 0600
        path = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        with suspend():
            is_edited = run_editor(path)
        return path.read_text(encoding="utf-8", errors="replace") if is_edited else None
    except OSError as problem:
        raise ResourceError(f"cannot write a temporary file: {problem.strerror}") from problem
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
