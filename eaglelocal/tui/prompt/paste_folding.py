"""Fold long pastes in the prompt to marks such as `[pasted 312 lines]`, and unfold them again.

Pure. A mark is edited as a whole: an edit that cuts into it covers all of it, an insertion inside it goes behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

MAX_LINES, MAX_CHARS = 8, 1000  # a longer paste is folded


class Folding:
    """The pastes of a session by their marks, all kept because a deleted mark may be restored."""

    def __init__(self) -> None:
        self._pastes: dict[str, str] = {}  # by mark

    def folded(self, text: str) -> str:
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

    def whole(self, text: str) -> str:
        """Return the text with its marks replaced by the pastes."""
        parts, at = [], 0
        for begin, end in self._spans(text):
            parts += [text[at:begin], self._pastes[text[begin:end]]]
            at = end
        return "".join([*parts, text[at:]])

    def again(self, text: str) -> str:
        """Return a whole text with known pastes folded again."""
        for mark, paste in sorted(self._pastes.items(), key=lambda each: -len(each[1])):
            text = text.replace(paste, mark)
        return text

    def around(self, text: str, begin: int, end: int) -> tuple[int, int]:
        """Return the range `begin:end` widened to whole marks; an empty range inside a mark moves behind it."""
        for first, last in self._spans(text):
            if begin == end and first < begin < last:
                return last, last
            if first < end and begin < last:
                begin, end = min(begin, first), max(end, last)
        return begin, end

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the marks, in order."""
        at = 0
        while found := [(place, mark) for mark in self._pastes if (place := text.find(mark, at)) >= 0]:
            begin, mark = min(found)
            at = begin + len(mark)
            yield begin, at
