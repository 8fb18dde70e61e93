"""Lines of text with roles, and functions to combine them; the content of panels, independent of widgets.

Pure. A role is the meaning of a text (good, bad, quiet ...); a theme decides how it looks. Without colors roles are
invisible, so no information may depend on them. A selected row is a line that begins with SELECTED.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from eaglelocal.core.terminal_text import clean_line

ELLIPSIS = "..."
Role = Literal["text", "strong", "quiet", "good", "bad", "warn", "accent", "track", "selected"]


class _Span(NamedTuple):
    text: str
    role: Role


class StyledSpan(_Span):
    """A text with a role. Whatever the text contains, it cannot control the terminal or leave its line."""

    __slots__ = ()

    def __new__(cls, text: str, role: Role = "text") -> StyledSpan:
        return super().__new__(cls, clean_line(text), role)


Line = tuple[StyledSpan, ...]
EMPTY_LINE: Line = ()
SELECTED = StyledSpan("", "selected")


def make_line(*parts: str | StyledSpan | tuple[str, Role]) -> Line:
    """Return a line of these texts and spans, in order."""
    return tuple(StyledSpan(part) if isinstance(part, str) else StyledSpan(*part) for part in parts if part)


def cell_width(spans: Line) -> int:
    """Return the width of a line in cells."""
    return sum(cell_len(span.text) for span in spans)


def fit_line(spans: Line, width: int) -> Line:
    """Return the line, cut or filled up with spaces to exactly `width` cells."""
    made: list[StyledSpan] = []
    left = width
    for span in spans:
        size = cell_len(span.text)
        if size > left:
            made.append(StyledSpan(set_cell_size(span.text, left), span.role))
            return tuple(made)
        made.append(span)
        left -= size
    return (*made, StyledSpan(" " * left)) if left else tuple(made)


def fit_lines(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    """Return at most `height` lines of `width` cells."""
    return [fit_line(line, width) for line in lines[: max(height, 0)]]


def cut_line(spans: Line, width: int) -> Line:
    """Return the line in exactly `width` cells; an ellipsis marks that it was cut."""
    if cell_width(spans) <= width:
        return fit_line(spans, width)
    return fit_line((*fit_line(spans, max(width - len(ELLIPSIS), 0)), StyledSpan(ELLIPSIS, "quiet")), width)


def join_columns(left: Sequence[Line], right: Sequence[Line], *, at: int) -> list[Line]:
    """Return two blocks side by side; the right one begins at column `at`."""
    num_lines = max(len(left), len(right))
    return [
        (*fit_line(left[i] if i < len(left) else EMPTY_LINE, at), *(right[i] if i < len(right) else EMPTY_LINE))
        for i in range(num_lines)
    ]


def plain_text(spans: Line) -> str:
    return "".join(span.text for span in spans).rstrip()
