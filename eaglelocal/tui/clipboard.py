"""The desktop's clipboard, by the program that fills it. A terminal is asked as well, but many do not pass that on.

Over ssh this machine's clipboard is nobody's, so there the terminal alone is asked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping

WITHIN_S = 2.0
# what must be set for a desktop to be there (nothing: the program is proof enough), and who fills its clipboard
PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
)


def fill(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """As far as that is possible. Is there a program for it?"""
    command = _program(environ)
    if command:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            quiet = subprocess.DEVNULL  # xclip lives on and would keep a pipe open
            subprocess.run(command, input=text.encode(), stdout=quiet, stderr=quiet, timeout=WITHIN_S, check=False)
    return bool(command)


def _program(environ: Mapping[str, str]) -> tuple[str, ...]:
    if "SSH_CONNECTION" in environ:
        return ()
    for variable, (name, *flags) in PROGRAMS:
        if not variable or environ.get(variable):
            path = shutil.which(name, path=environ.get("PATH"))
            if path:
                return (path, *flags)
    return ()
