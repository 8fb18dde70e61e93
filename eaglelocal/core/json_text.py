"""Read JSON from untrusted sources: bounded in depth, and strictly conforming.

All JSON is read here, except by the readers that tests/test_architecture.py names (OWN_READERS): request bodies,
whose errors name the place of a NaN, safetensors headers, ends of values, and what our own processes write. Python's
own reader accepts NaN, and raises RecursionError near the interpreter's limit; what it has read may then be too deep
for code that writes, copies or compares it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

MAX_DEPTH = 64
T = TypeVar("T")


class NestedTooDeep(ValueError):
    """An error for JSON that is nested deeper than the limit."""

    def __init__(self, max_depth: int) -> None:
        super().__init__(f"nested deeper than {max_depth} levels")


def read_json(text: str | bytes, max_depth: int = MAX_DEPTH, *, is_finite: bool = False) -> object:
    """Return the value of a JSON text.

    Raises ValueError for text that is not JSON or nested deeper than `max_depth`; with `is_finite` for 1e999 too.
    """
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
    if is_nested_deeper(value, max_depth):
        raise NestedTooDeep(max_depth)
    return value


def read_object(text: str | bytes, max_depth: int = MAX_DEPTH) -> dict[str, object]:
    """Return a JSON object, read as read_json does. Raises ValueError for any other value, too."""
    value = read_json(text, max_depth)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def read_record(record: type[T], value: object) -> T:
    """Return a dataclass of the values under its fields' names, as `asdict` and JSON leave them.

    A field may have any type that `_read_kind` names, or `T | None` of one.

    Raises ValueError where a field is missing or of another type than it is annotated with.
    """
    kinds: Any = record
    names = [one.name for one in fields(kinds)]
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} is no object")
    if missing := [name for name in names if name not in value]:
        raise ValueError(f"{missing[0]!r} is missing")
    hints = get_type_hints(record)
    return record(**{name: _read_kind(hints[name], value[name]) for name in names})


def _read_kind(kind: Any, value: object) -> object:
    """Return a value of an annotated type: a record, an enum, text, a number, a flag, or a collection of these."""
    outer, inner = get_origin(kind), get_args(kind)
    if NoneType in inner:
        return None if value is None else _read_kind(inner[0], value)
    if outer in (list, tuple) and isinstance(value, list):
        return outer(_read_kind(inner[0], one) for one in value)
    if outer in (dict, Mapping) and isinstance(value, dict):
        return {name: _read_kind(inner[1], one) for name, one in value.items()}
    if is_dataclass(kind):
        return read_record(kind, value)  # type: ignore[arg-type]
    if outer is None and issubclass(kind, Enum):
        return kind(value)
    wanted = (int, float) if kind is float else outer or kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{value!r:.40} is of the wrong type")
    if kind is not float:
        return value
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{value!r:.40} is too large") from None


def is_nested_deeper(value: object, levels: int) -> bool:
    """Return whether lists and dictionaries are nested in more than `levels` levels. Stops at that depth."""
    if levels < 0:
        return True
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not levels:
        return len(inside) > 0
    return any(is_nested_deeper(one, levels - 1) for one in inside if isinstance(one, (dict, list)))


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:40]} is too large")
    return value
