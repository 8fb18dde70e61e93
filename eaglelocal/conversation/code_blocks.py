"""Fenced code blocks of a Markdown answer. Pure."""

from __future__ import annotations

import re

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<about>[^`]*)")


def last_code(text: str) -> str:
    """Return the content of the last fenced block, even if its end is missing; "" if there is none."""
    found: list[str] = []
    begun: re.Match[str] | None = None
    for line in text.split("\n"):
        mark = _FENCE.fullmatch(line)
        if begun is None:
            begun, found = mark, [] if mark else found
        elif mark and mark["fence"].startswith(begun["fence"]) and not mark["about"].strip():
            begun = None
        else:
            found.append(line.removeprefix(begun["indent"]))
    return "\n".join(found)
