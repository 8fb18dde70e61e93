"""A reader of JSON inside a stream of text: the end of a value, and the members of an object as written.

It finds only where values begin and end; whether they are well-formed is checked elsewhere.

    JsonReader().push('{"a": "}"} and more') -> ('{"a": "}"}', " and more")
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from eaglelocal.core.json_text import read_json

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_IN_STRING = re.compile(r'["\\\x00-\x1f]|\Z')
_OUTSIDE = re.compile(r'["{}\[\]]|\Z')
_ANY = re.compile(r".", re.DOTALL)
ONLY_PYTHON_ESCAPES = "av01234567xUN"  # in Python alone: in JSON they may be text, or escapes, so they stay as they are
_CLOSING = {"{": "}", "[": "]"}


class JsonReader:
    """A finder of the end of an object or array that begins with the first character given.

    Line breaks and other control characters that a model left bare in strings are escaped in the output. A backslash
    that does not begin an escape is escaped too: before a line break, or in a regular expression, it is text.
    """

    __slots__ = ("_escaped", "_open", "in_string")

    def __init__(self) -> None:
        self._open: list[str] = []  # the brackets that will close what is open, outermost first
        self.in_string = self._escaped = False

    @property
    def closing(self) -> str:
        """The brackets that are missing at this point."""
        return "".join(reversed(self._open))

    def push(self, text: str) -> tuple[str, str | None]:
        """Return (text of the value, text after its end); the second is None until the value has ended."""
        output: list[str] = []
        at = 0
        while at < len(text):
            char = self._find_next(text, at)
            output += [text[at : char.start()], self._apply(char[0])]
            at = char.end()
            if not self.in_string and not self._open:
                return "".join(output), text[at:]
        return "".join(output), None

    def _find_next(self, text: str, at: int) -> re.Match[str]:
        """Find the next character that changes the state or must be escaped; or the end of the text."""
        found = (_ANY if self._escaped else _IN_STRING if self.in_string else _OUTSIDE).search(text, at)
        assert found is not None
        return found

    def _apply(self, char: str) -> str:
        """Apply a character to the state, and return it, or its escape."""
        was_escaped, self._escaped = self._escaped, False
        if not char:
            return char
        if char < " ":
            return "\\" * was_escaped + json.dumps(char)[1:-1]
        if was_escaped:
            return _complete_escape(char)
        if char == "\\":
            self._escaped = True
        elif char == '"':
            self.in_string = not self.in_string
        elif char in _CLOSING:
            self._open.append(_CLOSING[char])
        elif self._open:
            self._open.pop()
        return char


def _complete_escape(char: str) -> str:
    """Return what follows a backslash that was output already."""
    if char in '"\\/bfnrtu' or char in ONLY_PYTHON_ESCAPES:
        return char
    return "u0027" if char == "'" else f"\\{char}"


def is_json(text: str, *, is_finite: bool = False) -> bool:
    """Return whether a text is one JSON value; with `is_finite`, 1e999 is none."""
    try:
        read_json(text, is_finite=is_finite)
    except ValueError:
        return False
    return True


def read_members(text: str) -> dict[str, str] | None:
    """Return the members of an object, values as written; None if the text is not a JSON object."""
    return dict(_iter_parts(text)) if text.lstrip().startswith("{") and is_json(text) else None


def read_elements(text: str) -> list[str] | None:
    """Return the elements of an array, as written; None if the text is not a JSON array."""
    return [part for _, part in _iter_parts(text)] if text.lstrip().startswith("[") and is_json(text) else None


def _iter_parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a JSON object or array, each with its key; an array's have none."""
    at = skip_space(text, 0)
    is_object = text[at] == "{"
    at = skip_space(text, at + 1)
    while text[at] not in "]}":
        key = ""
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = skip_space(text, skip_space(text, at) + 1)  # after the colon
        _, end = _DECODER.raw_decode(text, at)
        yield key, text[at:end]
        at = skip_space(text, end)
        at = skip_space(text, at + 1) if text[at] == "," else at


def skip_space(text: str, at: int) -> int:
    """Return the index after the white space at `at`."""
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
