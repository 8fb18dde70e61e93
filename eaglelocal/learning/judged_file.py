"""The texts that were judged so far, on disk: a comparison that is stopped goes on where it was.

A line of JSON for each text: the key of its answer, and its figures, or null if it has none.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

from eaglelocal.core.folders import PRIVATE, make_folder
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import append_own, read_own
from eaglelocal.learning.judgement import JudgedText

SUFFIX = ".judged"


class JudgedFile:
    """The file of one comparison. texts: by the keys of the answers; None: nothing was drafted in it."""

    def __init__(self, folder: Path, old: int, new: int) -> None:
        self._path = folder / f"{old}-{new}{SUFFIX}"
        self.texts = read_judged(self._path)

    def add(self, key: str, text: JudgedText | None) -> None:
        """Add a text. Raises OSError."""
        self.texts[key] = text
        make_folder(self._path.parent, PRIVATE)
        line = json.dumps([key, None if text is None else astuple(text)]) + "\n"
        with append_own(self._path) as file:
            file.write(line.encode())


def read_judged(path: Path) -> dict[str, JudgedText | None]:
    """Return the texts of a file, without damaged lines; none if there is no file."""
    found: dict[str, JudgedText | None] = {}
    try:
        lines = read_own(path).splitlines()
    except OSError:
        return found
    for line in lines:
        with suppress(ValueError, TypeError, OverflowError):  # of a write that was cut off, and the next one
            key, figures = read_pair(line)
            found[key] = None if figures is None else read_text(figures)
    return found


def read_pair(line: bytes) -> tuple[str, object]:
    """Return the key of a text and its figures. Raises ValueError or TypeError."""
    pair = read_json(line)
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError("it is no pair")
    return str(pair[0]), pair[1]


def read_text(figures: object) -> JudgedText:
    """Return a judged text. Raises ValueError or TypeError."""
    if not isinstance(figures, list) or len(figures) != 7:
        raise ValueError("it has other figures")
    owner, kind, num_tokens, *numbers = figures
    lengths_and_shares = [float(number) for number in numbers]
    return JudgedText(str(owner), int(kind), int(num_tokens), *lengths_and_shares)
