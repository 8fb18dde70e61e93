"""Serialize values that were parsed from a request's JSON."""

from __future__ import annotations

import json

from eaglelocal.core.json_text import MAX_DEPTH, NestedTooDeep, is_nested_deeper
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.json_body import find_infinity


def to_json(value: object, place: str) -> str:
    """Return the JSON text. Raises Problem (400) for deep nesting, infinity or a lone surrogate."""
    if is_nested_deeper(value, MAX_DEPTH):
        raise Problem(400, f"{place} is {NestedTooDeep(MAX_DEPTH)}", parameter=place)
    if (found := find_infinity(value)) is not None:
        at = ".".join([place, *found])
        raise Problem(400, f"{at}: the number is not finite", parameter=at)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError as error:
        raise Problem(400, f"{place}: a lone surrogate cannot be encoded", parameter=place) from error
    return text
