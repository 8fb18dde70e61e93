"""The base class of both apps: themes, the user's keys, help, and a command palette in the screen's own words."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import FrameType
from typing import ClassVar

from rich.console import RenderableType
from rich.segment import Segment
from textual import events
from textual.app import App, ReturnType, SystemCommand
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.command import CommandPalette
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.geometry import Size
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.timer import Timer

from eaglelocal.core.terminal_text import clean_cells
from eaglelocal.errors import EagleLocalError
from eaglelocal.settings import THEME_NAMES
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.glyphs import ASCII
from eaglelocal.tui.mapped_keys import make_key_rows, name_key
from eaglelocal.tui.modal_screens import HelpRow, HelpScreen
from eaglelocal.tui.terminal.terminal_driver import TerminalDriver
from eaglelocal.tui.themes import TERMINAL, list_themes

EXPIRY_MARGIN_S = 0.05  # delay after a notification's end, so that it is over when the screen checks
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
MIN_SIZE = Size(16, 4)  # columns and rows
CLEAR, HOME = "\x1b[0m\x1b[2J", "\x1b[H"


def enlarge_to_minimum(size: Size) -> Size:
    """Return the size that the screen is laid out for, which may be larger than the terminal."""
    return Size(max(size.width, MIN_SIZE.width), max(size.height, MIN_SIZE.height))


def format_too_small(size: Size) -> str:
    """Return the output for a terminal of that size: a message that it is too small, cut to fit."""
    text = f"too small: {MIN_SIZE.width}x{MIN_SIZE.height} is needed"
    width = max(size.width, 1)
    rows = [text[at : at + width] for at in range(0, len(text), width)][: max(size.height, 1)]
    return CLEAR + HOME + "\r\n".join(rows)


class ControlFilter(LineFilter):
    """Keeps the text of all widgets from controlling the terminal. It takes no cells away, so the layout stays."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(clean_cells(text), style, control) for text, style, control in segments]


CONTROL_FILTER = ControlFilter()


