"""Fill the desktop's clipboard by running its clipboard program.

The chat screen asks the terminal as well, but many terminals ignore that. Over ssh this machine's clipboard is not the
user's, so only the terminal is asked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping

TIMEOUT_S = 2.0
# the variable that must be set ("": none) and the command that copies its stdin
PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
)


def copy_text(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Copy `text` to the clipboard, ignoring failures. Return True if there is a program for it."""
    command = _find_program(environ)
    if command:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            quiet = subprocess.DEVNULL  # xclip keeps running and would hold a pipe open
            subprocess.run(command, input=text.encode(), stdout=quiet, stderr=quiet, timeout=TIMEOUT_S, check=False)
    return bool(command)


def _find_program(environ: Mapping[str, str]) -> tuple[str, ...]:
    if "SSH_CONNECTION" in environ:
        return ()
    for variable, (name, *flags) in PROGRAMS:
        if not variable or environ.get(variable):
            path = shutil.which(name, path=environ.get("PATH"))
            if path:
                return (path, *flags)
    return ()
