"""Readers of the small text files in which a system states its facts, such as those below /proc and /sys."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """Return a file's text without surrounding white space; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def parse_count(text: str | None) -> int | None:
    """Return the whole number that a text is; None for anything else, a negative number included."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdecimal() else None
