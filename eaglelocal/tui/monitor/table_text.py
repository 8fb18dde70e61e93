"""Format the table of requests as lines: columns that fit, rows filtered and in order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eaglelocal.client.server_reading import RequestRow
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.panel_text import UNKNOWN, format_count, format_percent
from eaglelocal.tui.styled_lines import Line, StyledSpan, fit_line, sanitize

SortKey = float | str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table; screens of fewer than `min_width` cells leave it out."""

    title: str
    width: int
    sort_key: Callable[[RequestRow], SortKey | None]
    format: Callable[[RequestRow], str]
    min_width: int = 0
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class TableView:
    """The user's sorting and filter of the table."""

    sort: str = ""  # title of a column; "": in the server's order
    is_reversed: bool = False
    filter: str = ""  # rows with this in owner, state, model or id

    def choose_next_sort(self, columns: Sequence[Column]) -> TableView:
        titles = ["", *(column.title for column in columns)]
        index = titles.index(self.sort) if self.sort in titles else 0
        return TableView(titles[(index + 1) % len(titles)], self.is_reversed, self.filter)


def format_figure(value: float | None, digits: int = 1) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def format_seconds(value: float | None) -> str:
    """Return a duration as `0.3 s`, `12 s`, `5 min` or `3 h`."""
    if value is None:
        return UNKNOWN
    if value < 9.95:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 99.5 else f"{value / 60:.0f} min" if value < 5970 else f"{value / 3600:.0f} h"


COLUMNS = (
    Column("key", 12, lambda row: row.owner, lambda row: row.owner or UNKNOWN, is_text=True),
    Column("state", 9, lambda row: row.state, lambda row: row.state or UNKNOWN, is_text=True),
    Column("prompt", 7, lambda row: row.prompt_tokens, lambda row: format_count(row.prompt_tokens)),
    Column("cached", 7, lambda row: row.cached_tokens, lambda row: format_count(row.cached_tokens)),
    Column("answer", 7, lambda row: row.generated_tokens, lambda row: format_count(row.generated_tokens)),
    Column("tok/s", 7, lambda row: row.tok_s, lambda row: format_figure(row.tok_s)),
    Column("drafted", 7, lambda row: row.share, lambda row: format_percent(row.share)),
    Column("accept", 6, lambda row: row.acceptance, lambda row: format_percent(row.acceptance)),
    Column("wait", 6, lambda row: row.wait_s, lambda row: format_seconds(row.wait_s)),
    Column("age", 6, lambda row: row.age_s, lambda row: format_seconds(row.age_s), min_width=84),
    Column("drafting", 8, lambda row: row.drafting, lambda row: row.drafting or UNKNOWN, min_width=96, is_text=True),
    Column("model", 20, lambda row: row.model, lambda row: row.model or UNKNOWN, min_width=120, is_text=True),
    Column("id", 34, lambda row: row.id, lambda row: row.id, min_width=160, is_text=True),
)


def visible_columns(width: int) -> list[Column]:
    return [column for column in COLUMNS if width >= column.min_width]


def arrange_rows(active: Sequence[RequestRow], recent: Sequence[RequestRow], view: TableView) -> list[RequestRow]:
    """Return the rows that match the filter, active ones first; unknown values come last in either direction."""
    return [
        row for rows in (active, recent) for row in _sort([row for row in rows if _matches_filter(row, view)], view)
    ]


def _sort(rows: list[RequestRow], view: TableView) -> list[RequestRow]:
    column = next((column for column in COLUMNS if column.title == view.sort), None)
    if column is None:
        return rows[::-1] if view.is_reversed else rows
    known = [(key, row) for row in rows if (key := column.sort_key(row)) is not None]
    unknown = [row for row in rows if column.sort_key(row) is None]
    known.sort(key=lambda pair: pair[0], reverse=view.is_reversed is column.is_text)  # figures: the largest first
    return [row for _, row in known] + unknown


def _matches_filter(row: RequestRow, view: TableView) -> bool:
    text = view.filter.casefold()
    return not text or any(text in field.casefold() for field in (row.owner, row.state, row.model, row.id))


def format_titles(width: int, view: TableView, glyphs: Glyphs) -> Line:
    """Return the titles of the columns, with an arrow at the sorted one."""
    titles = (_format_title(column, view, glyphs) for column in visible_columns(width))
    return fit_line(tuple(span for title in titles for span in title), width)


def _format_title(column: Column, view: TableView, glyphs: Glyphs) -> Line:
    if column.title != view.sort:
        return (StyledSpan(_format_cell(column.title, column), "quiet"), StyledSpan(" "))
    arrow = glyphs.up if view.is_reversed is column.is_text else glyphs.down
    return (StyledSpan(_format_cell(f"{column.title[: column.width - 1]}{arrow}", column), "strong"), StyledSpan(" "))


def format_row(row: RequestRow, width: int, *, is_selected: bool) -> Line:
    text = " ".join(_format_cell(column.format(row), column) for column in visible_columns(width))
    if is_selected:
        return (StyledSpan("".join(span.text for span in fit_line((StyledSpan(text),), width)), "selected"),)
    role = "text" if row.is_active else "bad" if row.state == "failed" else "quiet"
    return fit_line((StyledSpan(text, role),), width)  # type: ignore[arg-type]


def _format_cell(text: str, column: Column) -> str:
    """Return the text cut to its column, texts aligned left and figures right."""
    (cut,) = fit_line((StyledSpan(sanitize(text)),), column.width)[:1] or (StyledSpan(""),)
    shown = cut.text.rstrip()
    if not column.is_text:
        return shown.rjust(column.width)
    return "".join(span.text for span in fit_line((StyledSpan(shown),), column.width))
