"""Where questions are typed: grows with the text, sends with Enter, walks through what was asked before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from eaglelocal.talk.question_history import QuestionHistory
from eaglelocal.talk.slash import COMMANDS


class Prompt(TextArea):
    """A text of one to eight lines on the screen, of any length inside."""

    DEFAULT_CSS = """
    Prompt {
        height: auto; max-height: 10; min-height: 3; border: round $secondary; padding: 0 1; background: $background;
        &:focus { border: round $primary; }
        &:ansi { background: ansi_default; }
    }
    """
    # without a name what only makes sense while typing: the palette lists the others
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Send", id="send", key_display="enter"),
        Binding("shift+enter,ctrl+j", "newline", "", id="newline", show=False),
        Binding("up", "older", "", id="older", show=False),
        Binding("down", "newer", "", id="newer", show=False),
        Binding("tab", "complete", "", id="complete", show=False),
        Binding("ctrl+d", "delete_or_leave", "", id="delete_or_leave", show=False),
        Binding("ctrl+c,super+c", "app.interrupt", "", id="interrupt", show=False),
        Binding("pageup", "app.page_up", "", id="page_up", show=False),
        Binding("pagedown", "app.page_down", "", id="page_down", show=False),
    ]

    AT_ONCE: ClassVar[tuple[str, ...]] = ("send", "newline", "complete", "older", "newer", "delete_or_leave")

    class Submitted(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Leaving(Message):
        """Ctrl-D with nothing typed."""

    def __init__(
        self, history: QuestionHistory, keys: Mapping[str, str], *, placeholder: str, id: str | None = None
    ) -> None:
        """keys: binding id -> keys with commas between them, in the place of the default ones."""
        super().__init__(
            id=id, soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False, placeholder=placeholder
        )
        self._history = history
        self._at_once = {
            key: binding.action
            for binding in self.BINDINGS
            if isinstance(binding, Binding) and binding.id in self.AT_ONCE
            for key in keys.get(binding.id, binding.key).split(",")
        }
        self.cursor_blink = False  # every redraw costs, and nobody types all the time

    async def _on_key(self, event: events.Key) -> None:
        """Keys that act on the text act here, in the order in which they were typed.

        Bindings are looked up on other queues: a line that arrives at once, its Enter included, would overtake itself.
        """
        action = self._at_once.get(event.key)
        if action is not None:
            event.stop()
            event.prevent_default()
            await self.run_action(action)

    def replace_text(self, text: str) -> None:
        """Show another text, the cursor behind it."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    def update_suggestion(self) -> None:
        """The rest of the only command that begins so."""
        text = self.text
        matches = [name for name in COMMANDS if name.startswith(text)] if text.startswith("/") else []
        self.suggestion = matches[0][len(text) :] if len(matches) == 1 else ""

    def action_submit(self) -> None:
        text = self.text.strip("\n")
        if text.strip():
            self._history.add(text)
            self.load_text("")
            self.post_message(self.Submitted(text))

    def action_newline(self) -> None:
        self.insert("\n")

    def action_complete(self) -> None:
        if self.suggestion:
            takes = COMMANDS[self.text + self.suggestion].takes
            self.insert(self.suggestion + (" " if takes else ""))

    def action_older(self) -> None:
        if not self.cursor_at_first_line:
            self.action_cursor_up()
        elif (question := self._history.older(self.text)) is not None:
            self.replace_text(question)

    def action_newer(self) -> None:
        if not self.cursor_at_last_line:
            self.action_cursor_down()
        elif (question := self._history.newer()) is not None:
            self.replace_text(question)

    def action_delete_or_leave(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.Leaving())

    async def _on_paste(self, event: events.Paste) -> None:
        """Line ends of every kind become our own."""
        event.prevent_default()
        event.stop()
        self.replace(event.text.replace("\r\n", "\n").replace("\r", "\n"), *self.selection)
