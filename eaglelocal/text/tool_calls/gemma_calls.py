"""A reader of calls as Gemma 4 writes them: JSON with bare keys, and a token of its own around strings.

call:look_up{limit:3,word:<|"|>owl<|"|>}     -> look_up {"limit": 3, "word": "owl"}
"""

from __future__ import annotations

import json
import re

from eaglelocal.core.json_text import MAX_DEPTH, read_json
from eaglelocal.core.tools import ToolCall
from eaglelocal.text.tool_calls.json_spans import skip_space

QUOTE = '<|"|>'
_BEGIN = re.compile(r"\s*call:\s*([\w./:-]+)\s*(?=\{)")
_KEY = re.compile(r"[^:{}\[\],]+")
_WORD = re.compile(r"[^,\]}]*")


def read_gemma(text: str) -> list[ToolCall] | None:
    """Return the call, without an id; None if the text is no call."""
    opening = _BEGIN.match(text)
    if opening is None:
        return None
    try:
        value, at = _read_value(text, opening.end(), MAX_DEPTH)
    except (ValueError, IndexError):
        return None
    if text[at:].strip():
        return None
    return [ToolCall("", opening[1], json.dumps(value, ensure_ascii=False, allow_nan=False))]


def _read_value(text: str, at: int, levels: int) -> tuple[object, int]:
    """Return a value and the index after it. Raises ValueError or IndexError if there is none."""
    at = skip_space(text, at)
    if levels <= 0:
        raise ValueError("nested too deep")
    if text.startswith(QUOTE, at):
        return _read_quoted(text, at)
    match text[at]:
        case "{":
            return _read_object(text, at + 1, levels)
        case "[":
            return _read_array(text, at + 1, levels)
    word = _WORD.match(text, at)
    assert word is not None
    return _parse_plain(word[0].strip()), word.end()


def _read_quoted(text: str, at: int) -> tuple[str, int]:
    end = text.index(QUOTE, at + len(QUOTE))
    return text[at + len(QUOTE) : end], end + len(QUOTE)


def _read_object(text: str, at: int, levels: int) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}
    at = skip_space(text, at)
    while text[at] != "}":
        key, at = _read_key(text, at)
        at = skip_space(text, at)
        if text[at] != ":":
            raise ValueError("a key without a value")
        found[key], at = _read_value(text, at + 1, levels - 1)
        at = _skip_comma(text, at, "}")
    return found, at + 1


def _read_array(text: str, at: int, levels: int) -> tuple[list[object], int]:
    found: list[object] = []
    at = skip_space(text, at)
    while text[at] != "]":
        value, at = _read_value(text, at, levels - 1)
        found.append(value)
        at = _skip_comma(text, at, "]")
    return found, at + 1


def _read_key(text: str, at: int) -> tuple[str, int]:
    if text.startswith(QUOTE, at):
        return _read_quoted(text, at)
    key = _KEY.match(text, at)
    if key is None:
        raise ValueError("no key")
    return key[0].strip().strip('"'), key.end()


def _skip_comma(text: str, at: int, end: str) -> int:
    """Return the index after a comma, or of `end`. Raises ValueError if neither is there."""
    at = skip_space(text, at)
    if text[at] == ",":
        return skip_space(text, at + 1)
    if text[at] != end:
        raise ValueError("neither a comma nor an end")
    return at


def _parse_plain(word: str) -> object:
    if not word:
        raise ValueError("no value")
    try:
        return read_json(word, is_finite=True)
    except ValueError:
        return word
