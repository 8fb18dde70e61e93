"""Reading the JSON of a request's body, which anyone may have written, as everybody else would read it.

Python's reader takes NaN and Infinity, which are no JSON, and halves of surrogate pairs, which are no characters: the
former are refused by the name of their place, the latter become U+FFFD. Raises ValueError as `json.loads` does.
"""

from __future__ import annotations

import json
import math
import re

from eaglelocal.core.surrogates import join_in_json, join_surrogates
from eaglelocal.server.errors import Problem

# a half as JSON spells it, and as UTF-8 of itself, which Python's reader lets pass
_HALVES = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


class _NotFiniteError(Exception):
    """One of the three words that Python takes for a number."""


def read_body(body: bytes) -> object:
    """Raises Problem for NaN and the like, ValueError for what is no JSON otherwise."""
    try:
        value: object = json.loads(body, parse_constant=_refuse)
    except _NotFiniteError as error:
        place = ".".join(place_of_infinity(json.loads(body)) or ())
        what = f"{place or 'the body'}: {error} is no number in JSON"
        raise Problem(400, what, parameter=place or None, code="invalid_json") from None
    return join_in_json(value) if _HALVES.search(body) or not _is_utf8(body) else value


def _refuse(name: str) -> object:
    raise _NotFiniteError(name)


def _is_utf8(body: bytes) -> bool:
    """Also told of UTF-16 and UTF-32, in which the signs looked for are written otherwise."""
    return json.detect_encoding(body).startswith("utf-8")


def place_of_infinity(value: object) -> list[str] | None:
    """The keys to the first number that is none; None where there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        if (found := place_of_infinity(one)) is not None:
            return [join_surrogates(str(key)), *found]
    return None
