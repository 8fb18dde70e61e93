"""Formatting of durations, ages and paths for people; sizes are in core/byte_sizes.py. Pure."""

from __future__ import annotations

from pathlib import Path

from eaglelocal import locations


def duration_text(seconds: float) -> str:
    """Format seconds: `8 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def age_text(seconds: float) -> str:
    """Format an age in seconds with few characters: `now`, `12 min`, `5 h`, `3 d`, `7 mo`."""
    minutes = int(seconds // 60)
    if minutes < 1:
        return "now"
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h"
    days = hours // 24
    return f"{days} d" if days < 100 else f"{days // 30} mo"


def path_text(path: Path) -> str:
    """Return the path with `~` for the home folder."""
    home = locations.find_home()
    return f"~/{path.relative_to(home)}" if home and path.is_relative_to(home) else str(path)
