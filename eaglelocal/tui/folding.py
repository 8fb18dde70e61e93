"""Long pastes, folded to a mark in the text that is typed: `[pasted 312 lines]`, until the whole is wanted.

Pure. A mark is one thing: what would cut into it takes all of it, and what would be written into it comes behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

MAX_LINES, MAX_CHARS = 8, 1000  # that are shown as they are


class Folding:
    """The pastes of a session, for a mark that was deleted may be brought back."""

    def __init__(self) -> None:
        self._pastes: dict[str, str] = {}  # by mark

    def folded(self, text: str) -> str:
        """What stands for it: a mark, or a short text itself."""
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
        """The text with what its marks stand for."""
        parts, at = [], 0
        for begin, end in self._spans(text):
            parts += [text[at:begin], self._pastes[text[begin:end]]]
            at = end
        return "".join([*parts, text[at:]])

    def again(self, text: str) -> str:
        """A whole text, with what was folded before folded once more."""
        for mark, paste in sorted(self._pastes.items(), key=lambda each: -len(each[1])):
            text = text.replace(paste, mark)
        return text

    def around(self, text: str, begin: int, end: int) -> tuple[int, int]:
        """The part of the text that changes where this part is to: with all of each mark."""
        for first, last in self._spans(text):
            if begin == end and first < begin < last:
                return last, last
            if first < end and begin < last:
                begin, end = min(begin, first), max(end, last)
        return begin, end

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where marks stand, in order."""
        at = 0
        while found := [(place, mark) for mark in self._pastes if (place := text.find(mark, at)) >= 0]:
            begin, mark = min(found)
            at = begin + len(mark)
            yield begin, at
