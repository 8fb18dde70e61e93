"""Where questions are typed: grows with the text, sends with Enter, walks through what was asked before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, cast

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.keys import Keys
from textual.message import Message
from textual.widgets import TextArea

from eaglelocal.talk.question_history import QuestionHistory
from eaglelocal.talk.slash import COMMANDS
from eaglelocal.tui.rows import harmless

QUOTES = '"""'
# What most terminals send for alt+enter, and some were told to send for shift+enter. Textual reads enter alone.
cast(dict[str, object], ANSI_SEQUENCES_KEYS)["\x1b\r"] = (Keys.ControlJ,)


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
        Binding("shift+enter,alt+enter,ctrl+j", "newline", "", id="newline", show=False),
        Binding("up", "older", "", id="older", show=False),
        Binding("down", "newer", "", id="newer", show=False),
        Binding("tab", "complete", "", id="complete", show=False),
        Binding("ctrl+d", "delete_or_leave", "", id="delete_or_leave", show=False),
        Binding("ctrl+c,super+c", "app.interrupt", "", id="interrupt", show=False),
        Binding("ctrl+z", "app.suspend_process", "", id="suspend", show=False),
        Binding("ctrl+underscore", "undo", "", id="undo", show=False),
        Binding("pageup", "app.page_up", "", id="page_up", show=False),
        Binding("pagedown", "app.page_down", "", id="page_down", show=False),
    ]

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
            for binding in (*TextArea.BINDINGS, *self.BINDINGS)
            if isinstance(binding, Binding)
            for key in keys.get(binding.id or "", binding.key).split(",")
        }
        self._waiting: tuple[str, ...] = ()
        self._told = ""
        self.cursor_blink = False  # every redraw costs, and nobody types all the time

    async def _on_key(self, event: events.Key) -> None:
        """Keys that do something here do it at once, in the order in which they were typed.

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
        """The rest of the only command that begins so; below the text, which ones there are, or what waits."""
        matches = self._matches()
        self.suggestion = matches[0][len(self.text) :] if len(matches) == 1 else ""
        if matches:
            self._tell(_usage(matches[0]) if len(matches) == 1 else " ".join(matches))
        else:
            self._tell(f"waiting: {'; '.join(self._waiting)}" if self._waiting else "")

    def show_waiting(self, questions: tuple[str, ...]) -> None:
        """What was sent, and is not in the transcript yet."""
        if questions != self._waiting:
            self._waiting = questions
            self.update_suggestion()

    def _matches(self) -> list[str]:
        text = self.text
        return [name for name in COMMANDS if name.startswith(text)] if text.startswith("/") else []

    def _tell(self, text: str) -> None:
        if text != self._told:  # each change of a title draws all of this
            self._told = text
            self.border_subtitle = Content(harmless(text.replace("\n", " "))) if text else None

    def action_submit(self) -> None:
        """Sends, unless the text says that it goes on: by a backslash, or by quotes that are still open."""
        row, column = self.cursor_location
        if self.document.get_line(row)[:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
        elif self.text.lstrip().startswith(QUOTES) and self.text.count(QUOTES) == 1:
            self.insert("\n")
        else:
            self._send(_without_quotes(self.text).strip("\n"))

    def _send(self, text: str) -> None:
        if text.strip():
            self._history.add(text)
            self.load_text("")
            self.post_message(self.Submitted(text))

    def action_newline(self) -> None:
        self.insert("\n")

    def action_complete(self) -> None:
        matches, typed = self._matches(), len(self.text)
        if len(matches) == 1:
            self.insert(matches[0][typed:] + (" " if COMMANDS[matches[0]].takes else ""))
        elif matches:
            self.insert(os.path.commonprefix(matches)[typed:])  # noqa: RUF071 # no paths: characters are meant

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


def _usage(name: str) -> str:
    return f"{name} {COMMANDS[name].takes}".rstrip() + f": {COMMANDS[name].purpose}"


def _without_quotes(text: str) -> str:
    """A text between triple quotes; only the outermost, for code has them too."""
    inner = text.strip()
    is_quoted = inner.count(QUOTES) == 2 and inner.startswith(QUOTES) and inner.endswith(QUOTES)
    return inner[len(QUOTES) : -len(QUOTES)] if is_quoted else text
