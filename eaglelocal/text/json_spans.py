"""JSON inside a stream of text: where a value ends, and the members of an object as they were written.

Knows JSON's borders only; whether a value is well-formed is the parser's to say.

    JsonEnd().find('{"a": "}"} and more') -> 10
"""

from __future__ import annotations

import json
import re

from eaglelocal.core.json_text import read_json

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


class JsonEnd:
    """Finds the end of an object or an array that begins with the first character given."""

    __slots__ = ("_depth", "_escaped", "in_string")

    def __init__(self) -> None:
        self._depth = 0
        self.in_string = self._escaped = False

    def find(self, text: str) -> int | None:
        """Index behind the value's last character in this piece of text; None: it goes on."""
        for index, char in enumerate(text):
            if self.in_string:
                self._within_string(char)
            elif char == '"':
                self.in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return index + 1
        return None

    def _within_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self.in_string = False


def is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def members(text: str) -> dict[str, str] | None:
    """The members of an object, values as they are spelled; None if it is no JSON object."""
    if not text.lstrip().startswith("{") or not is_json(text):
        return None
    found: dict[str, str] = {}
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, start)
        found[key] = text[start:end]
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return found


def elements(text: str) -> list[str] | None:
    """The elements of an array, as they are spelled; None if it is no JSON array."""
    if not text.lstrip().startswith("[") or not is_json(text):
        return None
    found: list[str] = []
    at = _skip(text, text.index("[") + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        found.append(text[at:end])
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
