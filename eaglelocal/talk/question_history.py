"""What was asked before, for the up key of the screen: a JSON text a line on disk, for its owner alone.

Line mode keeps its own file, whose format belongs to readline. A disk that cannot be written is no failure.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from eaglelocal.core.folders import PRIVATE, make_folder
from eaglelocal.core.json_text import read_json
from eaglelocal.core.surrogates import join_surrogates
from eaglelocal.core.whole_file import write_whole

MAX_ENTRIES = 1000
MAX_FILE_BYTES = 8 * 1024 * 1024


class QuestionHistory:
    """A walk through old questions; what was being typed waits at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = _read(path)
        self._at = len(self._entries)
        self._typed = ""

    def older(self, shown: str) -> str | None:
        """The question before the one shown; None at the beginning."""
        if self._at == 0:
            return None
        if self._at == len(self._entries):
            self._typed = shown
        self._at -= 1
        return self._entries[self._at]

    def newer(self) -> str | None:
        """The question behind the one shown, last what was being typed; None at the end."""
        if self._at == len(self._entries):
            return None
        self._at += 1
        return self._typed if self._at == len(self._entries) else self._entries[self._at]

    def __getitem__(self, place: int) -> str:
        return self._entries[place]

    def find(self, words: str, *, before: int | None, but: str) -> int | None:
        """The place of the newest question with these words, in capitals or not, before a place; never of this text."""
        wanted = words.casefold()
        places = reversed(range(len(self._entries))[:before])
        return next((at for at in places if self._entries[at] != but and wanted in self._entries[at].casefold()), None)

    def add(self, question: str) -> None:
        """Remember a question that was sent; the walk begins at the end again."""
        if not self._entries or self._entries[-1] != question:
            self._entries.append(question)
            self._append(question)
        self._at, self._typed = len(self._entries), ""

    def _append(self, question: str) -> None:
        with contextlib.suppress(OSError):
            make_folder(self._path.parent, PRIVATE)
            if len(self._entries) > 2 * MAX_ENTRIES:
                del self._entries[:-MAX_ENTRIES]
                write_whole(self._path, _lines(self._entries))
            else:
                handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(_lines([question]))


def _lines(questions: list[str]) -> str:
    return "".join(json.dumps(question) + "\n" for question in questions)


def _read(path: Path) -> list[str]:
    """The newest questions, to which a file that has grown too long is cut; lines that are none are passed over."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        lines, is_whole = _newest_lines(path)
        for line in lines:
            with contextlib.suppress(ValueError):
                if isinstance(question := read_json(line), str):
                    found.append(join_surrogates(question))
        del found[:-MAX_ENTRIES]
        if found and (not is_whole or len(lines) > 2 * MAX_ENTRIES):
            write_whole(path, _lines(found))
    return found


def _newest_lines(path: Path) -> tuple[list[str], bool]:
    """The lines at the end of a file; are they all of it?"""
    with path.open("rb") as file:
        begin = max(file.seek(0, os.SEEK_END) - MAX_FILE_BYTES, 0)
        file.seek(begin)
        lines = file.read(MAX_FILE_BYTES).decode("utf-8", errors="replace").splitlines()
    return lines[1:] if begin else lines, not begin  # the first one is most often cut
