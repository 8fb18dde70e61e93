"""Memory in huge pages: who gets it on this system, and how the C library is told to ask for it.

llama.cpp asks the C library for weights that it reads, for caches and for buffers. Where the system gives huge pages
only to who asks (`madvise`), glibc does since 2.35, told by a variable of its own; others know no such thing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

TUNABLES, TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
FIRST_GLIBC = (2, 35)


def has_huge_pages(setting: str | None, environment: Mapping[str, str], glibc: tuple[int, ...]) -> bool:
    """Does memory of the C library lie in huge pages, by the system's `setting` and what the library was told?"""
    is_told = f"{TUNABLE}=1" in environment.get(TUNABLES, "")
    return setting == "always" or (setting == "madvise" and is_told and glibc >= FIRST_GLIBC)


def tunables(environment: Mapping[str, str]) -> str:
    """What the C library is told: huge pages, unless something else was said of them."""
    said = environment.get(TUNABLES, "")
    return said if TUNABLE in said else ":".join(filter(None, [said, f"{TUNABLE}=1"]))


def glibc_version() -> tuple[int, ...]:
    """Such as (2, 36); empty where the C library is another."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        return tuple(map(int, version.split("."))) if name == "glibc" else ()
    except (AttributeError, ValueError, OSError):  # no such question elsewhere
        return ()
