"""Text from outside may hold halves of UTF-16 surrogate pairs: JSON spells them, and Python reads file names with them.

Two halves are one character; half a one is none, and cannot be written anywhere. Pure.

>>> join_surrogates("\\ud83e\\udd85 \\ud83e")
'🦅 �'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HALVES = re.compile("[\ud800-\udfff]")
REPLACED = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")  # for str.translate
FIRST_HALF = re.compile("[\ud800-\udbff]$")


def join_surrogates(text: str) -> str:
    """Return the text with halves joined to characters; a half alone becomes U+FFFD."""
    if not HALVES.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def join_in_json(value: object) -> object:
    """Return a JSON value of which every text, names of members too, is as `join_surrogates` has it."""
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
    """The same for a text that comes in parts: a first half waits for the part behind it."""

    _held: str = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        at = len(text) - 1 if FIRST_HALF.search(text) else len(text)
        self._held = text[at:]
        return join_surrogates(text[:at])

    def finish(self) -> str:
        """What waited in vain."""
        held, self._held = self._held, ""
        return join_surrogates(held)
