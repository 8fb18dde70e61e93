"""A reader that finds markers in the text of an answer, however it is cut into pieces.

A marker is written as text, or it is a control token, which has no text. A control token passes through the
text as one lone surrogate, which no decoded text contains; so the two cannot be confused, and none is ever shown.
It holds back the longest end of the text that could begin a marker, no more. Parsers know what markers mean.

    markers ("<a>",):  push("x<a") -> ["x"]    push(">y") -> [Mark("<a>", "<a>"), "y"]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_SURROGATE = 0xDC00
SURE_CHARS = 4  # a cut answer's end this long is half a marker; a shorter one (`<`, `</t`) may be code


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker, and the text it was written as: empty for a control token."""

    name: str
    shown: str = ""


Item = str | Mark


def control_char(index: int) -> str:
    """Return the character that represents, in the text, the marker with this index when it is a control token."""
    return chr(FIRST_SURROGATE + index)


class MarkReader:
    """A reader that splits one answer's text at its markers.

    markers  none is contained in another, and none begins inside another
    spelled  True: markers may be text too; else only control tokens count
    """

    def __init__(self, markers: Sequence[str], *, spelled: bool) -> None:
        self._names = {control_char(index): name for index, name in enumerate(markers)}
        texts = [*self._names, *(markers if spelled else ())]
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._begins = {name[:length] for name in markers for length in range(1, len(name))} if spelled else set()
        self._longest = max(map(len, self._begins), default=0)
        self._held = ""

    def push(self, text: str) -> list[Item]:
        text = self._held + text
        held = self._num_held(text)
        self._held = text[len(text) - held :]
        return self._items(text[: len(text) - held])

    def flush(self, *, is_cut: bool = False) -> list[Item]:
        """Return the text held back, which is no marker; nothing if the answer was cut off within one."""
        text, self._held = self._held, ""
        is_half_marker = is_cut and len(text) >= SURE_CHARS
        return [text] if text and not is_half_marker else []

    def _num_held(self, text: str) -> int:
        longest = min(self._longest, len(text))
        return next((n for n in range(longest, 0, -1) if text[-n:] in self._begins), 0)

    def _items(self, text: str) -> list[Item]:
        items: list[Item] = []
        start = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            found = match[0]
            items += [
                text[start : match.start()],
                Mark(self._names.get(found, found), "" if found in self._names else found),
            ]
            start = match.end()
        return [item for item in [*items, text[start:]] if item]
