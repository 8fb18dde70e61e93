"""Format a duration for people. Pure."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """Return a duration as `12 s`, `5 min`, `3 h 20 min` or `2 d 4 h`."""
    minutes, days = int(seconds // 60), int(seconds // 86400)
    if minutes < 1:
        return f"{max(0, int(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if not days else f"{days} d {minutes // 60 % 24} h"
