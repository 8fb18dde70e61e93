"""Correction of a mistyped word to a known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most similar to `word`, or None if none is similar.

    A unique prefix counts as similar: closest_word("/st", ["/stats", "/spec"]) is "/stats".
    """
    words = list(known)
    begins = [candidate for candidate in words if len(word) > 1 and candidate.startswith(word)]
    if len(begins) == 1:
        return begins[0]
    alike = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return alike[0] if alike else None
