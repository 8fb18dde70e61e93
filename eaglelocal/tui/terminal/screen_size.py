"""The smallest terminal that a screen is laid out for, and the message in a smaller one. Pure."""

from __future__ import annotations

from textual.geometry import Size

MIN_SIZE = Size(16, 4)  # columns and rows
CLEAR, HOME = "\x1b[0m\x1b[2J", "\x1b[H"


def is_large_enough(size: Size) -> bool:
    return size.width >= MIN_SIZE.width and size.height >= MIN_SIZE.height


def enlarge_to_minimum(size: Size) -> Size:
    """Return the size that the screen is laid out for, which may be larger than the terminal."""
    return Size(max(size.width, MIN_SIZE.width), max(size.height, MIN_SIZE.height))


def format_too_small(size: Size) -> str:
    """Return the output for a terminal of that size: a message that it is too small, cut to fit."""
    text = f"too small: {MIN_SIZE.width}x{MIN_SIZE.height} is needed"
    width = max(size.width, 1)
    rows = [text[at : at + width] for at in range(0, len(text), width)][: max(size.height, 1)]
    return CLEAR + HOME + "\r\n".join(rows)
