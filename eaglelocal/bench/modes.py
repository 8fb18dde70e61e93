"""Parsers for the modes that a run compares, `auto,pid,2,4`, and its numbers of requests at once, `1,2,4,8`."""

from __future__ import annotations

from eaglelocal.core.plan import MAX_SLOTS
from eaglelocal.core.request import OFF, Spec, parse_spec
from eaglelocal.errors import UsageError


def parse_modes(text: str) -> tuple[Spec, ...]:
    """Parse `auto,2,4` into modes, in that order, each once.

    Raises UsageError if plain decoding is among them: every mode is compared with it anyway.
    """
    modes = tuple(dict.fromkeys(parse_spec(part.strip()) for part in text.split(",")))
    if OFF in modes:
        raise UsageError(
            f"--spec {text} names plain decoding", hint="leave it out: every mode is compared with plain decoding"
        )
    return modes


def parse_levels(text: str) -> tuple[int, ...]:
    """Parse `1,2,4` into numbers of requests at once, each once, in that order. Raises UsageError."""
    try:
        levels = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        levels = (0,)
    if not all(1 <= level <= MAX_SLOTS for level in levels):
        raise UsageError(f"--concurrency must be numbers from 1 to {MAX_SLOTS}, such as 1,2,4,8, not {text!r}")
    return levels
