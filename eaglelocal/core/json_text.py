"""Reading JSON that anyone may have written: bounded in depth, and nothing that is no JSON to others.

Python's own reader takes NaN, and fails by RecursionError where nesting comes near the interpreter's limit.
"""

from __future__ import annotations

import json
import math

MAX_DEPTH = 64


def read_json(text: str, max_depth: int = MAX_DEPTH, *, is_finite: bool = False) -> object:
    """Raises ValueError for what is no JSON, or nested deeper than that; for 1e999 too, if it must be finite."""
    try:
        value: object = json.loads(text, parse_constant=_refuse, parse_float=_finite if is_finite else None)
    except RecursionError:
        raise ValueError(f"nested deeper than {max_depth} levels") from None
    if is_deeper(value, max_depth):
        raise ValueError(f"nested deeper than {max_depth} levels")
    return value


def is_deeper(value: object, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(is_deeper(one, levels - 1) for one in inside)


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number} is too large")
    return value
