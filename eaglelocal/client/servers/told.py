"""Values out of what a stranger's server has told: of the right kind, or None."""

from __future__ import annotations

import math
from collections.abc import Mapping


def text(values: Mapping[str, object], name: str) -> str:
    """ "" where it is none."""
    value = values.get(name)
    return value if isinstance(value, str) else ""


def number(values: Mapping[str, object], name: str) -> float | None:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(values: Mapping[str, object], name: str) -> int | None:
    value = number(values, name)
    return None if value is None else int(value)


def numbers(values: Mapping[str, object], name: str) -> tuple[float, ...] | None:
    """None where it is no list of numbers."""
    given = values.get(name)
    if not isinstance(given, list):
        return None
    found = [number({"": value}, "") for value in given]
    return None if any(value is None for value in found) else tuple(value or 0.0 for value in found)


def rows(values: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    """Empty where it is no list; what is no object in it is passed over."""
    given = values.get(name)
    return [value for value in given if isinstance(value, dict)] if isinstance(given, list) else []
