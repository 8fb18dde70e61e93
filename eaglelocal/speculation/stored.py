"""Numbers that were written by another process, checked one by one: a file can hold anything. Pure."""

from __future__ import annotations

from typing import Any


def within(value: Any, low: float, high: float) -> float:
    """Raises ValueError or TypeError for what is no number between the two."""
    try:
        number = float(value)
    except OverflowError as error:  # of an integer with hundreds of digits
        raise ValueError("a number too large to be one of ours") from error
    if not low <= number <= high:  # NaN too
        raise ValueError(f"{value!r} is not between {low:g} and {high:g}")
    return number


def count(value: Any, least: int) -> int:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r} is no count")
    return value


def bounded(number: float, limits: tuple[float, float]) -> float:
    """What `within` will take, however odd the text was that taught it."""
    return min(max(number, limits[0]), limits[1])
