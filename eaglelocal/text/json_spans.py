"""JSON inside a stream of text: where a value ends, and the members of an object as they were written.

Knows JSON's borders only; whether a value is well-formed is for others to say.

    JsonReader().push('{"a": "}"} and more') -> ('{"a": "}"}', " and more")
"""

from __future__ import annotations

import json
import re

from eaglelocal.core.json_text import read_json

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_IN_STRING = re.compile(r'["\\\x00-\x1f]|\Z')
_OUTSIDE = re.compile(r'["{}\[\]]|\Z')
_ANY = re.compile(r".", re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}


class JsonReader:
    """Finds the end of an object or an array that begins with the first character given.

    Line breaks and other control characters that a careless model left bare in its strings come out escaped.
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
        """(what belongs to the value; what lies behind its end, or None: it goes on)."""
        written: list[str] = []
        at = 0
        while at < len(text):
            sign = self._next(text, at)
            written += [text[at : sign.start()], self._take(sign[0])]
            at = sign.end()
            if not self.in_string and not self._open:
                return "".join(written), text[at:]
        return "".join(written), None

    def _next(self, text: str, at: int) -> re.Match[str]:
        """What changes where we are, or must not stand there; or the end of the text."""
        found = (_ANY if self._escaped else _IN_STRING if self.in_string else _OUTSIDE).search(text, at)
        assert found is not None
        return found

    def _take(self, sign: str) -> str:
        """What stands for it."""
        was_escaped, self._escaped = self._escaped, False
        if not sign:
            return sign
        if sign < " ":
            return _bare(sign) if was_escaped else f"\\{_bare(sign)}"
        if was_escaped:
            return sign
        if sign == "\\":
            self._escaped = True
        elif sign == '"':
            self.in_string = not self.in_string
        elif sign in _CLOSING:
            self._open.append(_CLOSING[sign])
        elif self._open:
            self._open.pop()
        return sign


def _bare(control: str) -> str:
    """A control character as JSON spells it, without the backslash."""
    return json.dumps(control)[2:-1]


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