class Palette(CommandPalette):
    """Textual's command palette, which the key that leaves the app closes too."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "app.quit_from_dialog", "Leave", show=False)]


class EagleApp(App[ReturnType]):
    """An app with the themes, glyphs and keys of a `DisplayOptions`. Users can rebind every binding that has an id."""

    TITLE = "eaglelocal"
    DEFAULT_CSS = """
    EagleApp.-theme-contrast LinesWidget > .lines--selected { color: $block-cursor-foreground; }
    EagleApp.-ascii {
        Footer FooterKey.-command-palette { border-left: none; }
        Toast { border-left: none; border-right: none; }
        OptionList { scrollbar-size: 0 0; }
        CommandPalette #--input, CommandPalette LoadingIndicator { border: none; }
        CommandPalette SearchIcon { display: none; }
        HelpScreen > Vertical, QuestionDialog > Vertical { border: ascii $primary; }
        HelpScreen VerticalScroll { scrollbar-size: 0 0; }
    }
    """

    def __init__(self, display_options: DisplayOptions) -> None:
        super().__init__()
        self.no_color = self.no_color or not display_options.has_color
        if self.no_color:  # Textual draws in grays for NO_COLOR
            self._filters = [NoColor(), *(each for each in self._filters if not isinstance(each, Monochrome | NoColor))]
        self.display_options = display_options
        self.is_too_small = False  # the terminal
        self._notice_timer: Timer | None = None  # until the notice ends
        self._handlers: dict[
            signal.Signals, Callable[[int, FrameType | None], object]
        ] = {}  # of signals that end the program
        self._ended_by: signal.Signals | None = None
        self.set_class(display_options.glyphs is ASCII, "-ascii")
        for theme in list_themes():
            self.register_theme(theme)
        self.theme = TERMINAL if self.no_color else display_options.theme
        for name in self.available_themes.keys() - set(THEME_NAMES):
            self.unregister_theme(name)  # the config file does not know it
        self.set_keymap({name: ",".join(key.strip() for key in keys.split(",")) for name, keys in display_options.keys})

    def action_command_palette(self) -> None:
        """Open Textual's command palette, with a placeholder in ASCII."""
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(Palette(placeholder="Search for commands", id="--command-palette"))

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.help_rows()))

    def help_rows(self) -> list[HelpRow]:
        """Return a row for each active binding that has an id and a description, and for the command palette."""
        active = {each.binding.key: each.binding for each in self.screen.active_bindings.values()}
        purposes = {
            each.id: ": ".join(filter(None, [each.description, each.tooltip]))
            for each in active.values()
            if each.id and each.description
        }
        return [*make_key_rows(active, purposes), self.palette_row]

    @property
    def palette_row(self) -> HelpRow:
        return HelpRow(self.COMMAND_PALETTE_BINDING, "find commands by name", "keys")

    async def action_quit_from_dialog(self) -> None:
        """Close all dialogs, and leave as the screen below them does."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        await self.action_quit()

    def action_choose_theme(self, name: str) -> None:
        """Change to a theme and keep it for later starts."""
        self.theme = name
        try:
            kept = self.display_options.keep_theme(name)
        except EagleLocalError as error:
            self.notify(f"theme {name}, only for now: {error.message}", severity="warning", markup=False)
        else:
            self.notify(f"theme {name}, {kept}", markup=False)

    async def on_event(self, event: events.Event) -> None:
        """Lay out for at least MIN_SIZE; a smaller terminal shows a message instead."""
        await super().on_event(self._fit_to_minimum(event) if isinstance(event, events.Resize) else event)

    def _refresh_notifications(self) -> None:
        """Show the newest notification where it covers no figure, in place of Textual's toasts."""
        newest = max(self._notifications, key=lambda each: each.raised_at, default=None)
        self.show_notice("" if newest is None else " ".join(newest.message.split()))
        if self._notice_timer is not None:
            self._notice_timer.stop()
        if newest is not None:
            self._notice_timer = self.set_timer(newest.time_left + EXPIRY_MARGIN_S, self._refresh_notifications)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), CONTROL_FILTER]

    def show_notice(self, text: str) -> None:
        """Show a notice in a place of the app's own; "" removes it."""

    def _fit_to_minimum(self, event: events.Resize) -> events.Resize:
        size = enlarge_to_minimum(event.size)
        was_small, self.is_too_small = self.is_too_small, size != event.size
        if self.is_too_small:
            if self._driver is not None:
                self._driver.write(format_too_small(event.size))
            return events.Resize(size, size)
        if was_small:
            self.call_later(self.refresh, layout=True)  # redraw everything, also if the layout's size is the same
        return event

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        is_behind = isinstance(self._driver, TerminalDriver) and self._driver.is_behind
        if not self.is_too_small and not is_behind:
            super()._display(screen, renderable)

    def show(self) -> ReturnType | None:
        """Run the app until the user leaves or a signal of ENDING comes, and return its result.

        Raises `failure`, if there is one, and calls the signal's handler, after the terminal has been restored. If the
        handler raised in the middle of the app's work, the exception would be lost in a task, or leave work half done.
        """
        found = {number: signal.getsignal(number) for number in ENDING}
        self._handlers = {number: handler for number, handler in found.items() if callable(handler)}
        try:
            result = self.run()
        finally:
            self._restore_handlers()
        if self.failure is not None:
            raise self.failure
        if self._ended_by is not None:
            self._handlers[self._ended_by](self._ended_by, None)
        return result

    def _end_by(self, number: signal.Signals) -> None:
        """Leave the app because of a signal. A second signal is handled at once, wherever it arrives."""
        self._ended_by = number
        self._restore_handlers()
        self.exit()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def failure(self) -> Exception | None:
        """The unexpected exception that ended the app, or None."""
        return self._exception

    def _handle_exception(self, error: Exception) -> None:
        """End the app; `show` raises the error. Textual's traceback would show API keys and conversations."""
        self._return_code = 1
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()

    def get_driver_class(self) -> type[Driver]:
        """Return TerminalDriver for a terminal; behind a pipe and in tests, the driver that Textual chooses."""
        found = super().get_driver_class()
        return TerminalDriver if found is LinuxDriver else found

    def on_load(self) -> None:
        """Redraw everything when the app resumes from the shell, which may have overwritten the screen."""
        for number in self._handlers:
            asyncio.get_running_loop().add_signal_handler(number, self._end_by, number)
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield a command for every active binding that has an id and a description, and one for each theme."""
        listed = set[str]()
        for active in screen.active_bindings.values():
            binding = active.binding
            if binding.id and active.enabled and binding.description and binding.id not in listed:
                listed.add(binding.id)
                help_text = binding.tooltip or f"the key {name_key(binding.key)}"
                run = partial(self.run_action, binding.action, active.node)
                yield SystemCommand(binding.description, help_text, run)
        for name in self.available_themes:
            help_text = "the colors of your terminal" if name == TERMINAL else f"the {name} colors, kept for later"
            yield SystemCommand(f"Theme: {name}", help_text, partial(self.action_choose_theme, name))


# ---- redraw timer: a timer for drawing: calls a function as often as the frame rate allows, and measures what that
# costs
OnTick = Callable[[float], bool]  # takes the time (monotonic seconds), returns True if anything moves


class RedrawTimer:
    """A timer that ticks on the screen's thread, from `start` on for as long as its owner lives."""

    def __init__(self, owner: MessagePump, on_tick: OnTick) -> None:
        self._owner, self._on_tick, self._frame_rate = owner, on_tick, FrameRate()
        self._is_paused = False
        self._cpu_s, self._due_at = 0.0, 0.0

    def start(self) -> None:
        """Tick now, and from then on as the frame rate says."""
        self._cpu_s, self._due_at = time.thread_time(), time.monotonic()
        self._tick()

    def set_paused(self, is_paused: bool) -> None:
        """Stop drawing, so that the screen stays as it is, or go on."""
        self._is_paused = is_paused

    def _tick(self) -> None:
        now, cpu_s = time.monotonic(), time.thread_time()
        self._frame_rate.add_cpu_time(cpu_s - self._cpu_s)
        late_s = max(now - self._due_at, 0.0)
        self._cpu_s = cpu_s
        is_moving = not self._is_paused and self._on_tick(now)
        self._frame_rate.add_frame_cost(time.thread_time() - cpu_s)
        gap_s = self._frame_rate.next_gap_s(is_moving=is_moving, late_s=late_s)
        self._due_at = now + gap_s
        # not Textual's timer, which would create a task each time
        asyncio.get_running_loop().call_later(gap_s, self._owner.call_next, self._tick)


