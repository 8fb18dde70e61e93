"""A reader that finds markers in the text of an answer, however it is cut into pieces.

A marker is written as text, or it is a control token, which has no text. A control token passes through the
text as one lone surrogate, which no decoded text contains; so the two cannot be confused, and none is ever shown.
It holds back only the longest end of the text that could begin a marker. Parsers know the meaning of markers.

    markers ("<a>",):  push("x<a") -> ["x"]    push(">y") -> [Mark("<a>", "<a>"), "y"]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from eaglelocal.core.records import dataclass

FIRST_SURROGATE = 0xDC00
SURE_CHARS = 4  # a cut answer's end this long is half a marker; a shorter one (`<`, `</t`) may be code


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker, and the text it was written as: empty for a control token."""

    name: str
    text: str = ""


Item = str | Marker


def make_control_char(index: int) -> str:
    """Return the character that represents, in the text, the marker with this index when it is a control token."""
    return chr(FIRST_SURROGATE + index)


class Beginnings:
    """The proper beginnings of some texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._prefixes = {text[:length] for text in texts for length in range(1, len(text))}
        self._longest = max(map(len, self._prefixes), default=0)
        self._last_chars = {prefix[-1] for prefix in self._prefixes}

    def count_at_end(self, text: str) -> int:
        """Return the number of characters at the end of a text that could begin one of the texts."""
        if text[-1:] not in self._last_chars:
            return 0
        longest = min(self._longest, len(text))
        return next((n for n in range(longest, 0, -1) if text[-n:] in self._prefixes), 0)


class MarkerReader:
    """A reader that splits one answer's text at its markers.

    markers  none is contained in another, and none begins inside another
    as_text  True: markers may be text too; else only control tokens count
    """

    def __init__(self, markers: Sequence[str], *, as_text: bool) -> None:
        self._names = {make_control_char(index): name for index, name in enumerate(markers)}
        texts = [*self._names, *(markers if as_text else ())]
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._beginnings = Beginnings(markers if as_text else ())
        self._pending = ""

    @property
    def holds(self) -> bool:
        """True while the end of the text may be the beginning of a marker."""
        return bool(self._pending)

    def push(self, text: str) -> list[Item]:
        text = self._pending + text
        num_pending = self._beginnings.count_at_end(text)
        self._pending = text[len(text) - num_pending :]
        return self._items(text[: len(text) - num_pending])

    def flush(self, *, is_cut: bool = False) -> list[Item]:
        """Return the text held back, which is not a marker; nothing if the answer was cut off inside one."""
        text, self._pending = self._pending, ""
        is_half_marker = is_cut and len(text) >= SURE_CHARS
        return [text] if text and not is_half_marker else []

    def _items(self, text: str) -> list[Item]:
        items: list[Item] = []
        start = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            name = match[0]
            items += [
                text[start : match.start()],
                Marker(self._names.get(name, name), "" if name in self._names else name),
            ]
            start = match.end()
        return [item for item in [*items, text[start:]] if item]
