"""Correction of a mistyped word to a known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

COMMAND_CUTOFF = 0.7  # for commands: with less, `cp` would be taken for `ps`, and `version` for `train`


def closest_word(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """Return the known word most similar to `word`, or None if none is at least as similar as `cutoff` (0 to 1).

    A unique prefix counts as similar: closest_word("/st", ["/stats", "/spec"]) is "/stats".
    """
    words = list(known)
    begins = [candidate for candidate in words if len(word) > 1 and candidate.startswith(word)]
    if len(begins) == 1:
        return begins[0]
    alike = difflib.get_close_matches(word, words, n=1, cutoff=cutoff)
    return alike[0] if alike else None


def has_words(text: str, typed: str) -> bool:
    """Return whether a text contains every typed word, whatever their case."""
    return has_folded_words(text.casefold(), typed)


def has_folded_words(folded: str, typed: str) -> bool:
    """Return what `has_words` does, of a text whose case is folded already because it is long."""
    return all(word in folded for word in typed.casefold().split())
