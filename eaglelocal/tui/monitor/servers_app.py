"""The list of several servers, a row for each; its result is the address of the chosen one.

The caller owns the watches, so measuring continues while another screen is shown.
"""

from __future__ import annotations

import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.widgets import Footer

from eaglelocal.tui.base_app import EagleApp, RedrawTimer
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.monitor.server_rows import (
    ServerFrame,
    WatchedServers,
    describe_server,
    format_server_table,
    is_reachable,
)
from eaglelocal.tui.monitor.table_text import find_first_row
from eaglelocal.tui.styled_lines import fit_line, make_line


class ServersMonitor(EagleApp[str]):
    """The app of the list; its result is the chosen server's address, or None if the user leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "leave", "Quit", id="quit", tooltip="leave the monitor"),
        Binding("ctrl+q", "leave", "Quit", id="quit", tooltip="leave the monitor", show=False),
        Binding("enter", "open", "Details", id="open", tooltip="of the selected server; quitting them comes back"),
        Binding("space", "pause", "Pause", id="pause", tooltip="stop updating the screen"),
        Binding("up,k", "move(-1)", "Up", show=False, id="up"),
        Binding("down,j", "move(1)", "Down", show=False, id="down"),
        Binding("home,g", "move(-1000)", "First", show=False, id="first"),
        Binding("end,G", "move(1000)", "Last", show=False, id="last"),
        Binding("f1", "help", "Help", id="help", show=False, tooltip="all keys"),
    ]
    CSS = """
    #head { height: 1; padding: 0 1; }
    #servers { height: 1fr; border: round $secondary; border-title-style: bold; padding: 0 1; }
    #servers:ansi { border: round ansi_default; }
    ServersMonitor.-ascii #servers { border: ascii $secondary; }
    #reason { height: 1; padding: 0 1; }
    """

    def __init__(self, display_options: DisplayOptions, servers: WatchedServers, *, selected_url: str = "") -> None:
        """selected_url: the row that is selected first."""
        super().__init__(display_options)
        self._servers, self._frames = servers, servers.make_frames(time.monotonic())
        urls = [each.url for each in self._frames]
        self._selected = urls.index(selected_url) if selected_url in urls else 0
        self._notice, self._is_paused = "", False
        self._redraw_timer = RedrawTimer(self, self._tick)

    def compose(self) -> ComposeResult:
        yield LinesWidget(id="head")
        yield LinesWidget(id="servers")
        yield LinesWidget(id="reason")
        yield Footer(show_command_palette=True)

    def on_mount(self) -> None:
        self._redraw_timer.start()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    @property
    def selected(self) -> ServerFrame:
        return self._frames[self._selected]

    def _tick(self, now: float) -> bool:
        self._frames = self._servers.make_frames(now)
        self._draw()
        return any(each.frame.is_moving for each in self._frames)

    def _draw(self) -> None:
        if not self.screen_stack or not self.screen_stack[0].query("#reason"):  # not composed yet, or removed already
            return
        head, table, reason = (
            self.screen_stack[0].query_one(f"#{name}", LinesWidget) for name in ("head", "servers", "reason")
        )
        num_reachable = sum(is_reachable(each.frame) for each in self._frames)
        text = f"{num_reachable} of {len(self._frames)} servers answer"
        paused = (f" {self.display_options.glyphs.dot} paused", "warn") if self._is_paused else ""
        head.show_lines([fit_line(make_line((text, "strong"), paused), head.size.width)])  # type: ignore[arg-type]
        table.show_lines(format_server_table(self._frames, *table.size, selected=self._selected))
        table.show_titles("servers")
        line = make_line((self._notice, "accent")) if self._notice else describe_server(self.selected)
        reason.show_lines([fit_line(line, reason.size.width)])

    def show_notice(self, text: str) -> None:
        """Show a notice in place of the line about the selected server; "" removes it."""
        self._notice = text
        self._draw()

    def action_move(self, by: int) -> None:
        self._selected = min(max(self._selected + by, 0), len(self._frames) - 1)
        self._draw()

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)

    def on_click(self, event: Click) -> None:
        """Select the clicked row; a click on the selected one opens it."""
        table = self.query_one("#servers", LinesWidget)
        at = event.get_content_offset(table)
        if at is None or event.widget is not table or at.y < 1:
            return
        row = find_first_row(len(self._frames), self._selected, table.size.height - 1) + at.y - 1
        if row == self._selected:
            self.action_open()
        elif row < len(self._frames):
            self._selected = row
            self._draw()

    def action_open(self) -> None:
        self.exit(self.selected.url)

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._redraw_timer.set_paused(self._is_paused)
        self._draw()

    async def action_quit(self) -> None:
        self.action_leave()

    def action_leave(self) -> None:
        self.exit(None)
