"""A reader of calls as Gemma 4 writes them: JSON with bare keys, and a token of its own around strings.

call:look_up{limit:3,word:<|"|>owl<|"|>}     -> look_up {"limit": 3, "word": "owl"}
"""

from __future__ import annotations

import json
import re

from eaglelocal.core.json_text import MAX_DEPTH, read_json
from eaglelocal.core.tools import ToolCall

QUOTE = '<|"|>'
_BEGIN = re.compile(r"\s*call:\s*([\w./:-]+)\s*(?=\{)")
_SPACE = re.compile(r"\s*")
_KEY = re.compile(r"[^:{}\[\],]+")
_WORD = re.compile(r"[^,\]}]*")


def read_gemma(text: str) -> list[ToolCall] | None:
    """Return the call, without an id; None if the text is none."""
    begun = _BEGIN.match(text)
    if begun is None:
        return None
    try:
        value, at = _value(text, begun.end(), MAX_DEPTH)
    except (ValueError, IndexError):
        return None
    if text[at:].strip():
        return None
    return [ToolCall("", begun[1], json.dumps(value, ensure_ascii=False, allow_nan=False))]


def _value(text: str, at: int, levels: int) -> tuple[object, int]:
    """Return a value and the index after it. Raises ValueError or IndexError if there is none."""
    at = _behind_space(text, at)
    if levels <= 0:
        raise ValueError("nested too deep")
    if text.startswith(QUOTE, at):
        return _quoted(text, at)
    match text[at]:
        case "{":
            return _object(text, at + 1, levels)
        case "[":
            return _array(text, at + 1, levels)
    word = _WORD.match(text, at)
    assert word is not None
    return _plain(word[0].strip()), word.end()


def _quoted(text: str, at: int) -> tuple[str, int]:
    end = text.index(QUOTE, at + len(QUOTE))
    return text[at + len(QUOTE) : end], end + len(QUOTE)


def _object(text: str, at: int, levels: int) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}
    at = _behind_space(text, at)
    while text[at] != "}":
        key, at = _key(text, at)
        at = _behind_space(text, at)
        if text[at] != ":":
            raise ValueError("a key without a value")
        found[key], at = _value(text, at + 1, levels - 1)
        at = _next(text, at, "}")
    return found, at + 1


def _array(text: str, at: int, levels: int) -> tuple[list[object], int]:
    found: list[object] = []
    at = _behind_space(text, at)
    while text[at] != "]":
        value, at = _value(text, at, levels - 1)
        found.append(value)
        at = _next(text, at, "]")
    return found, at + 1


def _key(text: str, at: int) -> tuple[str, int]:
    if text.startswith(QUOTE, at):
        return _quoted(text, at)
    key = _KEY.match(text, at)
    if key is None:
        raise ValueError("no key")
    return key[0].strip().strip('"'), key.end()


def _next(text: str, at: int, end: str) -> int:
    """Return the index after a comma, or of `end`. Raises ValueError if neither is there."""
    at = _behind_space(text, at)
    if text[at] == ",":
        return _behind_space(text, at + 1)
    if text[at] != end:
        raise ValueError("neither a comma nor an end")
    return at


def _plain(word: str) -> object:
    if not word:
        raise ValueError("no value")
    try:
        return read_json(word, is_finite=True)
    except ValueError:
        return word


def _behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
