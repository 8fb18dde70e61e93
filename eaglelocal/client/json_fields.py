"""Read values from the JSON of a server: of the expected type, or unknown."""

from __future__ import annotations

from collections.abc import Mapping

MAX_NUMBER = 1e18  # JSON as Python reads it allows NaN, Infinity and integers of any size


def mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Mapping[str, object]]:
    """Return the objects in a list; empty if the value is no list, other items are skipped."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text(values: Mapping[str, object], name: str) -> str:
    """Return a string; "" if the value is missing or none."""
    value = values.get(name)
    return value if isinstance(value, str) else ""


def to_number(value: object) -> float | None:
    """Return a value as float; None if it is no number, or too large."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
    return float(value) if is_number else None  # type: ignore[arg-type]


def to_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def number(values: Mapping[str, object], name: str) -> float | None:
    return to_number(values.get(name))


def whole(values: Mapping[str, object], name: str) -> int | None:
    return to_int(number(values, name))


def amount(values: Mapping[str, object], name: str) -> float:
    """Return a number; 0.0 if it is unknown."""
    return number(values, name) or 0.0


def count(values: Mapping[str, object], name: str) -> int:
    """Return a whole number; 0 if it is unknown."""
    return int(amount(values, name))


def numbers(values: Mapping[str, object], name: str) -> tuple[float, ...] | None:
    """Return a list of numbers; None if the value is anything else."""
    given = values.get(name)
    found = list(map(to_number, given)) if isinstance(given, list) else [None]
    return None if None in found else tuple(value or 0.0 for value in found)
