"""The words of a command that goes on over several lines, as a shell reads them."""

from __future__ import annotations

import shlex


def split_command(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", ""))  # shlex keeps the newline as a word
