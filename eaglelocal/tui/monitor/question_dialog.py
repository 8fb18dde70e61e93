"""A modal question with a few answers, to choose by arrow and Enter or by mouse: a stray letter decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from eaglelocal.core.records import dataclass

KEYS = "enter chooses, esc goes back"


@dataclass(frozen=True, slots=True)
class DialogChoice:
    """An answer to choose."""

    value: str
    text: str


class QuestionDialog(ModalScreen[str | None]):
    """A modal screen that returns the value of the chosen answer, or None."""

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
        &.-ascii > Vertical { border: ascii $primary; }
    }
    """

    def __init__(
        self,
        text: str,
        choices: Sequence[DialogChoice],
        *,
        is_ascii: bool = False,
        quit_value: str | None = None,
        first: str = "",
    ) -> None:
        """quit_value: the answer that the keys for leaving give; None: they close the question and leave the app.

        first: the value that is highlighted at the beginning; an unknown one highlights the first answer
        """
        super().__init__(classes="-ascii" if is_ascii else None)
        self._text, self._choices, self._quit_value, self._first = text, choices, quit_value, first

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_subtitle = KEYS
            yield Label(self._text, markup=False)
            options = OptionList(*(Option(each.text, id=each.value) for each in self._choices), markup=False)
            values = [each.value for each in self._choices]
            options.highlighted = values.index(self._first) if self._first in values else 0
            yield options

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    async def action_quit(self) -> None:
        if self._quit_value is not None:
            self.dismiss(self._quit_value)
        else:
            await self.run_action("app.quit_from_dialog")
