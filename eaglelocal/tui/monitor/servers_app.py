"""The list of several servers, a row for each; its result is the address of the chosen one.

The caller owns the watches, so measuring continues while another screen is shown.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer

from eaglelocal.tui.base_app import EagleApp, RedrawTimer
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.monitor.machine_text import MonitorSnapshot
from eaglelocal.tui.monitor.request_table import RowsWidget
from eaglelocal.tui.monitor.server_rows import (
    WatchedServers,
    describe_server,
    format_server_table,
    is_reachable,
)
from eaglelocal.tui.styled_lines import fit_line, make_line


class ServerTable(RowsWidget):
    """A table of servers, with a notice or what the selected one is in its border; a click on that one opens it."""

    notice = ""

    def __init__(self, frames: Sequence[MonitorSnapshot], selected_url: str) -> None:
        super().__init__(id="servers")
        self.frames, self.selected_id = frames, selected_url

    @property
    def row_ids(self) -> list[str]:
        return [each.url for each in self.frames]

    @property
    def selected(self) -> MonitorSnapshot:
        return self.frames[self.selected_index]

    def show_rows(self) -> None:
        self.show_lines(format_server_table(self.frames, *self.size, selected=self.selected_index))
        self.show_titles("servers", self.notice or describe_server(self.selected))

    def click_selected(self) -> None:
        self.call_later(self.run_action, "app.open")


class ServersMonitor(EagleApp[str]):
    """The app of the list; its result is the chosen server's address, or None if the user leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit", id="quit", tooltip="leave the monitor"),
        Binding("ctrl+q", "quit", "Quit", id="quit", tooltip="leave the monitor", show=False),
        Binding("enter", "open", "Details", id="open", tooltip="of the selected server; quitting them comes back"),
        Binding("space", "pause", "Pause", id="pause", tooltip="stop updating the screen"),
        Binding("f1", "help", "Help", id="help", tooltip="all keys"),
    ]
    CSS = """
    #head { height: 1; padding: 0 1; }
    #servers { height: 1fr; border: round $secondary; border-title-style: bold; padding: 0 1; }
    #servers:ansi { border: round ansi_default; }
    ServersMonitor.-ascii #servers { border: ascii $secondary; }
    """

    def __init__(self, display_options: DisplayOptions, servers: WatchedServers, *, selected_url: str = "") -> None:
        """selected_url: the row that is selected first."""
        super().__init__(display_options)
        self._servers = servers
        self._table = ServerTable(servers.make_snapshots(time.monotonic()), selected_url)
        self._is_paused = False
        self._redraw_timer = RedrawTimer(self, self._tick)

    def compose(self) -> ComposeResult:
        yield LinesWidget(id="head")
        yield self._table
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._redraw_timer.start()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    @property
    def selected(self) -> MonitorSnapshot:
        return self._table.selected

    def _tick(self, now: float) -> bool:
        self._table.frames = self._servers.make_snapshots(now)
        self._draw()
        return any(each.frame.is_moving for each in self._table.frames)

    def _draw(self) -> None:
        if not self.screen_stack or not self.screen_stack[0].query("#servers"):  # not composed yet, or removed already
            return
        head, frames = self.screen_stack[0].query_one("#head", LinesWidget), self._table.frames
        text = f"{sum(is_reachable(each.frame) for each in frames)} of {len(frames)} servers answer"
        paused = f" {self.display_options.glyphs.dot} paused" if self._is_paused else ""
        head.show_lines([fit_line(make_line((text, "strong"), (paused, "warn")), head.size.width)])
        self._table.show_rows()

    def show_notice(self, text: str) -> None:
        """Show a notice in place of the line about the selected server; "" removes it."""
        self._table.notice = text
        self._table.show_rows()

    def action_open(self) -> None:
        self.exit(self.selected.url)

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._redraw_timer.set_paused(self._is_paused)
        self._draw()

    async def action_quit(self) -> None:
        self.exit(None)
