"""Huge pages for memory from the C library: whether they are used, and the variable that requests them.

llama.cpp allocates weights that it reads, caches and buffers through the C library. Where the system gives huge pages
only on request (`madvise`), glibc requests them since 2.35 if a variable says so; other C libraries cannot.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

TUNABLES, TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
FIRST_GLIBC = (2, 35)


def has_huge_pages(setting: str | None, environment: Mapping[str, str], glibc: tuple[int, ...]) -> bool:
    """Return whether the C library's memory lies in huge pages, by the system's `setting` and the environment."""
    is_requested = f"{TUNABLE}=1" in environment.get(TUNABLES, "")
    return setting == "always" or (setting == "madvise" and is_requested and glibc >= FIRST_GLIBC)


def tunables(environment: Mapping[str, str]) -> str:
    """Return the value of TUNABLES that asks for huge pages, unless the user's value already sets that tunable."""
    value = environment.get(TUNABLES, "")
    return value if TUNABLE in value else ":".join(filter(None, [value, f"{TUNABLE}=1"]))


def glibc_version() -> tuple[int, ...]:
    """Return a version such as (2, 36); empty if the C library is another."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        return tuple(map(int, version.split("."))) if name == "glibc" else ()
    except (AttributeError, ValueError, OSError):  # other systems lack this name
        return ()
