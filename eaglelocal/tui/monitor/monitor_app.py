"""The monitor of a server in titled frames: speed, drafting, machine, requests, log.

A watch on another thread reads the server into the feed, whose frames are drawn as often as the frame rate allows. The
monitor is the same for a server in this process, in another one, or on another machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Footer, Input

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.client.servers.server_watch import OnReading, ServerWatch
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.request import parse_spec
from eaglelocal.errors import EagleLocalError
from eaglelocal.probe.load_gauges import MachineGauge
from eaglelocal.tui.base_app import EagleApp, RedrawTimer
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.modal_screens import HelpRow, QuestionDialog
from eaglelocal.tui.monitor.log_tail import ChangeLog, LogTail
from eaglelocal.tui.monitor.machine_text import LoadHistory, MonitorSnapshot, format_machine_rows
from eaglelocal.tui.monitor.monitor_text import (
    FIGURE_PURPOSES,
    MIN_LOG_ROWS,
    SPEED_TITLE,
    format_drafting_title,
    format_log,
    format_requests_title,
    format_server,
    name_setting,
)
from eaglelocal.tui.monitor.request_table import RequestTable
from eaglelocal.tui.panel.feed import Feed
from eaglelocal.tui.panel.panel_text import format_drafting, format_speed, format_window
from eaglelocal.tui.styled_lines import cut_line, make_line

Outcome = Literal["quit", "stop", "leave"]  # stop: end the server too; leave: the server goes on without a screen


OpenWatch = Callable[[OnReading], ServerWatch]
ReadMachine = Callable[[], MachineGauge | None]  # returns the newest known figures at once
SPEC_CHOICES = {
    "auto": "automatic",
    "off": "off",
    "1": "1 token, always",
    **{str(length): f"{length} tokens, always" for length in (2, 3, 4, 6, 8)},
}


def classify_size(size: Size) -> dict[str, bool]:
    """Return the style classes of a screen of this size: the frames are the same, their grid has other rows."""
    return {
        "-flat": size.height < 12,
        "-tiny": size.height < 20,
        "-low": size.height <= 26,
        "-tall": size.height >= 40,
        "-huge": size.height >= 54,
        "-narrow": size.width < 70,
        "-wide": size.width >= 120,
    }


MAX_LOG_ROWS, BORDER_ROWS = 12, 2
MONITOR_CSS = """
#head { height: 1; padding: 0 1; }
.frame { border: round $secondary; border-title-style: bold; border-title-color: $foreground; padding: 0 1; }
.frame { border-subtitle-color: $text-muted; }
.frame:ansi { border: round ansi_default; border-title-color: ansi_default; border-subtitle-color: ansi_default; }
#table:focus { border: round $accent; }
#table:ansi:focus { border: round ansi_cyan; }
Monitor.-ascii .frame { border: ascii $secondary; }
Monitor.-ascii #table:focus { border: ascii $accent; }
#figures { layout: grid; grid-size: 2; grid-rows: 8 4; height: 12; }
#machine { column-span: 2; }
#table { height: 1fr; }
#log { height: 4; max-height: 8; }
#filter { height: 1; border: none; display: none; }
#filter.-shown { display: block; }
.-wide #figures { grid-size: 3; grid-rows: 10; height: 10; }
.-wide #machine { column-span: 1; }
.-low #figures { grid-rows: 7 4; height: 11; }
.-low #log { max-height: 4; }
.-low.-wide #figures { grid-rows: 7; height: 7; }
.-tall #figures { grid-rows: 10 4; height: 14; }
.-tall.-wide #figures { grid-rows: 12; height: 12; }
.-huge #figures { grid-rows: 14 4; height: 18; }
.-huge.-wide #figures { grid-rows: 16; height: 16; }
.-huge #log { max-height: 14; }
.-log #log { height: 3fr; max-height: 100%; }
.-log #table { height: 1fr; min-height: 4; }
.-tiny #machine, .-tiny #log { display: none; }
.-tiny #figures { grid-rows: 6; height: 6; }
.-narrow #figures { grid-size: 1; grid-rows: 6 6; height: 12; }
.-narrow #machine { display: none; }
.-narrow.-low #drafting { display: none; }
.-narrow.-low #figures { grid-rows: 6; height: 6; }
.-flat #figures { display: none; }
.-flat .frame, .-flat #table:focus, Monitor.-ascii .-flat #table:focus { border: none; padding: 0; }
"""


class Monitor(EagleApp[Outcome]):
    """The app of the monitor; its result says how it was left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit", id="quit", tooltip="leave the monitor"),
        Binding("ctrl+q", "quit", "Quit", id="quit", tooltip="leave the monitor", show=False),
        Binding("space", "pause", "Pause", id="pause", tooltip="stop updating the screen"),
        Binding("s", "sort", "Sort", id="sort", tooltip="by the next column"),
        Binding("r", "reverse", "Reverse", id="reverse", tooltip="the order of the rows", show=False),
        Binding("slash", "filter", "Filter", id="filter", tooltip="rows by client, state, model or id"),
        Binding("c", "cancel", "Cancel", id="cancel", tooltip="end the selected request"),
        Binding("d", "drafting", "Drafting", id="drafting", tooltip="auto, off or a length"),
        Binding("l", "log", "Log", id="log", tooltip="a larger or smaller log"),
        Binding("escape", "clear", "Clear", id="clear", show=False, tooltip="the filter"),
        Binding("f1", "help", "Help", id="help", tooltip="all keys and figures"),
    ]
    CSS = MONITOR_CSS

    def __init__(
        self,
        display_options: DisplayOptions,
        open_watch: OpenWatch,
        *,
        read_machine: ReadMachine | None = None,
        log: LogTail | None = None,
        owns_server: bool = False,
    ) -> None:
        """owns_server: ask on leaving if the server should stop."""
        super().__init__(display_options)
        self.feed, self._log_tail = Feed(), log or LogTail()
        self._watch = open_watch(self._add_reading)
        self._read_machine, self._owns_server = read_machine, owns_server
        self._loads = LoadHistory()
        self._changes = ChangeLog(self._log_tail)  # used only on the watch's thread
        self._snapshot = MonitorSnapshot(
            url=self._watch.url,
            frame=self.feed.make_frame(time.monotonic()),
            machine=None,
            is_local=read_machine is not None,
        )
        self._notice = ""
        self._asked_about = ""  # the id of the request that may be cancelled, while that is asked
        self._redraw_timer = RedrawTimer(self, self._tick)

    def compose(self) -> ComposeResult:
        yield LinesWidget(id="head")
        with Container(id="figures"):
            for name in ("speed", "drafting", "machine"):
                yield LinesWidget(id=name, classes="frame")
        yield RequestTable(self.display_options.glyphs)
        yield LinesWidget(id="log", classes="frame")
        yield Input(placeholder="client, state, model or id", id="filter", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(RequestTable).focus()
        self._watch.start()
        self._redraw_timer.start()

    async def on_unmount(self) -> None:
        await asyncio.to_thread(self._watch.close)  # close may wait for the server, which may run in this same loop

    def on_resize(self, event: events.Resize) -> None:
        """Adapt to the size, also below a question, where Textual's own breakpoints would not."""
        if self.screen_stack:
            for name, holds in classify_size(event.size).items():
                self.screen_stack[0].set_class(holds, name)
            self.call_after_refresh(self._draw)

    # ---- readings
    def _add_reading(self, reading: ServerReading) -> None:
        """Add a reading. A server of this process cannot be reached while it ends: show what it waits for."""
        now, last = time.monotonic(), self.feed.reading
        if self._owns_server and last is not None and reading.state == DISCONNECTED:
            reading = replace(last, state="draining", detail="")
        self._changes.add(reading, now, time.strftime("%H:%M:%S"))
        self.feed.add_reading(reading, now)

    # ---- drawing
    def _tick(self, now: float) -> bool:
        machine = self._read_machine() if self._read_machine is not None else None
        self._loads.add(machine, now)
        frame, loads = self.feed.make_frame(now), self._loads.read(now)
        self._snapshot = replace(self._snapshot, frame=frame, machine=machine, loads=loads)
        self._draw()
        self._close_question()
        return self._snapshot.frame.is_moving

    def _draw(self) -> None:
        if not self.screen_stack or not self.screen_stack[0].query("#log"):  # not composed yet, or removed already
            return
        screen, snapshot, glyphs = self.screen_stack[0], self._snapshot, self.display_options.glyphs
        frame = snapshot.frame
        head, speed, drafting, machine, log = (
            screen.query_one(f"#{name}", LinesWidget) for name in ("head", "speed", "drafting", "machine", "log")
        )
        table = screen.query_one(RequestTable)
        notice = self._notice or (f"only: {table.view.filter}" if table.view.filter else "")
        in_head = f"{notice}  " if notice and screen.has_class("-flat") else ""  # there are no borders
        server = make_line((in_head, "accent"), *format_server(snapshot, glyphs))
        head.show_lines([cut_line(server, head.size.width)])
        speed.show_lines(format_speed(frame, *speed.size, glyphs))
        drafting.show_lines(format_drafting(frame, *drafting.size, glyphs))
        machine.show_lines(format_machine_rows(snapshot, *machine.size, glyphs))
        self._fit_log(screen, log)
        newest = self._log_tail.newest(log.size.height)
        log.show_lines(format_log(newest, *log.size))
        speed.show_titles(SPEED_TITLE)
        drafting.show_titles(format_drafting_title(frame), format_window(frame))
        machine.show_titles("machine")
        log.show_titles("log")
        table.show_titles(format_requests_title(frame.reading), notice)
        table.show(frame.reading)

    def _fit_log(self, screen: Screen[object], log: LinesWidget) -> None:
        """Give the log a row for each line, as far as its style permits; the requests take the remaining rows."""
        if screen.has_class("-log"):
            log.styles.clear_rule("height")
            return
        num_rows = len(format_log(self._log_tail.newest(MAX_LOG_ROWS), log.size.width, MAX_LOG_ROWS))
        height = max(num_rows, MIN_LOG_ROWS) + BORDER_ROWS
        if log.styles.inline.height is None or log.styles.inline.height.value != height:
            log.styles.height = height
            self.call_after_refresh(self._draw)

    def show_notice(self, text: str) -> None:
        """Show a notice in the border of the requests, where it covers no figure, or in a low terminal's header.

        "" removes it.
        """
        if text != self._notice:
            self._notice = text
            self._draw()

    # ---- keys
    def help_rows(self) -> list[HelpRow]:
        """Return the keys, and what each figure means."""
        figures = [HelpRow(name, purpose, "figures") for name, purpose in FIGURE_PURPOSES.items()]
        return [*super().help_rows(), *figures]

    def action_pause(self) -> None:
        is_paused = not self._snapshot.is_paused
        self._snapshot = replace(self._snapshot, is_paused=is_paused)
        self._redraw_timer.set_paused(is_paused)
        self._draw()

    def action_sort(self) -> None:
        self.query_one(RequestTable).sort_by_next()

    def action_reverse(self) -> None:
        self.query_one(RequestTable).reverse()

    def action_log(self) -> None:
        self.screen.toggle_class("-log")
        self._fit_log(self.screen, self.query_one("#log", LinesWidget))
        self.call_after_refresh(self._draw)

    def action_filter(self) -> None:
        filter_input = self.query_one("#filter", Input)
        filter_input.add_class("-shown")
        filter_input.focus()

    def action_clear(self) -> None:
        filter_input = self.query_one("#filter", Input)
        filter_input.value = ""
        self._close_filter(filter_input)

    @on(Input.Changed, "#filter")
    def apply_filter(self, event: Input.Changed) -> None:
        self.query_one(RequestTable).set_filter(event.value.strip())
        self._draw()

    @on(Input.Submitted, "#filter")
    def keep_filter(self, event: Input.Submitted) -> None:
        self._close_filter(event.input)

    def _close_filter(self, filter_input: Input) -> None:
        filter_input.remove_class("-shown")
        self.query_one(RequestTable).focus()

    def action_cancel(self) -> None:
        row = self.query_one(RequestTable).selected
        if row is None or not row.is_active:
            self.notify("select a running or waiting request first")
        elif self._can_control():
            what = f"{row.state}, {row.generated_tokens or 0} tokens"
            text = f"Cancel {f'the request of {row.owner}' if row.owner else 'this request'} ({what})?"
            question = QuestionDialog(text, {"no": "no, let it run", "yes": "yes, cancel it"})
            self._asked_about = row.id
            self.push_screen(question, partial(self._cancel_if, row.id))

    def _close_question(self) -> None:
        """Close the question about a request that has ended meanwhile."""
        reading = self._snapshot.frame.reading
        active = () if reading is None else reading.requests or ()
        if self._asked_about and self._asked_about not in {row.id for row in active}:
            if isinstance(self.screen, QuestionDialog):
                self.screen.dismiss(None)
            self.notify("this request has ended")

    def _cancel_if(self, request_id: str, answer: str | None) -> None:
        self._asked_about = ""
        if answer == "yes":
            self._control(partial(self._watch.cancel, request_id), "cancelled")

    def action_drafting(self) -> None:
        if self._can_control():
            setting = self._snapshot.frame.drafting.setting
            if not setting:
                self.notify("the model was loaded without a draft, so there is no drafting to switch")
                return
            text = f"Drafting is set to {name_setting(setting)}. From now on:"
            self.push_screen(QuestionDialog(text, SPEC_CHOICES, first=setting), self._switch_to)

    def _switch_to(self, answer: str | None) -> None:
        if answer is not None:
            self._control(partial(self._watch.switch, parse_spec(answer)), f"drafting: {answer}")

    def _can_control(self) -> bool:
        reading = self._snapshot.frame.reading
        if reading is None or not reading.can_control:
            kind = reading.kind if reading is not None and reading.kind else "this server"
            self.notify(f"{kind} cannot be controlled from here", severity="warning")
            return False
        return True

    @work(thread=True, group="control")
    def _control(self, action: Callable[[], None], message: str) -> None:
        """Run an action that may take a moment, and notify the user of the result."""
        try:
            action()
        except EagleLocalError as error:
            self.call_from_thread(self.notify, error.message, severity="error", markup=False)
        else:
            self.call_from_thread(self.notify, message)

    async def action_quit(self) -> None:
        """Leave; from a server's own screen after a question."""
        if not self._owns_server:
            self.exit("quit")
            return
        choices = {
            "stop": "stop the server, as ctrl+c does now",
            "leave": "leave this screen; the server keeps running",
            "stay": "stay",
        }
        reading = self._snapshot.frame.reading
        running = reading.running if reading is not None else 0
        text = "Stop the server?" + (f" {count_noun(running, 'running request')} may end first." if running else "")
        self.push_screen(QuestionDialog(text, choices, quit_value="stop"), self._leave_as)

    def _leave_as(self, answer: str | None) -> None:
        match answer:
            case "stop" | "leave":
                self.exit(answer)


class ServerDetails(Monitor):
    """The monitor of a server in a list, which all its keys for leaving go back to."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Back", id="quit", tooltip="to the list of servers"),
        Binding("ctrl+q", "quit", "Back", id="quit", tooltip="to the list of servers", show=False),
    ]

    def action_clear(self) -> None:
        """Clear the filter; without one, go back."""
        if self.query_one("#filter").has_focus or self.query_one(RequestTable).view.filter:
            super().action_clear()
        else:
            self.exit("quit")
