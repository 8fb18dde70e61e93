"""Format bars, and graphs over the last seconds with the axes that say what height and width mean. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.styled_lines import EMPTY, Line, Role, StyledSpan, fit_line, make_line

MIN_TIMED_ROWS, MAX_TIMED_ROWS = 3, 8  # of a graph of shares with its title and its axis
AXIS_CELLS = 7  # right of the graph: the highest value and zero
MIN_ROWS_WITH_SPAN = 2  # with fewer, the axis of time has no row of its own


def format_bar(share: float, width: int, glyphs: Glyphs, role: Role) -> Line:
    """Return a bar of `width` cells: the share in its role, and the rest so that one sees what it is a share of."""
    filled, rest = glyphs.draw_bar(share, width)
    return make_line(StyledSpan(filled, role), StyledSpan(rest, "track"))


def format_graph(
    values: Sequence[float | None], width: int, height: int, glyphs: Glyphs, *, top: float, unit: str = ""
) -> list[Line]:
    """Return `height` lines: a graph of one value a second, `top` and 0 at its right, and below it the span of time.

    A graph of one row has its span at the right too. With a `top` of zero nothing has happened yet.
    """
    highest = f"{top:.0f}{unit}" if top > 0 else ""
    if height < MIN_ROWS_WITH_SPAN:
        scale = f" 0-{highest}," if highest else ""
        cells = max(width - len(scale) - len(" 999 s"), 1)
        (row,) = glyphs.draw_graph(values, cells, 1, top=top)
        return [fit_line(make_line((row, "accent"), (f"{scale} {cells} s", "quiet")), width)]
    cells = max(width - AXIS_CELLS, 1)
    rows = glyphs.draw_graph(values, cells, height - 1, top=top)
    labels = [f" {highest}", *[""] * (height - 2)]
    if height > MIN_ROWS_WITH_SPAN:
        labels[-1] = " 0"
    begin, end = f"{cells} s ago ", " now"
    axis = f"{begin}{glyphs.rule * max(cells - len(begin) - len(end), 0)}{end}"
    drawn = [make_line((row, "accent"), (label, "quiet")) for row, label in zip(rows, labels, strict=True)]
    return [fit_line(line, width) for line in (*drawn, make_line((axis[:cells], "quiet")))]


def format_timed_graph(
    title: str, shares: Sequence[float | None], width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """Return a graph of shares over the last seconds with its title, at most `height` lines.

    Nothing without room for it, or if no share is known.
    """
    if height < MIN_TIMED_ROWS or all(share is None for share in shares):
        return []
    gap = [EMPTY] if height > MIN_TIMED_ROWS else []
    rows = min(height - len(gap), MAX_TIMED_ROWS)
    values = [None if share is None else 100 * share for share in shares]
    graph = format_graph(values, width, rows - 1, glyphs, top=100.0, unit=" %")
    return [*gap, make_line((title, "quiet")), *graph]
