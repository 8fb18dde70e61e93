"""The table of requests as a widget: sorted, filtered, with one selected row."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from eaglelocal.client.server_reading import RequestRow, ServerReading
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.monitor.table_text import (
    Column,
    TableView,
    arrange_rows,
    find_first_row,
    fit_request_columns,
    format_table,
)
from eaglelocal.tui.styled_lines import EMPTY_LINE, make_line


class RequestTable(LinesWidget, can_focus=True):
    """A table of the requests of a reading, with one selected row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="up"),
        Binding("down,j", "move(1)", "Down", show=False, id="down"),
        Binding("home,g", "move(-1000)", "First", show=False, id="first"),
        Binding("end,G", "move(1000)", "Last", show=False, id="last"),
    ]
    view: reactive[TableView] = reactive(TableView())

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(id="table", classes="frame")
        self._glyphs = glyphs
        self._reading: ServerReading | None = None
        self._selected_id = ""

    @property
    def rows(self) -> list[RequestRow]:
        """The rows as they are shown: filtered and in order."""
        if self._reading is None:
            return []
        return arrange_rows(self._reading.requests or (), self._reading.recent, self.view)

    @property
    def _columns(self) -> list[Column[RequestRow]]:
        return [] if self._reading is None else fit_request_columns(self._reading, self.size.width)

    @property
    def selected(self) -> RequestRow | None:
        rows = self.rows
        return next((row for row in rows if row.id == self._selected_id), rows[0] if rows else None)

    def show(self, reading: ServerReading | None) -> None:
        self._reading = reading
        self._show_rows()

    def sort_by_next(self) -> None:
        self.view = self.view.choose_next_sort(self._columns)

    def reverse(self) -> None:
        self.view = replace(self.view, is_reversed=not self.view.is_reversed)

    def set_filter(self, text: str) -> None:
        self.view = replace(self.view, filter=text)

    def watch_view(self) -> None:
        self._show_rows()

    def action_move(self, by: int) -> None:
        rows = self.rows
        if rows:
            index = min(max(self._selected_index(rows) + by, 0), len(rows) - 1)
            self._selected_id = rows[index].id
            self._show_rows()

    def on_resize(self) -> None:
        self._show_rows()

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)

    def on_click(self, event: events.Click) -> None:
        """Sort by the clicked title, reverse at a second click, or choose the clicked row."""
        at = event.get_content_offset(self)
        if at is None:  # on the border
            return
        if at.y == 0:
            self._click_title(at.x)
            return
        rows = self.rows
        index = find_first_row(len(rows), self._selected_index(rows), self.size.height - 1) + at.y - 1
        if index < len(rows):
            self._selected_id = rows[index].id
            self._show_rows()

    def _click_title(self, x: int) -> None:
        begin = 0
        for column in self._columns:
            begin += column.width + column.gap
            if x < begin:
                is_again = self.view.sort == column.title
                reverse = is_again and not self.view.is_reversed
                self.view = replace(self.view, sort=column.title, is_reversed=reverse)
                return

    def _selected_index(self, rows: list[RequestRow]) -> int:
        return next((i for i, row in enumerate(rows) if row.id == self._selected_id), 0)

    def _show_rows(self) -> None:
        width, height = self.size
        if self._reading is None:
            self.show_lines([EMPTY_LINE])
            return
        selected = self.selected
        lines = format_table(
            self._reading,
            self.view,
            width,
            height,
            self._glyphs,
            selected_id=selected.id if selected is not None else "",
        )
        if self.view.filter and height > 1:
            lines = [*lines[: height - 1], make_line((f"only: {self.view.filter}", "warn"))]
        self.show_lines(lines)
