"""Format tables as lines: columns that fit, and the rows of the table of requests, filtered and in order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Generic, TypeVar

from rich.cells import set_cell_size

from eaglelocal.client.server_reading import DISCONNECTED, RequestRow, ServerReading
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import clean_line
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.panel_text import UNKNOWN, format_count, format_percent
from eaglelocal.tui.styled_lines import Line, Role, StyledSpan, fit_line, make_line

Row = TypeVar("Row")
SortKey = float | str


# ---- any table
@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table; tables of fewer than `min_width` cells leave it out.

    Columns with a `max_width` share the cells that are left, up to that width.
    """

    title: str
    width: int
    format: Callable[[Row], str]
    min_width: int = 0
    is_text: bool = False
    max_width: int = 0  # 0: it does not grow
    sort_key: Callable[[Row], SortKey | None] = lambda row: None

    def format_cell(self, text: str) -> str:
        """Return the text in the cells of the column, texts aligned left and figures right."""
        return set_cell_size(clean_line(text if self.is_text else text.rjust(self.width)), self.width)


def fit_columns(columns: Sequence[Column[Row]], width: int) -> list[Column[Row]]:
    """Return the columns of a table of this width, the growing ones as wide as the others let them be."""
    shown = [column for column in columns if width >= column.min_width]
    left = max(width - sum(column.width + 1 for column in shown) + 1, 0)
    extra = left // max(sum(1 for column in shown if column.max_width), 1)
    return [
        replace(column, width=min(column.width + extra, column.max_width)) if column.max_width else column
        for column in shown
    ]


def format_row(
    columns: Sequence[Column[Row]],
    row: Row,
    width: int,
    roles: Mapping[str, Role],
    *,
    role: Role = "text",
    is_selected: bool,
) -> Line:
    """Return a row. roles: those of some columns, by title. role: that of the others."""
    cells = [column.format_cell(column.format(row)) for column in columns]
    if is_selected:
        return (StyledSpan(set_cell_size(" ".join(cells), width), "selected"),)
    pairs = zip(columns, cells, strict=True)
    return fit_line(tuple(StyledSpan(f"{cell} ", roles.get(column.title, role)) for column, cell in pairs), width)


def find_first_row(num_rows: int, selected: int, height: int) -> int:
    """Return the index of the first row to show, so that the row `selected` is among `height` rows."""
    return max(min(selected - height + 1, num_rows - height), 0) if selected >= height else 0


# ---- the table of requests
@dataclass(frozen=True, slots=True)
class TableView:
    """The user's sorting and filter of the table."""

    sort: str = ""  # title of a column; "": in the server's order
    is_reversed: bool = False
    filter: str = ""  # rows with this in owner, state, end, model or id

    def choose_next_sort(self, columns: Sequence[Column[RequestRow]]) -> TableView:
        titles = ["", *(column.title for column in columns)]
        index = titles.index(self.sort) if self.sort in titles else 0
        return TableView(titles[(index + 1) % len(titles)], self.is_reversed, self.filter)


def format_figure(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}"


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


def _figure(
    title: str, width: int, name: str, format: Callable[[float | None], str], min_width: int = 0
) -> Column[RequestRow]:
    """Return the column of a figure, which is the attribute `name` of a row."""
    read = attrgetter(name)
    return Column(title, width, lambda row: format(read(row)), min_width, sort_key=read)


def _text(
    title: str, width: int, read: Callable[[RequestRow], str], min_width: int = 0, max_width: int = 0
) -> Column[RequestRow]:
    return Column(title, width, lambda row: read(row) or UNKNOWN, min_width, True, max_width, sort_key=read)


COLUMNS = (
    _text("state", 7, describe_row_state),
    Column("end", 10, describe_end, min_width=51, is_text=True, sort_key=describe_end),
    _text("model", 10, attrgetter("model"), min_width=25, max_width=32),
    _text("key", 14, attrgetter("owner"), min_width=112),
    _text("drafting", 8, lambda row: DRAFTING_WORDS.get(row.drafting, row.drafting), min_width=122),
    _figure("prompt", 7, "prompt_tokens", format_count, min_width=59),
    _figure("cached", 7, "cached_tokens", format_count, min_width=96),
    _figure("answer", 7, "generated_tokens", format_count, min_width=33),
    _figure("tok/s", 6, "tok_s", format_figure),
    _figure("by draft", 8, "share", format_percent, min_width=68),
    _figure("acceptance", 10, "acceptance", format_percent, min_width=88),
    _figure("wait", 6, "wait_s", format_seconds, min_width=75),
    _figure("age", 6, "age_s", format_seconds, min_width=40),
    Column("id", 34, attrgetter("id"), min_width=170, is_text=True, sort_key=attrgetter("id")),
)


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
    titles: list[StyledSpan] = []
    for column in fit_columns(COLUMNS, width):
        if column.title == view.sort:
            arrow = glyphs.up if view.is_reversed is column.is_text else glyphs.down
            text = column.format_cell(f"{column.title[: column.width - 1]}{arrow}")
        else:
            text = column.format_cell(column.title)
        titles += [StyledSpan(text, "strong" if column.title == view.sort else "quiet"), StyledSpan(" ")]
    return fit_line(tuple(titles), width)


def format_request(row: RequestRow, width: int, *, is_selected: bool) -> Line:
    """Return the row of a request; the columns for its state and its end have the state's color."""
    role: Role = "text" if row.is_active else "quiet"
    state_role = STATE_ROLES.get(row.state, role)
    roles = {"state": state_role, "end": state_role}
    return format_row(fit_columns(COLUMNS, width), row, width, roles, role=role, is_selected=is_selected)


def format_table(
    reading: ServerReading, view: TableView, width: int, height: int, glyphs: Glyphs, *, selected_id: str = ""
) -> list[Line]:
    """Return titles and rows of the requests, at most `height` lines; the selected row is among them."""
    if reading.requests is None:
        why = "no connection" if reading.state == DISCONNECTED else "requests are not reported"
        return [format_titles(width, view, glyphs), fit_line(make_line((why, "quiet")), width)][:height]
    rows = arrange_rows(reading.requests, reading.recent, view)
    num_shown = max(height - 1, 0)
    selected = next((i for i, row in enumerate(rows) if row.id == selected_id), 0)
    first = find_first_row(len(rows), selected, num_shown)
    shown = [format_request(row, width, is_selected=row.id == selected_id) for row in rows[first : first + num_shown]]
    if not rows:
        text = "no request matches the filter" if view.filter else "no request is running"
        shown = [fit_line(make_line((text, "quiet")), width)][:num_shown]
    return [format_titles(width, view, glyphs), *shown][:height]
