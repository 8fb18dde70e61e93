"""The certain part of a call's arguments, while a model writes them as JSON: no later text can change it.

    {"path": "/tmp/a", "limit": 1      -> {"path": "/tmp/a", "limit":

A part is certain if it is JSON and fits the schema's names and types. Any other text may be careless writing: only the
whole call shows what it means (lenient_values.py), so nothing after it is certain. The last bracket is never certain.
"""

from __future__ import annotations

import re
from typing import Literal

from eaglelocal.text.tool_calls.tool_schemas import Shape

_LITERALS = {"number": r"-?(?:0|[1-9]\d*)\.\d+(?:[eE][+-]?\d+)?|-?(?:0|[1-9]\d*)[eE][+-]?\d+",
             "integer": r"-?(?:0|[1-9]\d*)", "boolean": "true|false", "null": "null"}  # fmt: skip
_LITERAL = re.compile(rf"(?:{'|'.join(f'(?P<{kind}>{text})' for kind, text in _LITERALS.items())})(?=\s*[,\]}}])")
_UNFINISHED_LITERAL = re.compile(r"[\w.+-]+\s*\Z")
_KEY = re.compile(r'\s*"(?P<key>[^"\\]*+)"\s*:\s*(?=\S)')
_UNFINISHED_KEY = re.compile(r'\s*(?:"(?:[^"\\]*\Z|[^"\\]*"\s*(?::\s*)?\Z)|\Z)')
_TEXT = re.compile(r'(?:[^"\\]|\\["\\/bfnrtu])*+')
_TEXT_END = re.compile(r'"(?=\s*[,\]}])')
_UNFINISHED_TEXT = re.compile(r'(?:\\|"\s*)?\Z')
_NEXT = re.compile(r"\s*(?:,|[\]}])")
_SPACE = re.compile(r"\s*(?=\S)")
_KINDS = {'"': "string", "{": "object", "[": "array"}


Expected = Literal["key", "value", "text", "next", "nothing"]  # text: the rest of a string; next: what follows a value


class CertainArguments:
    """A reader of the arguments of one call, in pieces."""

    def __init__(self, shape: Shape) -> None:
        self._pending = ""
        self._shape = shape  # of the next value
        self._open: list[tuple[Shape, set[str] | None]] = []  # objects with their keys so far, and arrays
        self._expected: Expected = "value"

    def push(self, text: str) -> str:
        """Add text, and return the newly certain part, which may include text held back before."""
        if self._expected == "nothing":
            return ""
        self._pending += text
        parts: list[str] = []
        while part := self._take():
            parts.append(part)
            self._pending = self._pending[len(part) :]
        return "".join(parts)

    def _take(self) -> str:
        match self._expected:
            case "key":
                return self._take_key()
            case "value":
                return self._take_value()
            case "text":
                return self._take_text()
            case "next":
                return self._take_next()
        return ""

    def _take_key(self) -> str:
        shape, keys = self._open[-1]
        assert keys is not None
        if not keys and self._pending.lstrip().startswith("}"):
            return self._take_next()
        found = _KEY.match(self._pending)
        if found is None or found["key"] in keys or (shape.properties and found["key"] not in shape.properties):
            return self._give_up(found is None and _UNFINISHED_KEY.match(self._pending) is not None)
        keys.add(found["key"])
        self._shape, self._expected = shape.child(found["key"]), "value"
        return found[0]

    def _take_value(self) -> str:
        space = _SPACE.match(self._pending)
        if space is None:
            return ""
        opening = self._pending[space.end()]
        if opening == "]" and self._open:  # an earlier comma was held back, so it ends an empty array
            return self._take_next()
        literal = _LITERAL.match(self._pending, space.end())
        kind = literal.lastgroup if literal else _KINDS.get(opening)
        if kind is None or not self._shape.admits(kind):
            return self._give_up(_UNFINISHED_LITERAL.match(self._pending, space.end()) is not None)
        if literal is not None:
            self._expected = "next"
            return space[0] + literal[0]
        if kind == "string":
            self._expected = "text"
        elif kind == "object":
            self._open.append((self._shape, set()))
            self._expected = "key"
        else:
            self._open.append((self._shape, None))
            self._shape = self._shape.items
        return space[0] + opening

    def _take_text(self) -> str:
        text = _TEXT.match(self._pending)
        assert text is not None
        if text[0]:
            return text[0]
        if (end := _TEXT_END.match(self._pending)) is None:
            return self._give_up(_UNFINISHED_TEXT.match(self._pending) is not None)
        self._expected = "next"
        return end[0]

    def _take_next(self) -> str:
        found = _NEXT.match(self._pending)
        if found is None:
            return self._give_up(not self._pending.strip())
        shape, keys = self._open[-1]
        if found[0][-1] == ",":
            return self._take_comma(found[0], shape, is_object=keys is not None)
        if len(self._open) == 1 or (found[0][-1] == "}") != (keys is not None):
            return self._give_up(False)
        self._open.pop()
        self._expected = "next"
        return found[0]

    def _take_comma(self, comma: str, shape: Shape, *, is_object: bool) -> str:
        """Return a comma once something follows it, because models also write one at the end."""
        following = self._pending[len(comma) :].lstrip()[:1]
        if not following or following in "]}":
            return self._give_up(not following)
        self._expected = "key" if is_object else "value"
        self._shape = shape.items
        return comma

    def _give_up(self, may_go_on: bool) -> str:
        if not may_go_on:
            self._expected, self._pending = "nothing", ""
        return ""
