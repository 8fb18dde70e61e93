"""Mark the drafted characters of rendered rows, given a mask over the characters of the source.

Rendering drops markup and adds bullets and borders, but keeps letters in order. So each rendered character is
looked for in the source after the last one found, skipping only markup. Pure.

Example: source `**on** time`, mask on `time`; rendered `on time`: o, n are found after the stars, time after ` `.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style

from eaglelocal.tui.transcript.text_rows import Row

MAX_SKIP = 400  # characters of markup in one piece: a link's address is the longest


def mark_drafted(rows: list[Row], source: str, mask: bytes, style: Style) -> list[Row]:
    """Return the rows with `style` added where the mask is set. mask: one byte per source character, 1: drafted."""
    if not any(mask):
        return rows
    cursor = _SourceCursor(source, mask)
    return [[part for segment in row for part in _split(segment, cursor, style)] for row in rows]


class _SourceCursor:
    """A position in the source that follows the rendered characters."""

    def __init__(self, source: str, mask: bytes) -> None:
        self._source, self._mask, self._position = source, mask, 0

    def is_drafted(self, char: str) -> bool:
        if char.isspace():
            return False
        found = self._source.find(char, self._position, self._position + MAX_SKIP)
        if found < 0 or not _is_markup(self._source[self._position : found]):
            return False  # rendering has added it
        self._position = found + 1
        return bool(self._mask[found])


def _is_markup(skipped: str) -> bool:
    """Return True if this source text is not shown: punctuation, blanks, a link's address, the language of a fence."""
    return not any(char.isalnum() for char in skipped) or "](" in skipped or "```" in skipped or "~~~" in skipped


def _split(segment: Segment, cursor: _SourceCursor, style: Style) -> Row:
    parts: list[tuple[str, bool]] = []
    for char in segment.text:
        is_drafted = cursor.is_drafted(char)
        if parts and parts[-1][1] == is_drafted:
            parts[-1] = (parts[-1][0] + char, is_drafted)
        else:
            parts.append((char, is_drafted))
    base = segment.style or Style()
    return [Segment(text, base + style if is_drafted else segment.style) for text, is_drafted in parts]
