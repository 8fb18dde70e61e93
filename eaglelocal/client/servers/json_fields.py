"""Read values from the JSON of a foreign server: of the expected type, or None."""

from __future__ import annotations

import math
from collections.abc import Mapping


def text(values: Mapping[str, object], name: str) -> str:
    """Return a string; "" if the value is missing or none."""
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
    """Return a list of numbers; None if the value is anything else."""
    given = values.get(name)
    if not isinstance(given, list):
        return None
    found = [number({"": value}, "") for value in given]
    return None if any(value is None for value in found) else tuple(value or 0.0 for value in found)


def rows(values: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    """Return the objects in a list; empty if the value is no list, other items are skipped."""
    given = values.get(name)
    return [value for value in given if isinstance(value, dict)] if isinstance(given, list) else []
