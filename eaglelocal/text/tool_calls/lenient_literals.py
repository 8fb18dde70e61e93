"""Words and escapes as models write them: True or true, 007, a backslash without an escape.

The types that the schema admits decide how a word is read.
"""

from __future__ import annotations

import ast
import json
import re
from enum import Enum

from eaglelocal.core.json_text import read_json
from eaglelocal.text.tool_calls.json_spans import ONLY_PYTHON_ESCAPES, is_json
from eaglelocal.text.tool_calls.tool_schemas import Shape, name_type

_NUMBER = re.compile(r"(?P<sign>[+-]?)(?=\.?\d)0*+(?P<whole>\d*)(?P<part>\.\d*)?(?P<exponent>[eE][+-]?\d+)?")
_PYTHON_NUMBER = re.compile(r"[+-]?[\d.][\w.+-]*")
_ESCAPED = re.compile(r"\\(.?)|[\"\n\r\0]", re.DOTALL)
_JSON_ESCAPES = "\\'\"bfnrtu"
_PYTHON_ESCAPES = _JSON_ESCAPES + ONLY_PYTHON_ESCAPES
_BARE_ESCAPES = {'"': '\\"', "\n": "\\n", "\r": "\\r", "\0": "\\x00"}
_STRINGS = re.compile(
    r"([\"'`])(?:\\.|(?!\1)[^\\])*+\1|[“”](?:\\.|[^\\“”])*+[“”]|[‘’](?:\\.|[^\\‘’])*+[‘’]|\\.", re.DOTALL
)
_OTHER_OPERATORS = re.compile(r"\|\||&&|\?\?|\.+")  # of other languages than Python


class Style(Enum):
    """The notation that a text resembles. It decides what a backslash means, and which words are literals."""

    JSON = "json"
    PYTHON = "python"
    GEMMA = "gemma"  # without escapes


class UnreadableCall(ValueError):
    """An error for a call without a single reading. The message does not contain the call's content."""


def dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def unescape(text: str, quotes: str, style: Style) -> str:
    """Return a text without its escapes, including escaped quotes.

    A backslash that does not begin an escape is text, also before a bare line break.
    """
    escapes = _JSON_ESCAPES if style is Style.JSON else _PYTHON_ESCAPES

    def rewrite(match: re.Match[str]) -> str:
        if match[0][0] != "\\":
            return _BARE_ESCAPES[match[0]]
        escaped = match[1]
        if escaped and escaped in escapes:
            return match[0]
        if escaped == "/" and style is Style.JSON:
            return escaped
        if style is Style.JSON and escaped and escaped in _PYTHON_ESCAPES:
            raise UnreadableCall("a backslash may be an escape, or text")
        return escaped if escaped and escaped in quotes else "\\\\" + _BARE_ESCAPES.get(escaped, escaped)

    if "\\" not in text:
        return text
    try:
        return str(ast.literal_eval(f'"{_ESCAPED.sub(rewrite, text)}"'))
    except (ValueError, SyntaxError):
        raise UnreadableCall("a string has a broken escape") from None


def is_code(text: str) -> bool:
    """Return whether a text is an expression with strings in it: 'a' + 'b', "%s" % "x", 'it''s'."""
    code = _STRINGS.sub(lambda found: found[0] if found[0][0] == "\\" else '"" ', text)
    code = _OTHER_OPERATORS.sub(" or ", code)
    try:
        ast.parse(f"(\n{code}\n)", mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def read_word(word: str, shape: Shape, style: Style) -> str | None:
    """Return the JSON of a literal; None for a word that may be a string. Raises UnreadableCall if it may be either."""
    types = shape.types
    lower, is_text, is_open = word.lower(), "string" in types, not types
    if lower in ("none", "null"):
        if word == "null" or (word == "None" and style is Style.PYTHON) or not (is_text or is_open):
            return "null"
        if "null" in types:
            return "null"
        raise UnreadableCall("a word may be a literal or a string")
    if is_json(word, is_finite=True):
        return None if shape.is_text_for(find_kind(word)) else word
    if types == {"string"}:
        return None
    if lower in ("true", "false"):
        if shape.is_text_for("boolean"):
            return None
        if (style is Style.PYTHON and word in ("True", "False")) or not (is_text or is_open):
            return lower
        raise UnreadableCall("a word may be a literal or a string")
    number = _read_number(word, style, may_pad=not (is_text or is_open))
    if number is None and _NUMBER.fullmatch(word) and not (is_text and types.isdisjoint(("integer", "number"))):
        raise UnreadableCall("a word may be a number or a string")
    return number


def _read_number(word: str, style: Style, *, may_pad: bool) -> str | None:
    """Convert a number in another notation to JSON.

    may_pad  leading zeros are ignored
    """
    found = _NUMBER.fullmatch(word)
    if found and may_pad:
        sign, part = found["sign"].replace("+", ""), found["part"] or ""
        number = f"{sign}{found['whole'] or '0'}{part + '0' if part == '.' else part}{found['exponent'] or ''}"
        return number if is_json(number, is_finite=True) else None
    if style is Style.PYTHON and _PYTHON_NUMBER.fullmatch(word):
        try:
            value = ast.literal_eval(word)
            return json.dumps(value, allow_nan=False) if isinstance(value, int | float) else None
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return None


def find_kind(text: str) -> str:
    """Return the type of a JSON text."""
    return name_type(read_json(text))
