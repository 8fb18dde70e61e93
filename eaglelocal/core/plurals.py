"""Numbers of things in words."""

from __future__ import annotations


def count_noun(number: int, noun: str) -> str:
    """Return the number with its noun, which takes an s unless there is one: "1 thread", "2 threads"."""
    return f"{number} {match_noun(number, noun)}"


def match_noun(number: int, noun: str) -> str:
    """Return the noun as it follows the number: "thread" after 1, "threads" after any other."""
    return noun if number == 1 else f"{noun}s"
