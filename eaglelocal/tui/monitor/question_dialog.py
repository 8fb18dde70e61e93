"""A modal question with a few answers, to choose by arrow and Enter, by a key of its own, or by mouse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option


@dataclass(frozen=True, slots=True)
class DialogChoice:
    """An answer to choose. `key` chooses it at once; "" for none."""

    value: str
    text: str
    key: str = ""


class QuestionDialog(ModalScreen[str | None]):
    """A modal screen that returns the value of the chosen answer, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Back")]
    DEFAULT_CSS = """
    QuestionDialog {
        align: center middle;
        & > Vertical {
            width: auto; min-width: 36; max-width: 76; height: auto; padding: 0 1;
            border: round $primary; background: $surface;
        }
        & Label { width: auto; max-width: 72; padding: 0 1 1 1; }
        & OptionList { width: auto; min-width: 32; max-width: 72; height: auto; max-height: 14; border: none; }
        & OptionList:focus { border: none; }
        &.-ascii > Vertical { border: ascii $primary; }
    }
    """

    def __init__(self, text: str, choices: Sequence[DialogChoice], *, is_ascii: bool = False) -> None:
        super().__init__(classes="-ascii" if is_ascii else None)
        self._text, self._choices = text, choices

    def compose(self) -> ComposeResult:
        options = [Option(f"{each.key:<2}{each.text}", id=each.value) for each in self._choices]
        with Vertical():
            yield Label(self._text, markup=False)
            yield OptionList(*options, markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def on_key(self, event: events.Key) -> None:
        chosen = next((each for each in self._choices if each.key and each.key == event.character), None)
        if chosen is not None:
            event.stop()
            self.dismiss(chosen.value)
