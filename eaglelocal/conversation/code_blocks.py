"""Find fenced code blocks in an answer. Pure."""

from __future__ import annotations

import re

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<about>[^`]*)")


def find_last_code(text: str) -> str:
    """Return the content of the last fenced block, even if its end is missing; "" if there is none."""
    lines: list[str] = []
    opening: re.Match[str] | None = None
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if opening is None:
            opening, lines = fence, [] if fence else lines
        elif fence and fence["fence"].startswith(opening["fence"]) and not fence["about"].strip():
            opening = None
        else:
            lines.append(line.removeprefix(opening["indent"]))
    return "\n".join(lines)
