"""Amounts for people: sizes, durations and numbers of things. Pure.

Memory is given in binary units, as cards are sold; files in decimal ones, as hubs count.
"""

from __future__ import annotations

MIB, GIB = 2**20, 2**30
UNKNOWN = "unknown"
_DISK_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_memory(num_bytes: float | None) -> str:
    """Format an amount of memory: `4.2 GiB`, `512 MiB`; None is unknown."""
    if num_bytes is None:
        return UNKNOWN
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.0f} MiB"


def format_disk(num_bytes: float | None) -> str:
    """Format the size of a file or a disk: `4.68 GB`, `11.9 MB`, `512 B`; None is unknown."""
    if num_bytes is None:
        return UNKNOWN
    for index, (unit_bytes, unit) in enumerate(_DISK_UNITS):
        if num_bytes >= unit_bytes * 0.99995:
            digits = 2 if index < 2 and num_bytes < 10 * unit_bytes else 1
            return f"{num_bytes / unit_bytes:.{digits}f} {unit}"
    return f"{num_bytes:.0f} B"


# ---- durations
def format_duration(seconds: float) -> str:
    """Format seconds: `8 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_age(seconds: float) -> str:
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


def format_uptime(seconds: float) -> str:
    """Format seconds, rounded down: `12 s`, `5 min`, `3 h 20 min`, `2 d 4 h`."""
    minutes, days = int(seconds // 60), int(seconds // 86400)
    if minutes < 1:
        return f"{max(0, int(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if not days else f"{days} d {minutes // 60 % 24} h"


# ---- plurals: numbers of things in words
def count_noun(number: int, noun: str) -> str:
    """Return the number with its noun, which takes an s unless there is one: "1 thread", "2 threads"."""
    return f"{number} {match_noun(number, noun)}"


def match_noun(number: int, noun: str) -> str:
    """Return the noun as it follows the number: "thread" after 1, "threads" after any other."""
    return noun if number == 1 else f"{noun}s"
