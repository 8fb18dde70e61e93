"""Lists of names inside a sentence: at most MAX_NAMES, the most relevant first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_NAMES = 12
MAX_COMPARED = 1000  # comparing names is slow


def listed(names: Iterable[str], *, like: str = "", joint: str = ", ") -> str:
    """Return `Q4_K_M, Q8_0 and 2980 more`, in the order given; if too many, those that resemble `like` first."""
    every = list(dict.fromkeys(names))
    if like and len(every) > MAX_NAMES:
        near = difflib.get_close_matches(like.lower(), [name.lower() for name in every[:MAX_COMPARED]], MAX_NAMES, 0.3)
        ranks = {name: rank for rank, name in enumerate(near)}
        every.sort(key=lambda name: ranks.get(name.lower(), len(ranks)))
    left = len(every) - MAX_NAMES
    shown = joint.join(every[:MAX_NAMES])
    return f"{shown} and {left} more" if left > 0 else shown
