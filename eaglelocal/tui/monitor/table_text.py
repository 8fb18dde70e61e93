"""Format tables as lines: columns that fit, and the rows of the table of requests, filtered and in order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from eaglelocal.client.server_reading import DISCONNECTED, RequestRow, ServerReading
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import clean_line
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.panel_text import (
    UNKNOWN,
    describe_connection,
    format_bar,
    format_count,
    format_percent,
    format_seconds,
    format_tok_s,
)
from eaglelocal.tui.styled_lines import ELLIPSIS, SELECTED, Line, Role, StyledSpan, fit_lines, make_line

Row = TypeVar("Row")
SortKey = float | str


# ---- any table
MAX_GAP = 3  # cells between two columns


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table, as wide as its title and its texts.

    rank       in a table that is too narrow, the columns of the highest rank are left out first; 0: never
    min_width  cells to which its texts may be cut before a column is left out; 0: they are not
    """

    title: str
    format: Callable[[Row], str]
    rank: int = 0
    is_text: bool = False
    min_width: int = 0
    sort_key: Callable[[Row], SortKey | None] = lambda row: None
    width: int = 0  # this and the gap after it are set by `fit_columns`
    gap: int = 1

    def format_cell(self, text: str) -> str:
        """Return the text in the cells of the column, texts aligned left and figures right.

        A long text is cut in its middle: a name's quantization and an address's port are at the end.
        """
        text = clean_line(text)
        if cell_len(text) > self.width:
            num_left = max(self.width - len(ELLIPSIS), 0)
            end = set_cell_size(text[::-1], num_left // 2)[::-1]
            text = set_cell_size(text, num_left - num_left // 2) + ELLIPSIS + end
        return set_cell_size(text if self.is_text else text.rjust(self.width), self.width)


def fit_columns(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> list[Column[Row]]:
    """Return the columns that a table of these rows has room for, with their widths."""
    wanted = {
        column.title: max([cell_len(column.title), *(cell_len(clean_line(column.format(row))) for row in rows)])
        for column in columns
    }
    least = {each.title: min(wanted[each.title], each.min_width or wanted[each.title]) for each in columns}
    shown = list(columns)
    while sum(least[each.title] + 1 for each in shown) - 1 > width and any(each.rank for each in shown):
        shown.remove(max(shown, key=lambda each: each.rank))
    left = max(width - sum(least[each.title] + 1 for each in shown) + 1, 0)
    widths = []
    for column in shown:
        extra = min(wanted[column.title] - least[column.title], left)
        left -= extra
        widths.append(least[column.title] + extra)
    gap = min(1 + left // len(shown), MAX_GAP)
    return [replace(column, width=cells, gap=gap) for column, cells in zip(shown, widths, strict=True)]


def format_row(columns: Sequence[Column[Row]], row: Row, roles: Mapping[str, Role], *, role: Role = "text") -> Line:
    """Return a row. roles: those of some columns, by title. role: that of the others."""
    return tuple(
        StyledSpan(column.format_cell(column.format(row)) + " " * column.gap, roles.get(column.title, role))
        for column in columns
    )


def mark_selected(line: Line, *, is_selected: bool) -> Line:
    return (SELECTED, *line) if is_selected else line


def find_first_row(num_rows: int, selected: int, height: int) -> int:
    """Return the index of the first row to show, so that the row `selected` is among `height` rows."""
    return max(min(selected - height + 1, num_rows - height), 0) if selected >= height else 0


# ---- the table of requests
@dataclass(frozen=True, slots=True)
class TableView:
    """The user's sorting and filter of the table."""

    sort: str = ""  # title of a column; "": in the server's order
    is_reversed: bool = False
    filter: str = ""  # rows with this in owner, state, model or id

    def choose_next_sort(self, columns: Sequence[Column[RequestRow]]) -> TableView:
        titles = ["", *(column.title for column in columns)]
        index = titles.index(self.sort) if self.sort in titles else 0
        return TableView(titles[(index + 1) % len(titles)], self.is_reversed, self.filter)


STATE_ROLES: Mapping[str, Role] = MappingProxyType(
    {"running": "good", "reading": "accent", "waiting": "warn", "refused": "warn", "failed": "bad"}
)
DRAFTING_WORDS = {"asleep": "paused"}  # states of drafting that are shown in other words


def _figure(title: str, rank: int, name: str, format: Callable[[float | None], str]) -> Column[RequestRow]:
    """Return the column of a figure, which is the attribute `name` of a row."""
    read = attrgetter(name)
    return Column(title, lambda row: format(read(row)), rank, sort_key=read)


def _text(title: str, rank: int, read: Callable[[RequestRow], str], min_width: int = 0) -> Column[RequestRow]:
    return Column(title, lambda row: read(row) or UNKNOWN, rank, True, min_width, sort_key=read)


ANSWER_COLUMNS = (  # a prompt that is being read has none of these figures, so its bar takes their cells
    _figure("answer", 2, "generated_tokens", format_count),
    _figure("tok/s", 0, "tok_s", format_tok_s),
    _figure("by draft", 7, "share", format_percent),
    _figure("acceptance", 9, "acceptance", format_percent),
    _figure("first token", 6, "ttft_s", format_seconds),
)
ANSWER_TITLES = frozenset(column.title for column in ANSWER_COLUMNS)
PERCENT_CELLS = len("100 %")
COLUMNS = (
    _text("state", 0, attrgetter("state"), min_width=7),
    _text("model", 4, lambda row: row.model.removesuffix(".gguf"), min_width=12),
    _text("client", 5, attrgetter("owner"), min_width=18),
    _text("drafting", 11, lambda row: DRAFTING_WORDS.get(row.drafting, row.drafting)),
    _figure("prompt", 3, "prompt_tokens", format_count),
    _figure("cached", 10, "cached_tokens", format_count),
    *ANSWER_COLUMNS,
    _figure("total", 1, "age_s", format_seconds),
    Column("id", attrgetter("id"), 12, is_text=True, sort_key=attrgetter("id")),
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
    fields = (row.owner, row.state, row.model, row.id)
    return not text or any(text in field.casefold() for field in fields)


def fit_request_columns(reading: ServerReading, width: int) -> list[Column[RequestRow]]:
    """Return the columns of the table; a filter does not change them."""
    return fit_columns(COLUMNS, [*(reading.requests or ()), *reading.recent], width)


def format_titles(columns: Sequence[Column[RequestRow]], view: TableView, glyphs: Glyphs) -> Line:
    """Return the titles of the columns, with an arrow at the sorted one."""
    titles = list[StyledSpan]()
    for column in columns:
        cell = column.format_cell(column.title)
        if column.title == view.sort:
            arrow = glyphs.down if view.is_reversed is column.is_text else glyphs.up
            titles.append(StyledSpan(set_cell_size(f"{cell.rstrip()}{arrow}", column.width + column.gap), "strong"))
        else:
            titles.append(StyledSpan(cell + " " * column.gap, "quiet"))
    return tuple(titles)


def format_request(row: RequestRow, columns: Sequence[Column[RequestRow]], glyphs: Glyphs) -> Line:
    """Return the row of a request, its state in a color; while its prompt is read, with a bar of how far."""
    role: Role = "text" if row.is_active else "quiet"
    spans = format_row(columns, row, {"state": STATE_ROLES.get(row.state, role)}, role=role)
    unknown = [at for at, column in enumerate(columns) if column.title in ANSWER_TITLES]
    if row.read_share is None or not unknown:
        return spans
    percent = f" {format_percent(row.read_share):>{PERCENT_CELLS}}{' ' * columns[0].gap}"
    cells = sum(columns[at].width + columns[at].gap for at in unknown) - len(percent)
    bar = format_bar(row.read_share, max(cells, 0), glyphs, "accent")
    return (*spans[: unknown[0]], *bar, StyledSpan(percent), *spans[unknown[-1] + 1 :])


def format_table(
    reading: ServerReading, view: TableView, width: int, height: int, glyphs: Glyphs, *, selected_id: str = ""
) -> list[Line]:
    """Return titles and rows of the requests, at most `height` lines; the selected row is among them."""
    rows = arrange_rows(reading.requests or (), reading.recent, view)
    columns = fit_request_columns(reading, width)
    if reading.requests is None:
        text = describe_connection(reading) if reading.state == DISCONNECTED else "requests are not reported"
        lines = [make_line((text, "quiet"))]
    elif not rows:
        lines = [make_line(("no request matches the filter" if view.filter else "no request is running", "quiet"))]
    else:
        selected = next((i for i, row in enumerate(rows) if row.id == selected_id), 0)
        first = find_first_row(len(rows), selected, max(height - 1, 0))
        shown = rows[first : first + max(height - 1, 0)]
        lines = [format_request(row, columns, glyphs) for row in shown]
        lines = [mark_selected(line, is_selected=row.id == selected_id) for row, line in zip(shown, lines, strict=True)]
    return fit_lines([format_titles(columns, view, glyphs), *lines], width, height)