# ---- frame rate: decide how often the screen is drawn: eight times a second at best, less if that costs more than
# its CPU share
#
# Pure: the caller measures the cost. On a small machine, drawing takes CPU time from the engine.
FASTEST_S, SLOWEST_S = 0.125, 1.0  # seconds between two frames
LONGEST_S = 5.0  # after a frame too expensive for SLOWEST_S, such as one long block that grows
NUM_RECENT, NUM_EXPENSIVE = (8, 3)  # recent frames; how many must be expensive to count, so that a start is ignored
IDLE_S = 0.5  # while nothing moves
CPU_SHARE = 0.022  # of one core for drawing; the screen's other threads need some more
SMOOTHING = 0.7  # weight of earlier frames in the average cost of a frame


class FrameRate:
    """The gap until the next frame, from the cost of recent ones."""

    def __init__(self) -> None:
        self._cost_s = 0.0
        self._frame_costs_s: deque[float] = deque([0.0] * NUM_RECENT, maxlen=NUM_RECENT)

    def add_cpu_time(self, cpu_s: float) -> None:
        """Record the CPU time of the screen's thread since the last frame, everything included."""
        cpu_s = min(cpu_s, CPU_SHARE * SLOWEST_S)  # a start or a load must not count as the cost of a frame
        self._cost_s = SMOOTHING * self._cost_s + (1.0 - SMOOTHING) * cpu_s if self._cost_s else cpu_s

    def add_frame_cost(self, cpu_s: float) -> None:
        """Record the CPU time of this frame's text alone, without the keys that were typed."""
        self._frame_costs_s.append(cpu_s)

    def next_gap_s(self, *, is_moving: bool, late_s: float = 0.0) -> float:
        """Return the gap in seconds. late_s: how much the last frame was late, because the terminal is slow."""
        # the cost of the last frame, at most the NUM_EXPENSIVE-th highest of recent ones: counted for one gap only
        expensive_s = min(self._frame_costs_s[-1], sorted(self._frame_costs_s)[-NUM_EXPENSIVE])
        if (affordable_s := expensive_s / CPU_SHARE) > SLOWEST_S:
            return min(affordable_s, LONGEST_S)
        fastest = FASTEST_S if is_moving else IDLE_S
        return min(max(fastest, self._cost_s / CPU_SHARE, 2.0 * late_s), SLOWEST_S)
