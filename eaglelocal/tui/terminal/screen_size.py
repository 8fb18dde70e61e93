"""The smallest terminal that a screen is laid out for, and the message in a smaller one. Pure."""

from __future__ import annotations

from textual.geometry import Size

LEAST = Size(16, 4)  # columns and rows
CLEAR, HOME = "\x1b[0m\x1b[2J", "\x1b[H"


def is_enough(size: Size) -> bool:
    return size.width >= LEAST.width and size.height >= LEAST.height


def at_least(size: Size) -> Size:
    """Return the size that the screen is laid out for, which may be larger than the terminal."""
    return Size(max(size.width, LEAST.width), max(size.height, LEAST.height))


def too_small(size: Size) -> str:
    """Return the output for a terminal of that size: a message that it is too small, cut to fit."""
    text = f"too small: {LEAST.width}x{LEAST.height} is needed"
    width = max(size.width, 1)
    rows = [text[at : at + width] for at in range(0, len(text), width)][: max(size.height, 1)]
    return CLEAR + HOME + "\r\n".join(rows)
