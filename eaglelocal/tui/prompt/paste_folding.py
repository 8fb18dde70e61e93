"""Fold long pastes in the prompt to marks such as `[pasted 312 lines]`, and unfold them again.

Pure. A mark is edited as a whole: an edit that cuts into it covers all of it, an insertion inside it goes after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

MAX_LINES, MAX_CHARS = 8, 1000  # a longer paste is folded


class PasteFolding:
    """The pastes of a session by their marks, all kept because a deleted mark may be restored."""

    def __init__(self) -> None:
        self._pastes: dict[str, str] = {}  # by mark

    def fold(self, text: str) -> str:
        """Return the mark for a pasted text, or the text itself if it is short."""
        num_lines = text.rstrip("\n").count("\n") + 1
        if num_lines <= MAX_LINES and len(text) <= MAX_CHARS:
            return text
        size = f"{num_lines} lines" if num_lines > 1 else f"{len(text)} characters"
        numbered = (f"[pasted {size}, {number}]" for number in itertools.count(2))
        marks = itertools.chain([f"[pasted {size}]"], numbered)
        mark = next(mark for mark in marks if self._pastes.get(mark, text) == text)
        self._pastes[mark] = text
        return mark

    def unfold(self, text: str) -> str:
        """Return the text with its marks replaced by the pastes."""
        parts, done = [], 0
        for begin, end in self._spans(text):
            parts += [text[done:begin], self._pastes[text[begin:end]]]
            done = end
        return "".join([*parts, text[done:]])

    def fold_known(self, text: str) -> str:
        """Return a whole text with known pastes folded again."""
        for mark, paste in sorted(self._pastes.items(), key=lambda each: -len(each[1])):
            text = text.replace(paste, mark)
        return text

    def widen(self, text: str, begin: int, end: int) -> tuple[int, int]:
        """Return the range `begin:end` widened to whole marks; an empty range inside a mark moves to its end."""
        for first, last in self._spans(text):
            if begin == end and first < begin < last:
                return last, last
            if first < end and begin < last:
                begin, end = min(begin, first), max(end, last)
        return begin, end

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        done = 0
        while found := [(begin, mark) for mark in self._pastes if (begin := text.find(mark, done)) >= 0]:
            begin, mark = min(found)
            done = begin + len(mark)
            yield begin, done
