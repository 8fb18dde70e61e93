"""JSON of what came as JSON."""

from __future__ import annotations

import json

from eaglelocal.core.json_text import MAX_DEPTH, NestedTooDeep, is_deeper
from eaglelocal.server.errors import Problem


def as_json(value: object, place: str) -> str:
    """Too deep, not a number, half a character: the caller's mistakes, told as such. Raises Problem."""
    if is_deeper(value, MAX_DEPTH):
        raise Problem(400, f"{place} is {NestedTooDeep(MAX_DEPTH)}", parameter=place)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError as error:  # UnicodeEncodeError is a ValueError
        raise Problem(400, f"{place} is not JSON that can be used: {type(error).__name__}", parameter=place) from None
    return text
