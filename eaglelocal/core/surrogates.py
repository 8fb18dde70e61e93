"""Joins halves of UTF-16 surrogate pairs in outside text: JSON can spell them, and Python reads file names with them.

Two halves are one character; a single half is none, and cannot be encoded. `make_printable` cleans names for one line
of a list, a comment or a heading. Pure.

>>> join_surrogates("\\ud83e\\udd85 \\ud83e")
'🦅 �'
"""

from __future__ import annotations

import re

from eaglelocal.core.records import dataclass

HALVES = re.compile("[\ud800-\udfff]")
REPLACED = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")  # for str.translate
FIRST_HALF = re.compile("[\ud800-\udbff]$")


def join_surrogates(text: str) -> str:
    """Return the text with pairs of halves joined to characters; a single half becomes U+FFFD."""
    if not HALVES.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def make_printable(text: str) -> str:
    """Return the text as one line: line ends, other control characters and halves of surrogate pairs become U+FFFD.

    >>> make_printable("x\\nevil: yes")
    'x�evil: yes'
    """
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def join_in_json(value: object) -> object:
    """Return a JSON value with `join_surrogates` applied to all its texts, member names too."""
    match value:
        case str():
            return join_surrogates(value)
        case list():
            return [join_in_json(one) for one in value]
        case dict():
            return {join_surrogates(name): join_in_json(one) for name, one in value.items()}
    return value


@dataclass(slots=True)
class SurrogateJoiner:
    """A streaming `join_surrogates`: a first half at the end of a part waits for the next part."""

    _pending: str = ""

    def feed(self, text: str) -> str:
        text = self._pending + text
        at = len(text) - 1 if FIRST_HALF.search(text) else len(text)
        self._pending = text[at:]
        return join_surrogates(text[:at])

    def finish(self) -> str:
        """Return the text that is still waiting for a second half."""
        pending, self._pending = self._pending, ""
        return join_surrogates(pending)
