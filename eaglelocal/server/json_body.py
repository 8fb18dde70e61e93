"""Parse the JSON of a request's body strictly, as other JSON parsers would, and serialize parts of it again.

Python's parser accepts NaN and Infinity, which JSON does not have, and lone surrogates, which are no characters. The
former are refused with their place, the latter become U+FFFD. Raises ValueError as `json.loads` does.
"""

from __future__ import annotations

import json
import math
import re

from eaglelocal.core.json_text import MAX_DEPTH, NestedTooDeep, is_nested_deeper
from eaglelocal.core.terminal_text import join_in_json, join_surrogates
from eaglelocal.server.http_errors import Problem

# a surrogate as a JSON escape, and as raw UTF-8, which Python's parser accepts
_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


class _NotFiniteError(Exception):
    """Raised for NaN, Infinity and -Infinity."""


def read_body(body: bytes) -> object:
    """Return the parsed body. Raises Problem for NaN and the like, ValueError for other invalid JSON."""
    try:
        value: object = json.loads(body, parse_constant=_raise_not_finite)
    except _NotFiniteError as error:
        place = ".".join(find_infinity(json.loads(body)) or ())
        what = f"{place or 'the body'}: {error} is not a number in JSON"
        raise Problem(400, what, parameter=place or None, code="invalid_json") from None
    is_utf8 = json.detect_encoding(body).startswith("utf-8")  # else the bytes of _SURROGATES look different
    return join_in_json(value) if _SURROGATES.search(body) or not is_utf8 else value


def _raise_not_finite(name: str) -> object:
    raise _NotFiniteError(name)


def find_infinity(value: object) -> list[str] | None:
    """Return the keys that lead to the first non-finite number; None if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        if (found := find_infinity(one)) is not None:
            return [join_surrogates(str(key)), *found]
    return None


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
