"""The modal screens of both apps: the help, which typed words narrow down, and a question with a few answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Footer, Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from eaglelocal.core.records import dataclass
from eaglelocal.core.spelling import has_words


class ClosableScreen(ModalScreen[ScreenResultType]):
    """A modal screen that handles no messages of its widgets once it is closed: Textual removes these one by one.

    What threads and timers call checks `is_open`.
    """

    @property
    def is_open(self) -> bool:
        """False once it has been closed, also while its widgets are being removed."""
        return self.is_attached and self in self.app.screen_stack

    async def _dispatch_message(self, message: Message) -> None:
        if message.control is None or self.is_open:  # it is None for Textual's own
            await super()._dispatch_message(message)


@dataclass(frozen=True, slots=True)
class HelpRow:
    """A command or keys, and their purpose. Rows of a group stand together."""

    name: str
    purpose: str
    group: str

    def matches(self, words: str) -> bool:
        """Return whether every word occurs in the name, the purpose or the group, whatever their case."""
        return has_words(f"{self.name} {self.purpose} {self.group}", words)


class HelpScreen(ClosableScreen[None]):
    """A modal list of `HelpRow`s with a field that searches it."""

    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
        & > Vertical {
            width: 90%; max-width: 96; height: 90%; border: round $primary; background: $surface; padding: 0 1;
        }
        & Input, & Input:focus { border: none; height: 1; background: $panel; padding: 0; margin: 0 0 1 0; }
        & VerticalScroll { height: 1fr; }
        & Static { width: 100%; height: auto; }
        &:ansi > Vertical { background: ansi_default; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1", "dismiss(None)", "Close"),
        Binding("up", "scroll_rows(-1)", "", show=False),
        Binding("down", "scroll_rows(1)", "", show=False),
        Binding("pageup", "scroll_pages(-1)", "", show=False),
        Binding("pagedown", "scroll_pages(1)", "", show=False),
        Binding("ctrl+q", "app.quit_from_dialog", "Leave", show=False),
    ]

    def __init__(self, rows: Sequence[HelpRow]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Help"
            yield Input(placeholder="type to search", select_on_focus=False)
            with VerticalScroll(can_focus=False):
                yield Static(make_table(self._rows))
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        field = self.query_one(Input)
        field.cursor_blink = False
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        found = [row for row in self._rows if row.matches(event.value)]
        self.query_one(Static).update(make_table(found) if found else Text(f"nothing has {event.value.strip()!r}"))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_scroll_rows(self, number: int) -> None:
        # at once: what is deferred while the screen is opening is lost
        self.query_one(VerticalScroll).scroll_relative(y=number, animate=False, immediate=True)

    def action_scroll_pages(self, number: int) -> None:
        self.action_scroll_rows(number * max(self.query_one(VerticalScroll).size.height - 1, 1))


def make_table(rows: Sequence[HelpRow]) -> Table:
    """Return the rows in two columns, with an empty line between two groups."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(ratio=2)
    table.add_column(ratio=3)
    for number, row in enumerate(rows):
        if number and row.group != rows[number - 1].group:
            table.add_row("", "")
        table.add_row(Text(row.name, style="bold"), Text(row.purpose))
    table.expand = True
    return table


class QuestionDialog(ClosableScreen[str | None]):
    """A question; it returns the value of the chosen answer, or None.

    An answer is chosen by arrow and Enter or by mouse: a stray letter decides nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back"),
        Binding("ctrl+q,ctrl+c", "quit", "Quit", show=False),
    ]
    DEFAULT_CSS = """
    QuestionDialog {
        align: center middle;
        & > Vertical {
            width: auto; min-width: 36; max-width: 76; height: auto; padding: 0 1;
            border: round $primary; border-subtitle-color: $text-muted; background: $surface;
        }
        & Label { width: auto; max-width: 72; padding: 0 1 1 1; }
        & OptionList { width: auto; min-width: 32; max-width: 72; height: auto; max-height: 14; border: none; }
        & OptionList:focus { border: none; }
    }
    """

    def __init__(
        self, text: str, choices: Mapping[str, str], *, quit_value: str | None = None, first: str = ""
    ) -> None:
        """choices: the texts of the answers by value.

        quit_value: the answer that the keys for leaving give; None: they close the question and leave the app.
        first: the value that is highlighted at the beginning; an unknown one highlights the first answer
        """
        super().__init__()
        self._text, self._choices, self._quit_value, self._first = text, choices, quit_value, first

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_subtitle = "enter chooses, esc goes back"
            yield Label(self._text, markup=False)
            options = OptionList(*(Option(text, id=value) for value, text in self._choices.items()), markup=False)
            values = list(self._choices)
            options.highlighted = values.index(self._first) if self._first in values else 0
            yield options

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    async def action_quit(self) -> None:
        if self._quit_value is not None:
            self.dismiss(self._quit_value)
        else:
            await self.run_action("app.quit_from_dialog")
