"""Fill the desktop's clipboard by running its clipboard program, or tmux's buffer inside tmux.

The chat screen asks the terminal as well, but many terminals ignore that, as tmux does unless `set-clipboard` is on.
Over ssh this machine's clipboard is not the user's, so only the terminal and tmux are asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from eaglelocal.conversation.action_context import format_copy_message

TIMEOUT_S = 2.0
TMUX = "TMUX"  # set inside tmux
CLIPBOARD, TMUX_BUFFER = "to the clipboard", "to tmux's buffer: prefix and ] paste it"
# the variable that must be set ("": none) and the command that copies its stdin
PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
    (TMUX, ("tmux", "load-buffer", "-w", "-")),  # -w: also to the clipboard of the terminal around tmux
    (TMUX, ("tmux", "load-buffer", "-")),  # before tmux 3.2
)


def copy_text(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Copy `text` by the first program that succeeds. Return CLIPBOARD or TMUX_BUFFER, or "" if none did."""
    for variable, (name, *flags) in PROGRAMS:
        is_elsewhere = "SSH_CONNECTION" in environ and variable != TMUX
        if is_elsewhere or (variable and not environ.get(variable)):
            continue
        path = shutil.which(name, path=environ.get("PATH"))
        if path and _run([path, *flags], text):
            return TMUX_BUFFER if variable == TMUX else CLIPBOARD
    return ""


def copy_and_describe(text: str) -> str:
    """Copy a text that the terminal was asked to copy already, and return what to tell the user."""
    place = copy_text(text)
    if not place and os.environ.get(TMUX):  # which ignored the request, unless set-clipboard is on
        return "tmux may have kept this from the clipboard: `tmux set -g set-clipboard on` lets it through"
    return format_copy_message(text, "" if place == CLIPBOARD else place)


def _run(command: list[str], text: str) -> bool:
    quiet = subprocess.DEVNULL  # xclip keeps running and would hold a pipe open
    try:
        done = subprocess.run(command, input=text.encode(), stdout=quiet, stderr=quiet, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
