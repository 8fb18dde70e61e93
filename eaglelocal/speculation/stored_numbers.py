"""Check numbers that were read from a file, which can hold anything. Pure."""

from __future__ import annotations

from typing import Any


def check_number(value: Any, low: float, high: float) -> float:
    """Return the value as a float. Raises ValueError or TypeError unless it is a number from low to high."""
    try:
        number = float(value)
    except OverflowError as error:  # of an integer with hundreds of digits
        raise ValueError("the number is too large") from error
    if not low <= number <= high:  # NaN too
        raise ValueError(f"{value!r} is not between {low:g} and {high:g}")
    return number


MAX_COUNT = 10**9


def check_count(value: Any, least: int, most: int = MAX_COUNT) -> int:
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{value!r} is not a count")
    return value


def clamp(number: float, limits: tuple[float, float]) -> float:
    """Return the number, moved into limits that `check_number` accepts, so that what is stored can be read."""
    return min(max(number, limits[0]), limits[1])
