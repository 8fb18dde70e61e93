"""The chat screen's side of tools: the dialog that asks about a call, and the reviewer that waits for its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Label, OptionList, Static
from textual.widgets.option_list import Option

from eaglelocal.conversation.chat_tools import Permission
from eaglelocal.conversation.conversation import ToolRound
from eaglelocal.conversation.tool_rounds import CallReview
from eaglelocal.tui.chat.chat_events import CallQuestion, Emit, NoteWritten
from eaglelocal.tui.modal_screens import QuestionDialog

CHOICES = {
    Permission.NO.value: "do not run it",
    Permission.ONCE.value: "run it this time",
    Permission.CHAT.value: "run it, and whenever it is called in this conversation",
    Permission.ALWAYS.value: "run it, and always from now on",
}


class ToolDialog(QuestionDialog):
    """A question about a call, with all of its arguments in a box that scrolls; Enter alone means no."""

    BINDINGS = [  # noqa: RUF012 # as in Textual
        Binding("pageup", "scroll_arguments(-1)", "", show=False, priority=True),
        Binding("pagedown", "scroll_arguments(1)", "", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    ToolDialog {
        & > Vertical { width: 76; max-width: 100%; max-height: 100%; }
        & VerticalScroll { height: auto; max-height: 40vh; background: $panel; padding: 0 1; }
        & Static { width: 100%; height: auto; }
        & OptionList { max-width: 100%; width: 100%; margin: 1 0 0 0; min-height: 4; }
    }
    """

    def __init__(self, call: CallReview) -> None:
        super().__init__(f"the model wants to call {call.label}", CHOICES)
        self._arguments = call.arguments

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_subtitle = "enter chooses, esc does not run it"
            yield Label(self._text, markup=False)
            with VerticalScroll(can_focus=False):
                yield Static(self._arguments, markup=False)
            options = OptionList(*(Option(text, id=value) for value, text in CHOICES.items()), markup=False)
            options.highlighted = 0
            yield options

    def action_scroll_arguments(self, pages: int) -> None:
        area = self.query_one(VerticalScroll)
        area.scroll_relative(y=pages * max(area.size.height - 1, 1), animate=False, immediate=True)


class ScreenReviewer:
    """The `CallReviewer` of the screen. It is for the task thread; `cancel`, `close` and `work` are for any."""

    def __init__(self, emit: Emit, go_on: Callable[[ToolRound], None]) -> None:
        """go_on: shows a round, after which the answer goes on."""
        self._emit, self._go_on = emit, go_on
        self._stopped, self._is_closed = threading.Event(), False
        self._answered = threading.Event()
        self._permission = Permission.NO
        self.work = ""  # what is waited for, besides the model

    def reset(self) -> None:
        """Begin with another question."""
        if not self._is_closed:
            self._stopped.clear()

    def cancel(self) -> bool:
        """Stop waiting for a server or a tool. Return True if something was waited for."""
        if self.work:
            self._stopped.set()
        return bool(self.work)

    def close(self) -> None:
        """Stop waiting, and allow nothing from here on."""
        self._is_closed = True
        self._stopped.set()
        self._answered.set()

    def note(self, text: str) -> None:
        self._emit(NoteWritten(text))

    def begin(self, work: str) -> None:
        self.work = work

    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def review(self, call: CallReview) -> Permission:
        self._permission = Permission.NO
        self._answered.clear()
        self._emit(CallQuestion(call, self._answer))
        if not self._is_closed:  # `close` may have come before `clear`
            self._answered.wait()
        return Permission.NO if self._is_closed else self._permission

    def _answer(self, value: str | None) -> None:
        """Take the value of the dialog; None: it was closed without an answer."""
        self._permission = Permission.NO if value is None else Permission(value)
        self._answered.set()

    def show(self, done: ToolRound) -> None:
        self._go_on(done)
