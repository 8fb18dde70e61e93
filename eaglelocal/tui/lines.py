"""Lines of text with roles, and how to put them side by side: what panels are made of before there is a screen.

Pure. A role says what a text means (good, bad, quiet ...); a theme says how that looks, and without colours it
looks like nothing, so no meaning hangs on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from eaglelocal.core.surrogates import REPLACED

Role = Literal["text", "strong", "quiet", "good", "bad", "warn", "accent", "chosen"]

# what others name themselves must not steer the terminal
_HARMLESS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0))} | REPLACED


class Span(NamedTuple):
    text: str
    role: Role = "text"


Line = tuple[Span, ...]
EMPTY: Line = ()


def harmless(text: str) -> str:
    """Without control characters and halves of surrogate pairs."""
    return text.translate(_HARMLESS)


def line(*parts: str | Span | tuple[str, Role]) -> Line:
    """Texts and spans, in order."""
    return tuple(Span(part) if isinstance(part, str) else Span(*part) for part in parts if part)


def width_of(spans: Line) -> int:
    """Cells."""
    return sum(cell_len(span.text) for span in spans)


def fitted(spans: Line, width: int) -> Line:
    """Exactly so many cells: cut, or filled up with spaces."""
    made: list[Span] = []
    left = width
    for span in spans:
        size = cell_len(span.text)
        if size > left:
            made.append(Span(set_cell_size(span.text, left), span.role))
            return tuple(made)
        made.append(span)
        left -= size
    return (*made, Span(" " * left)) if left else tuple(made)


def beside(left: Sequence[Line], right: Sequence[Line], *, at: int) -> list[Line]:
    """Two blocks; the right one begins at that column."""
    num_lines = max(len(left), len(right))
    return [
        (*fitted(left[i] if i < len(left) else EMPTY, at), *(right[i] if i < len(right) else EMPTY))
        for i in range(num_lines)
    ]


def plain(spans: Line) -> str:
    return "".join(span.text for span in spans).rstrip()
