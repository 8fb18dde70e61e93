"""Reading JSON that anyone may have written: bounded in depth, and nothing that is no JSON to others.

Whatever is JSON is read here, but for what tests/test_architecture.py names (OWN_READERS): bodies of requests, whose
NaN is told by its place, headers of safetensors, ends of values, and what our own processes write. Python's own takes
NaN, and fails by RecursionError where nesting comes near the interpreter's limit; what it has read may then be too deep
for whoever writes, copies or compares it.
"""

from __future__ import annotations

import json
import math

MAX_DEPTH = 64


class NestedTooDeep(ValueError):
    """It may be JSON, but nothing here goes down so far."""

    def __init__(self, max_depth: int) -> None:
        super().__init__(f"nested deeper than {max_depth} levels")


def read_json(text: str | bytes, max_depth: int = MAX_DEPTH, *, is_finite: bool = False) -> object:
    """Raises ValueError for what is no JSON, or nested deeper than that; for 1e999 too, if it must be finite."""
    try:
        value: object = json.loads(text, parse_constant=_refuse, parse_float=_finite if is_finite else None)
    except RecursionError:
        raise NestedTooDeep(max_depth) from None
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except ValueError as error:
        raise ValueError("a number has too many digits" if "digits" in str(error) else str(error)) from None
    if is_deeper(value, max_depth):
        raise NestedTooDeep(max_depth)
    return value


def read_object(text: str | bytes, max_depth: int = MAX_DEPTH) -> dict[str, object]:
    """As read_json. Raises ValueError for what is no object, too."""
    value = read_json(text, max_depth)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def is_deeper(value: object, levels: int) -> bool:
    """Do lists and dictionaries lie in each other more than so many times? Goes down no further than that."""
    if levels < 0:
        return True
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not levels:
        return len(inside) > 0
    return any(is_deeper(one, levels - 1) for one in inside if isinstance(one, (dict, list)))


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:40]} is too large")
    return value
