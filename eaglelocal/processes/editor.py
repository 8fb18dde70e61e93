"""The user's own editor: $VISUAL, $EDITOR or vi."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from eaglelocal.errors import ResourceError, UsageError

HINT = "export EDITOR=nano"


def run_editor(file: Path) -> bool:
    """Let the user edit a file; return whether the editor ended well.

    Raises UsageError if there is no such editor, ResourceError if it cannot be run.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        command = shlex.split(editor) or ["vi"]
    except ValueError as problem:
        raise UsageError(f"EDITOR is {editor!r}, which is not a command: {problem}", hint=HINT) from None
    try:
        return subprocess.run([*command, str(file)], check=False).returncode == 0
    except FileNotFoundError as problem:
        raise UsageError(f"editor not found: {command[0]!r}", hint=HINT) from problem
    except OSError as problem:
        raise ResourceError(f"cannot run {command[0]!r}: {problem.strerror}", hint=HINT) from problem
