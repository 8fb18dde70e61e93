"""Format the table of requests as lines: columns that fit, rows filtered and in order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from eaglelocal.client.server_reading import RequestRow
from eaglelocal.core.records import dataclass
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.panel_text import UNKNOWN, format_count, format_percent
from eaglelocal.tui.styled_lines import Line, Role, StyledSpan, fit_line

SortKey = float | str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table; tables of fewer than `min_width` cells leave it out.

    A column with a `max_width` takes the cells that are left, up to that width.
    """

    title: str
    width: int
    sort_key: Callable[[RequestRow], SortKey | None]
    format: Callable[[RequestRow], str]
    min_width: int = 0
    is_text: bool = False
    max_width: int = 0  # 0: it does not grow


@dataclass(frozen=True, slots=True)
class TableView:
    """The user's sorting and filter of the table."""

    sort: str = ""  # title of a column; "": in the server's order
    is_reversed: bool = False
    filter: str = ""  # rows with this in owner, state, end, model or id

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


def describe_row_state(row: RequestRow) -> str:
    """Describe the current work of a request; `ended` once there is none."""
    return row.state if row.is_active else "ended" if row.state else ""


def describe_end(row: RequestRow) -> str:
    """Return why an answer ended: stop, length, cancelled ...; "" while it runs."""
    return "" if row.is_active else row.state


STATE_ROLES: Mapping[str, Role] = MappingProxyType(
    {"running": "good", "reading": "accent", "waiting": "warn", "refused": "warn", "failed": "bad"}
)
DRAFTING_WORDS = {"asleep": "paused"}  # states of drafting that are shown in other words

COLUMNS = (
    Column("state", 7, describe_row_state, lambda row: describe_row_state(row) or UNKNOWN, is_text=True),
    Column("end", 10, describe_end, describe_end, min_width=51, is_text=True),
    Column(
        "model", 10, lambda row: row.model, lambda row: row.model or UNKNOWN, min_width=25, is_text=True, max_width=32
    ),
    Column("key", 14, lambda row: row.owner, lambda row: row.owner or UNKNOWN, min_width=112, is_text=True),
    Column(
        "drafting",
        8,
        lambda row: row.drafting,
        lambda row: DRAFTING_WORDS.get(row.drafting, row.drafting) or UNKNOWN,
        min_width=122,
        is_text=True,
    ),
    Column("prompt", 7, lambda row: row.prompt_tokens, lambda row: format_count(row.prompt_tokens), min_width=59),
    Column("cached", 7, lambda row: row.cached_tokens, lambda row: format_count(row.cached_tokens), min_width=96),
    Column("answer", 7, lambda row: row.generated_tokens, lambda row: format_count(row.generated_tokens), min_width=33),
    Column("tok/s", 6, lambda row: row.tok_s, lambda row: format_figure(row.tok_s)),
    Column("by draft", 8, lambda row: row.share, lambda row: format_percent(row.share), min_width=68),
    Column("acceptance", 10, lambda row: row.acceptance, lambda row: format_percent(row.acceptance), min_width=88),
    Column("wait", 6, lambda row: row.wait_s, lambda row: format_seconds(row.wait_s), min_width=75),
    Column("age", 6, lambda row: row.age_s, lambda row: format_seconds(row.age_s), min_width=40),
    Column("id", 34, lambda row: row.id, lambda row: row.id, min_width=170, is_text=True),
)


def visible_columns(width: int) -> list[Column]:
    """Return the columns of a table of this width, the growing ones as wide as the others let them be."""
    shown = [column for column in COLUMNS if width >= column.min_width]
    left = width - sum(column.width + 1 for column in shown) + 1
    return [
        replace(column, width=min(column.width + max(left, 0), column.max_width)) if column.max_width else column
        for column in shown
    ]


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
    fields = (row.owner, describe_row_state(row), row.state, row.model, row.id)
    return not text or any(text in field.casefold() for field in fields)


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
    """Return a row; the columns for its state and its end have the state's color."""
    columns = visible_columns(width)
    cells = [_format_cell(column.format(row), column) for column in columns]
    if is_selected:
        return (StyledSpan("".join(span.text for span in fit_line((StyledSpan(" ".join(cells)),), width)), "selected"),)
    role: Role = "text" if row.is_active else "quiet"
    roles = (STATE_ROLES.get(row.state, role) if column.title in ("state", "end") else role for column in columns)
    return fit_line(tuple(StyledSpan(f"{cell} ", each) for cell, each in zip(cells, roles, strict=True)), width)


def _format_cell(text: str, column: Column) -> str:
    """Return the text cut to its column, texts aligned left and figures right."""
    (cut,) = fit_line((StyledSpan(text),), column.width)[:1] or (StyledSpan(""),)
    shown = cut.text.rstrip()
    if not column.is_text:
        return shown.rjust(column.width)
    return "".join(span.text for span in fit_line((StyledSpan(shown),), column.width))
