"""Numbers of things in words."""

from __future__ import annotations


def count_noun(number: int, noun: str) -> str:
    """Return the number with its noun, which takes an s unless there is one: "1 thread", "2 threads"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
