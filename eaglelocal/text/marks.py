"""Markers in the text of an answer, wherever its pieces are cut: what lies between them is text.

A marker is spelled in the text, or it is a control token, which has no text. A control token travels through the
text as one lone surrogate, which no decoded text contains; so the two cannot be confused, and none is ever shown.
Holds back the longest end of the text that could begin a marker, no more. Does not know what markers mean.

    markers ("<a>",):  push("x<a") -> ["x"]    push(">y") -> [Mark("<a>", "<a>"), "y"]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_SURROGATE = 0xDC00
SURE_CHARS = 4  # of a marker: `<` and `</t` may be code, which somebody lets go on from there


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker, and the text that it came as: empty for a control token."""

    name: str
    shown: str = ""


Item = str | Mark


def control_char(index: int) -> str:
    """What stands in the text for the control token that is the marker with this index."""
    return chr(FIRST_SURROGATE + index)


class MarkReader:
    """One answer's text, taken apart at its markers.

    markers  of which none is contained in another, and none begins inside another
    spelled  may they be spelled too? Else only control tokens count
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
        """What was held back and turned out to be no marker; of one that was cut off, nothing."""
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
