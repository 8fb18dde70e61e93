"""The monitor of a server: the speculation panel over all slots, its requests, the machine, the log.

A watch on another thread reads the server into the feed, whose frames are drawn as often as the frame rate allows. The
monitor is the same for a server in this process, in another one, or on another machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, Protocol

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Input

from eaglelocal.client.server_reading import ServerReading
from eaglelocal.core.request import Spec, parse_spec
from eaglelocal.errors import EagleLocalError
from eaglelocal.probe.load_gauges import MachineGauge
from eaglelocal.tui.base_app import EagleApp
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.glyphs import ASCII
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.monitor.log_changes import describe_changes
from eaglelocal.tui.monitor.log_tail import LogTail
from eaglelocal.tui.monitor.monitor_text import NUM_HEADER_LINES, MonitorSnapshot, format_header
from eaglelocal.tui.monitor.question_dialog import DialogChoice, QuestionDialog
from eaglelocal.tui.monitor.request_table import RequestTable
from eaglelocal.tui.panel.feed import Feed
from eaglelocal.tui.panel.speculation_panel import SpeculationPanel
from eaglelocal.tui.redraw_timer import RedrawTimer
from eaglelocal.tui.styled_lines import fit_line, make_line, sanitize

Outcome = Literal["quit", "stop", "leave"]  # stop: end the server too; leave: the server goes on without a screen


class Monitored(Protocol):
    """A server that is read on a thread of its own."""

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def close(self) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def switch(self, spec: Spec) -> None: ...


OpenWatch = Callable[[Callable[[ServerReading], None]], Monitored]
ReadMachine = Callable[[], MachineGauge | None]  # returns the newest known figures at once
SPEC_CHOICES = (
    DialogChoice("auto", "auto: as much as pays off", "a"),
    DialogChoice("off", "off", "o"),
    DialogChoice("1", "1 token, always", "1"),
    *(DialogChoice(str(length), f"{length} tokens, always", str(length)) for length in (2, 3, 4, 6, 8)),
)


class Monitor(EagleApp[Outcome]):
    """The app of the monitor; its result says how it was left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "leave", "Quit", id="quit", tooltip="leave the monitor"),
        Binding("space", "pause", "Pause", id="pause", tooltip="stop updating the screen"),
        Binding("s", "sort", "Sort", id="sort", tooltip="by the next column"),
        Binding("r", "reverse", "Reverse", id="reverse", tooltip="the order of the rows", show=False),
        Binding("slash", "filter", "Filter", id="filter", tooltip="rows by key, state, model or id"),
        Binding("c", "cancel", "Cancel", id="cancel", tooltip="end the selected request"),
        Binding("d", "drafting", "Drafting", id="drafting", tooltip="auto, off or a length"),
        Binding("l", "log", "Log", id="log", tooltip="a larger or smaller log"),
        Binding("escape", "clear", "Clear", id="clear", show=False, tooltip="the filter"),
    ]
    CSS = """
    #head { height: 3; }
    #panel { height: 9; margin: 1 0 0 0; }
    #table { height: 1fr; margin: 1 0 0 0; }
    #log { height: 3; }
    #filter { height: 1; border: none; display: none; }
    #filter.-shown { display: block; }
    .-tall #panel { height: 13; }
    .-tall #log { height: 10; }
    .-low #panel, .-low #table { margin: 0; }
    .-log #log { height: 1fr; }
    """
    MAX_LOW, MIN_TALL = 26, 40  # rows of a low and of a tall screen

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
        self._last_reading: ServerReading | None = None  # used by the watch's thread only
        self._snapshot = MonitorSnapshot(
            url=self._watch.url,
            frame=self.feed.make_frame(time.monotonic()),
            machine=None,
            is_local=read_machine is not None,
        )
        self._redraw_timer = RedrawTimer(self, self._tick)

    def compose(self) -> ComposeResult:
        yield LinesWidget(id="head")
        yield SpeculationPanel(self.display_options.glyphs, id="panel")
        yield RequestTable(self.display_options.glyphs, id="table")
        yield LinesWidget(id="log")
        yield Input(placeholder="key, state, model or id", id="filter", compact=True)
        yield Footer(show_command_palette=True)

    def on_mount(self) -> None:
        self.query_one(RequestTable).focus()
        self._watch.start()
        self._redraw_timer.start()

    async def on_unmount(self) -> None:
        await asyncio.to_thread(self._watch.close)  # close may wait for the server, which may run in this very loop

    def on_resize(self, event: events.Resize) -> None:
        """Adapt to low and tall screens, also under a question. The app's own size is still the old one here."""
        if self.screen_stack:
            screen = self.screen_stack[0]
            screen.set_class(event.size.height <= self.MAX_LOW, "-low")
            screen.set_class(event.size.height >= self.MIN_TALL, "-tall")
            self.call_after_refresh(self._draw)

    # ---- readings
    def _add_reading(self, reading: ServerReading) -> None:
        """Log what has changed and feed the reading. Runs on the watch's thread."""
        now = time.strftime("%H:%M:%S")
        for sentence in describe_changes(self._last_reading, reading):
            self._log_tail.add(f"{now}  {sentence}")
        self._last_reading = reading
        self.feed.add_reading(reading, time.monotonic())

    # ---- drawing
    def _tick(self, now: float) -> bool:
        machine = self._read_machine() if self._read_machine is not None else None
        self._snapshot = replace(self._snapshot, frame=self.feed.make_frame(now), machine=machine)
        self._draw()
        return self._snapshot.frame.is_moving

    def _draw(self) -> None:
        if not self.screen_stack or not self.screen_stack[0].query("#log"):  # not composed yet, or removed already
            return
        screen, snapshot = self.screen_stack[0], self._snapshot
        head, log = screen.query_one("#head", LinesWidget), screen.query_one("#log", LinesWidget)
        head.show_lines(format_header(snapshot, head.size.width, self.display_options.glyphs)[:NUM_HEADER_LINES])
        screen.query_one(SpeculationPanel).show(snapshot.frame)
        screen.query_one(RequestTable).show(snapshot.frame.reading)
        newest = self._log_tail.newest(log.size.height)
        log.show_lines([fit_line(make_line((sanitize(each), "quiet")), log.size.width) for each in newest])

    # ---- keys
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
        self.call_after_refresh(self._draw)

    def action_filter(self) -> None:
        filter_input = self.query_one("#filter", Input)
        filter_input.add_class("-shown")
        filter_input.focus()

    def action_clear(self) -> None:
        filter_input = self.query_one("#filter", Input)
        filter_input.value = ""
        self._close_filter(filter_input)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one(RequestTable).set_filter(event.value.strip())

    def on_input_submitted(self, event: Input.Submitted) -> None:
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
            text = f"Cancel the request of {sanitize(row.owner) or 'nobody'} ({what})?"
            choices = (DialogChoice("yes", "yes, cancel it", "y"), DialogChoice("no", "no", "n"))
            self.push_screen(self._make_question(text, choices), partial(self._cancel_if, row.id))

    def _cancel_if(self, request_id: str, answer: str | None) -> None:
        if answer == "yes":
            self._control(partial(self._watch.cancel, request_id), "cancelled")

    def action_drafting(self) -> None:
        if self._can_control():
            setting = self._snapshot.frame.drafting.setting
            if not setting:
                self.notify("the model was loaded without a draft, so there is no drafting to switch")
                return
            question = self._make_question(f"Drafting is set to {setting}. From now on:", SPEC_CHOICES)
            self.push_screen(question, self._switch_to)

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
        """Leave by Textual's own key or palette entry, with the same question."""
        self.action_leave()

    def action_leave(self) -> None:
        if not self._owns_server:
            self.exit("quit")
            return
        choices = (
            DialogChoice("stop", "stop the server", "y"),
            DialogChoice("leave", "leave this screen; the server keeps running", "d"),
            DialogChoice("stay", "stay", "n"),
        )
        reading = self._snapshot.frame.reading
        running = reading.running if reading is not None else 0
        text = "Stop the server?" + (f" {running} running requests may end first." if running else "")
        self.push_screen(self._make_question(text, choices), self._leave_as)

    def _leave_as(self, answer: str | None) -> None:
        match answer:
            case "stop" | "leave":
                self.exit(answer)

    def _make_question(self, text: str, choices: tuple[DialogChoice, ...]) -> QuestionDialog:
        return QuestionDialog(text, choices, is_ascii=self.display_options.glyphs is ASCII)
