"""Sizes in bytes for people: memory in binary units, as cards are sold; files in decimal ones, as hubs count. Pure."""

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


# ---- plurals: numbers of things in words
def count_noun(number: int, noun: str) -> str:
    """Return the number with its noun, which takes an s unless there is one: "1 thread", "2 threads"."""
    return f"{number} {match_noun(number, noun)}"


def match_noun(number: int, noun: str) -> str:
    """Return the noun as it follows the number: "thread" after 1, "threads" after any other."""
    return noun if number == 1 else f"{noun}s"
