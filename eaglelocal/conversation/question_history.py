"""The history of questions for the up key: one JSON string a line, readable by the owner only.

Errors of reading and writing are ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from eaglelocal.core.atomic_file import PRIVATE, make_folder, write_atomically
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import append_own, open_own
from eaglelocal.core.terminal_text import join_surrogates

MAX_ENTRIES = 1000
MAX_FILE_BYTES = 8 * 1024 * 1024


class QuestionHistory:
    """A cursor over old questions. The unsent text of the input is kept after the last of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = _read(path)
        self._at = len(self._entries)
        self._unsent = ""

    @property
    def is_recalling(self) -> bool:
        """True while an earlier question is shown."""
        return self._at < len(self._entries)

    def older(self, shown: str) -> str | None:
        """Step back and return the previous question; None at the beginning. shown: the text of the input now."""
        if self._at == 0:
            return None
        if self._at == len(self._entries):
            self._unsent = shown
        self._at -= 1
        return self._entries[self._at]

    def newer(self) -> str | None:
        """Step forward and return the next question, last the unsent text; None at the end."""
        if self._at == len(self._entries):
            return None
        self._at += 1
        return self._unsent if self._at == len(self._entries) else self._entries[self._at]

    def __getitem__(self, index: int) -> str:
        return self._entries[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def find(self, text: str, *, before: int | None, skipped: str) -> int | None:
        """Return the index of the newest question before index `before` that contains `text`, ignoring case.

        before None: search all. Questions equal to `skipped` are skipped. None if there is no match.
        """
        folded = text.casefold()
        indexes = reversed(range(len(self._entries))[:before])
        entries = self._entries
        matches = (at for at in indexes if entries[at] != skipped and folded in entries[at].casefold())
        return next(matches, None)

    def add(self, question: str) -> None:
        """Append a question that was sent, unless it repeats the last one, and move the cursor to the end."""
        if not self._entries or self._entries[-1] != question:
            self._entries.append(question)
            self._append(question)
        self._at, self._unsent = len(self._entries), ""

    def _append(self, question: str) -> None:
        with contextlib.suppress(OSError):
            make_folder(self._path.parent, PRIVATE)
            if len(self._entries) > 2 * MAX_ENTRIES:
                del self._entries[:-MAX_ENTRIES]
                write_atomically(self._path, _lines(self._entries))
            else:
                with append_own(self._path) as file:
                    file.write(_lines([question]).encode())


def _lines(questions: list[str]) -> str:
    return "".join(json.dumps(question) + "\n" for question in questions)


def _read(path: Path) -> list[str]:
    """Return the newest questions, skipping invalid lines. A file that is too long is cut to them."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        lines, is_whole = _newest_lines(path)
        for line in lines:
            with contextlib.suppress(ValueError):
                if isinstance(question := read_json(line), str):
                    found.append(join_surrogates(question))
        del found[:-MAX_ENTRIES]
        if found and (not is_whole or len(lines) > 2 * MAX_ENTRIES):
            write_atomically(path, _lines(found))
    return found


def _newest_lines(path: Path) -> tuple[list[str], bool]:
    """Return the lines in the last MAX_FILE_BYTES of a file, and whether they are the whole file."""
    with open_own(path) as file:
        begin = max(file.seek(0, os.SEEK_END) - MAX_FILE_BYTES, 0)
        file.seek(begin)
        lines = file.read(MAX_FILE_BYTES).decode("utf-8", errors="replace").splitlines()
    return lines[1:] if begin else lines, not begin  # the first line is usually cut


# ---- history search: search earlier questions as shells do: the words grow letter by letter, and the newest match is
# found first
#
# Does not know widgets: the prompt turns keys into calls, and shows `shown` and `title`.
class HistorySearch:
    """A search. `typed` is the text from before it, which the prompt restores if the search is cancelled."""

    def __init__(self, history: QuestionHistory, typed: str) -> None:
        self.typed, self.words = typed, ""
        self._history = history
        self._matches: list[int] = []  # indices into the history, each older than the one before it
        self._has_failed = False

    @property
    def shown(self) -> str:
        return self._history[self._matches[-1]] if self._matches else self.typed

    @property
    def title(self) -> str:
        return f"{'no earlier question with' if self._has_failed else 'earlier question with'}: {self.words}"

    def extend(self, text: str) -> None:
        self.words += text
        if not self._matches or self.words.casefold() not in self.shown.casefold():
            self.find_older()
            self._matches = self._matches[-1:]

    def erase(self) -> None:
        self.words, self._matches, self._has_failed = self.words[:-1], [], False
        if self.words:
            self.find_older()

    def find_older(self) -> None:
        """Find the next older match; without one, the shown match stays."""
        before = self._matches[-1] if self._matches else None
        found = self._history.find(self.words, before=before, skipped=self.shown)
        self._has_failed = found is None
        if found is not None:
            self._matches.append(found)

    def show_newer(self) -> None:
        """Go back to the match that was shown before."""
        self._matches, self._has_failed = self._matches[:-1] or self._matches, False
