"""The overlay of F1: all commands and keys of a screen, which typed words narrow down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from eaglelocal.core.records import dataclass


@dataclass(frozen=True, slots=True)
class HelpRow:
    """A command or keys, and their purpose. Rows of a group stand together."""

    name: str
    purpose: str
    group: str

    def matches(self, words: str) -> bool:
        """Return whether every word occurs in the name or the purpose, whatever their case."""
        text = f"{self.name} {self.purpose}".casefold()
        return all(word in text for word in words.casefold().split())


def find_rows(rows: Sequence[HelpRow], words: str) -> list[HelpRow]:
    return [row for row in rows if row.matches(words)]


class HelpScreen(ModalScreen[None]):
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
        &.-ascii > Vertical { border: ascii $primary; }
        &.-ascii VerticalScroll { scrollbar-size: 0 0; }
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

    def __init__(self, rows: Sequence[HelpRow], *, is_ascii: bool = False) -> None:
        super().__init__(classes="-ascii" if is_ascii else None)
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
        found = find_rows(self._rows, event.value)
        self.query_one(Static).update(make_table(found) if found else Text(f"nothing has {event.value.strip()!r}"))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_scroll_rows(self, number: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=number, animate=False)

    def action_scroll_pages(self, number: int) -> None:
        scrolled = self.query_one(VerticalScroll)
        scrolled.scroll_relative(y=number * max(scrolled.size.height - 1, 1), animate=False)


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
