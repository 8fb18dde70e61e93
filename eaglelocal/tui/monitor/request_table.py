"""Tables as widgets, with one selected row; and that of the requests: sorted and filtered."""

from __future__ import annotations

from collections.abc import Sequence
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


class RowsWidget(LinesWidget, can_focus=True):
    """A table with a row of titles above the others, of which one is selected by key, wheel or mouse."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="up"),
        Binding("down,j", "move(1)", "Down", show=False, id="down"),
        Binding("home,g", "move(-1000)", "First", show=False, id="first"),
        Binding("end,G", "move(1000)", "Last", show=False, id="last"),
    ]
    selected_id = ""  # of a row that is gone, or of none: the first one is selected

    @property
    def row_ids(self) -> Sequence[str]:
        """The ids of the rows as they are shown."""
        return ()

    def show_rows(self) -> None:
        """Draw the table."""

    def click_title(self, x: int) -> None:
        """React to a click in column `x` of the titles."""

    def click_selected(self) -> None:
        """React to a click on the row that is selected already."""

    @property
    def selected_index(self) -> int:
        return self.row_ids.index(self.selected_id) if self.selected_id in self.row_ids else 0

    def action_move(self, by: int) -> None:
        if ids := self.row_ids:
            self.selected_id = ids[min(max(self.selected_index + by, 0), len(ids) - 1)]
            self.show_rows()

    def on_resize(self) -> None:
        self.show_rows()

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is None:  # on the border
            return
        if at.y == 0:
            self.click_title(at.x)
            return
        ids, selected = self.row_ids, self.selected_index
        index = find_first_row(len(ids), selected, self.size.height - 1) + at.y - 1
        if index == selected and ids:
            self.click_selected()
        elif index < len(ids):
            self.action_move(index - selected)


class RequestTable(RowsWidget):
    """A table of the requests of a reading. A click on a title sorts by it, and a second one reverses the order."""

    view: reactive[TableView] = reactive(TableView())

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(id="table", classes="frame")
        self._glyphs = glyphs
        self._reading: ServerReading | None = None

    @property
    def rows(self) -> list[RequestRow]:
        """The rows as they are shown: filtered and in order."""
        if self._reading is None:
            return []
        return arrange_rows(self._reading.requests or (), self._reading.recent, self.view)

    @property
    def row_ids(self) -> list[str]:
        return [row.id for row in self.rows]

    @property
    def _columns(self) -> list[Column[RequestRow]]:
        return [] if self._reading is None else fit_request_columns(self._reading, self.size.width)

    @property
    def selected(self) -> RequestRow | None:
        return rows[self.selected_index] if (rows := self.rows) else None

    def show(self, reading: ServerReading | None) -> None:
        self._reading = reading
        self.show_rows()

    def sort_by_next(self) -> None:
        self.view = self.view.choose_next_sort(self._columns)

    def reverse(self) -> None:
        self.view = replace(self.view, is_reversed=not self.view.is_reversed)

    def set_filter(self, text: str) -> None:
        self.view = replace(self.view, filter=text)

    def watch_view(self) -> None:
        self.show_rows()

    def click_title(self, x: int) -> None:
        end = 0
        for column in self._columns:
            end += column.width + column.gap
            if x < end:
                is_again = self.view.sort == column.title
                self.view = replace(self.view, sort=column.title, is_reversed=is_again and not self.view.is_reversed)
                return

    def show_rows(self) -> None:
        if self._reading is None:
            return
        width, height = self.size
        selected = self.selected.id if self.selected is not None else ""
        self.show_lines(format_table(self._reading, self.view, width, height, self._glyphs, selected_id=selected))
