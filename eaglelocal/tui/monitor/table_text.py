"""Format the table of requests as lines: columns that fit, rows filtered and in order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eaglelocal.client.server_reading import RequestRow
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.panel_text import NOT_TOLD, count, percent
from eaglelocal.tui.styled_lines import Line, StyledSpan, fitted, harmless

Key = float | str


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `of` gives the sort key, `shown` the text; screens of fewer than `since` cells leave it out."""

    title: str
    width: int
    of: Callable[[RequestRow], Key | None]
    shown: Callable[[RequestRow], str]
    since: int = 0
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class TableView:
    """The user's sorting and filter of the table."""

    sort: str = ""  # title of a column; "": in the server's order
    is_reversed: bool = False
    wanted: str = ""  # rows with this in owner, state, model or id

    def with_next_sort(self, columns: Sequence[Column]) -> TableView:
        titles = ["", *(column.title for column in columns)]
        at = titles.index(self.sort) if self.sort in titles else 0
        return TableView(titles[(at + 1) % len(titles)], self.is_reversed, self.wanted)


def figure(value: float | None, digits: int = 1) -> str:
    return NOT_TOLD if value is None else f"{value:.{digits}f}"


def seconds(value: float | None) -> str:
    """Return a duration as `0.3 s`, `12 s`, `5 min` or `3 h`."""
    if value is None:
        return NOT_TOLD
    if value < 9.95:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 99.5 else f"{value / 60:.0f} min" if value < 5970 else f"{value / 3600:.0f} h"


COLUMNS = (
    Column("key", 12, lambda row: row.owner, lambda row: row.owner or NOT_TOLD, is_text=True),
    Column("state", 9, lambda row: row.state, lambda row: row.state or NOT_TOLD, is_text=True),
    Column("prompt", 7, lambda row: row.prompt_tokens, lambda row: count(row.prompt_tokens)),
    Column("cached", 7, lambda row: row.cached_tokens, lambda row: count(row.cached_tokens)),
    Column("answer", 7, lambda row: row.generated_tokens, lambda row: count(row.generated_tokens)),
    Column("tok/s", 7, lambda row: row.tok_s, lambda row: figure(row.tok_s)),
    Column("drafted", 7, lambda row: row.share, lambda row: percent(row.share)),
    Column("accept", 6, lambda row: row.acceptance, lambda row: percent(row.acceptance)),
    Column("wait", 6, lambda row: row.wait_s, lambda row: seconds(row.wait_s)),
    Column("age", 6, lambda row: row.age_s, lambda row: seconds(row.age_s), since=84),
    Column("drafting", 8, lambda row: row.drafting, lambda row: row.drafting or NOT_TOLD, since=96, is_text=True),
    Column("model", 20, lambda row: row.model, lambda row: row.model or NOT_TOLD, since=120, is_text=True),
    Column("id", 34, lambda row: row.id, lambda row: row.id, since=160, is_text=True),
)


def columns_in(width: int) -> list[Column]:
    return [column for column in COLUMNS if width >= column.since]


def ordered(active: Sequence[RequestRow], recent: Sequence[RequestRow], view: TableView) -> list[RequestRow]:
    """Return the wanted rows, active ones before ended ones; unknown values come last in either direction."""
    return [row for rows in (active, recent) for row in _sorted([row for row in rows if _is_wanted(row, view)], view)]


def _sorted(rows: list[RequestRow], view: TableView) -> list[RequestRow]:
    column = next((column for column in COLUMNS if column.title == view.sort), None)
    if column is None:
        return rows[::-1] if view.is_reversed else rows
    known = [(key, row) for row in rows if (key := column.of(row)) is not None]
    unknown = [row for row in rows if column.of(row) is None]
    known.sort(key=lambda pair: pair[0], reverse=view.is_reversed is column.is_text)  # figures: the largest first
    return [row for _, row in known] + unknown


def _is_wanted(row: RequestRow, view: TableView) -> bool:
    wanted = view.wanted.casefold()
    return not wanted or any(wanted in text.casefold() for text in (row.owner, row.state, row.model, row.id))


def title_line(width: int, view: TableView, glyphs: Glyphs) -> Line:
    """Return the titles of the columns, with an arrow at the sorted one."""
    return fitted(tuple(span for column in columns_in(width) for span in _title(column, view, glyphs)), width)


def _title(column: Column, view: TableView, glyphs: Glyphs) -> Line:
    if column.title != view.sort:
        return (StyledSpan(_cell(column.title, column), "quiet"), StyledSpan(" "))
    arrow = glyphs.up if view.is_reversed is column.is_text else glyphs.down
    return (StyledSpan(_cell(f"{column.title[: column.width - 1]}{arrow}", column), "strong"), StyledSpan(" "))


def row_line(row: RequestRow, width: int, *, is_chosen: bool) -> Line:
    if is_chosen:
        text = " ".join(_cell(column.shown(row), column) for column in columns_in(width))
        return (StyledSpan("".join(span.text for span in fitted((StyledSpan(text),), width)), "chosen"),)
    role = "text" if row.is_active else "bad" if row.state == "failed" else "quiet"
    text = " ".join(_cell(column.shown(row), column) for column in columns_in(width))
    return fitted((StyledSpan(text, role),), width)  # type: ignore[arg-type]


def _cell(text: str, column: Column) -> str:
    """Return the text cut to its column, texts aligned left and figures right."""
    (cut,) = fitted((StyledSpan(harmless(text)),), column.width)[:1] or (StyledSpan(""),)
    shown = cut.text.rstrip()
    return (
        "".join(span.text for span in fitted((StyledSpan(shown),), column.width))
        if column.is_text
        else shown.rjust(column.width)
    )
