"""The dialogs of the chat screen: saved conversations; system message and sampling. The model has its own file.

They collect input for `ChatController`. An invalid input is reported in the dialog, which stays open.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Footer, Input, Label, OptionList, TextArea
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.sampling_form import FIELDS, format_field, parse_fields
from eaglelocal.conversation.slash_commands import COMMANDS
from eaglelocal.core.sampling import fill_recommended
from eaglelocal.core.spelling import has_folded_words
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.settings import THEME_NAMES
from eaglelocal.tui.chat.chat_controller import ChatController
from eaglelocal.tui.chat.chat_events import ModelChanged
from eaglelocal.tui.display_options import CHAT_PURPOSES
from eaglelocal.tui.mapped_keys import make_key_rows, map_keys, name_key
from eaglelocal.tui.modal_screens import ClosableScreen, HelpRow
from eaglelocal.tui.transcript.transcript import Transcript


class Dialog(ClosableScreen[None]):
    """A centered box with a title, an error line, and the keys below. Subclasses fill it in `compose_box`."""

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        & #box { width: 74; max-width: 100%; height: auto; max-height: 90%; border: round $primary; padding: 0 1;
                 background: $surface; }
        & #error { color: $text-error; height: auto; }
        & Input { border: none; height: 1; background: $panel; padding: 0; }
        & Input:focus { border: none; background: $boost; text-style: underline; }
        & .row { height: 1; }
        & .row Label { width: 16; color: $text-muted; }
        & .row Input { width: 1fr; }
        & TextArea, & TextArea:focus { height: 5; border: round $secondary; padding: 0; }
        & OptionList, & OptionList:focus { height: auto; max-height: 14; border: none; padding: 0; }
        &:ansi #box { background: ansi_default; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close", id="close"),
        Binding("ctrl+q", "app.quit_from_dialog", "Leave", id="leave", show=False),
    ]
    TITLE_TEXT = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = self.TITLE_TEXT
            yield from self.compose_box()
            yield Label("", id="error")
        yield Footer()

    def on_mount(self) -> None:
        for field in (*self.query(Input), *self.query(TextArea)):
            field.cursor_blink = False  # as in the prompt: blinking redraws every half second

    def compose_box(self) -> ComposeResult:
        raise NotImplementedError

    def compose_row(self, label: str, value: str, hint: str, name: str) -> ComposeResult:
        with Horizontal(classes="row"):
            yield Label(label)
            yield Input(value, placeholder=hint, id=name, select_on_focus=False)

    def apply(self) -> None:
        """Pass the input to the controller. Raises EagleLocalError for an invalid input."""
        raise NotImplementedError

    def on_input_submitted(self) -> None:
        self.action_save()

    def action_save(self) -> None:
        try:
            self.apply()
        except EagleLocalError as error:
            self.show_error(error)
        else:
            self.action_leave()

    def show_error(self, error: EagleLocalError) -> None:
        hint = f" ({error.hint})" if error.hint else ""
        self.query_one("#error", Label).update(f"{error.message}{hint}".replace("[", "\\["))

    def action_move(self, step: int) -> None:
        """Highlight the next row of the list, or the one before, as through a ring."""
        listed = self.query_one(OptionList)
        if count := listed.option_count:
            before = (-1 if step > 0 else 0) if listed.highlighted is None else listed.highlighted
            listed.highlighted = (before + step) % count

    def action_leave(self) -> None:
        if self.is_current:  # not while the app is being left, when a key may still arrive
            self.dismiss(None)


class ListSearch(Input):
    """The field that filters a dialog's list; the arrows move through the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "screen.move(-1)", "", show=False),
        Binding("down", "screen.move(1)", "", show=False),
    ]


class ConversationSearch(ListSearch):
    """The search field, in which keys of the list of conversations work too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.open", "", show=False),
        Binding("delete", "screen.delete", "Delete"),
        Binding("ctrl+e", "screen.export", "Export"),
    ]


class ConversationsDialog(Dialog):
    """A list of saved conversations, to open, rename, delete or export as Markdown.

    Letters search in names and texts, which are read on a thread.
    """

    TITLE_TEXT = "Conversations"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "rename", "Rename", id="rename"),
        Binding("delete", "delete", "Delete", id="delete", tooltip="asks again"),
        Binding("ctrl+e", "export", "Export", id="export", tooltip="as Markdown, into this folder"),
    ]

    def __init__(self, folder: Path, controller: ChatController) -> None:
        super().__init__()
        self._folder, self._controller = folder, controller
        self._entries: Sequence[conversation_file.SavedConversation] = ()
        self._names: list[str] = []  # that are shown
        self._texts: dict[str, str] = {}  # by name, with it and with folded case
        self._to_delete = ""  # name; a second press deletes it

    def compose_box(self) -> ComposeResult:
        entries = self._entries = conversation_file.list_conversations(self._folder)
        self._names = [entry.name for entry in entries]
        self._texts = {name: name.casefold() for name in self._names}
        yield ConversationSearch(placeholder="type to search names and texts", id="search", select_on_focus=False)
        yield OptionList(*(Option(_format_entry(entry)) for entry in entries), markup=False)
        yield Label("no conversation is saved yet" if not entries else "enter opens one", id="about")
        yield from self.compose_row("new name", "", "", "name")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(".row").display = False
        self.query_one(OptionList).highlighted = 0 if self._names else None
        self.run_worker(self._read_texts, thread=True)

    def _read_texts(self) -> None:
        worker, names = get_current_worker(), [entry.name for entry in self._entries]
        for name, text in conversation_file.read_search_texts(self._folder, names):
            if worker.is_cancelled:
                return
            self._texts[name] += f"\n{text}"
        if not worker.is_cancelled:
            self.app.call_from_thread(self._search_texts)

    def _search_texts(self) -> None:
        """Repeat the search for words that were typed before the texts were loaded."""
        if self.is_open and self.query_one("#search", Input).value:
            self._refill()

    @on(Input.Changed, "#search")
    def _refill(self) -> None:
        """Show the conversations that have every typed word in their name or text."""
        chosen, typed = self._selected, self.query_one("#search", Input).value
        entries = [each for each in self._entries if has_folded_words(self._texts[each.name], typed)]
        self._names, listed = [each.name for each in entries], self.query_one(OptionList)
        listed.clear_options()
        listed.add_options([Option(_format_entry(each)) for each in entries])
        kept = self._names.index(chosen) if chosen in self._names else 0
        listed.highlighted = kept if self._names else None

    @property
    def _selected(self) -> str:
        index = self.query_one(OptionList).highlighted
        return "" if index is None or index >= len(self._names) else self._names[index]

    def on_option_list_option_selected(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        if self._selected:
            self._controller.run_command(f"/load {self._selected}")
            self.dismiss(None)

    def on_option_list_option_highlighted(self) -> None:
        self._to_delete = ""

    def action_rename(self) -> None:
        if self._selected:
            name = self.query_one("#name", Input)
            self.query_one(".row").display, name.value = True, self._selected
            name.focus()

    def apply(self) -> None:
        name = self.query_one("#name", Input).value
        target = conversation_file.find_path(self._folder, name)
        if target.exists() and target.stem != self._selected:
            raise UsageError(f"there is already a conversation named {target.stem!r}")
        old = self._selected
        self._controller.send(lambda tasks: tasks.rename(old, name))
        self._texts[target.stem] = f"{target.stem.casefold()}\n{self._texts.get(old, '')}"
        self._entries = [replace(each, name=target.stem) if each.name == old else each for each in self._entries]
        self._names[self._names.index(old)] = target.stem  # it stays highlighted
        self._refill()

    def action_leave(self) -> None:
        """Go back from the name to the list, and from there to the chat."""
        if not (row := self.query_one(".row")).display:
            super().action_leave()
            return
        row.display = False
        self.query_one("#search").focus()

    def action_delete(self) -> None:
        name = self._selected
        if name and name == self._to_delete:
            self._controller.run_command(f"/delete {name}")
            self._entries = [each for each in self._entries if each.name != name]
            self._refill()
        elif name:
            self._to_delete = name
            self.show_error(UsageError(f"press delete again to delete {name!r} for good"))

    def action_export(self) -> None:
        if name := self._selected:
            self._controller.send(lambda tasks: tasks.export_markdown(name))
            self.dismiss(None)


def _format_entry(entry: conversation_file.SavedConversation) -> str:
    when = datetime.datetime.fromtimestamp(entry.modified_at).strftime("%Y-%m-%d %H:%M")
    return f"{when}  {entry.name}"


class SettingsDialog(Dialog):
    """A form for the system message and the sampling; unset values fall back to the model's recommended ones."""

    TITLE_TEXT = "System message and sampling"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "save", "Save", id="save", priority=True)]

    def __init__(self, model: ModelChanged, controller: ChatController, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript
        self._params, self._system, self._controller = model.params, model.system, controller
        self._shown = fill_recommended(model.params, model.model.info.sampling)

    def compose_box(self) -> ComposeResult:
        system = TextArea(self._system, id="system", tab_behavior="focus")
        system.border_title = "system message"
        yield system
        for field in FIELDS:
            yield from self.compose_row(field.label, format_field(self._shown, field), field.unset, field.name)
        yield from self.compose_row("figures", "on" if self._transcript.has_figures else "off", "on, or off", "figures")

    def apply(self) -> None:
        values = {field.name: self.query_one(f"#{field.name}", Input).value for field in FIELDS}
        params = parse_fields(self._params, values, self._shown)
        figures = self.query_one("#figures", Input).value.strip()
        if figures not in ("on", "off"):
            raise UsageError(f"figures must be on or off, not {figures!r}")
        self._transcript.has_figures = figures == "on"
        system = self.query_one("#system", TextArea).text.strip()
        self._controller.send(lambda tasks: tasks.change_settings(params, system))


class ThemeDialog(Dialog):
    """A list of themes beside the chat, which shows the highlighted one; leaving it brings the theme before back."""

    TITLE_TEXT = "Theme"
    DEFAULT_CSS = """
    ThemeDialog {
        align: right bottom; background: transparent;
        & #box { width: 28; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._before = self.app.theme

    def compose_box(self) -> ComposeResult:
        themes = OptionList(*(Option(name, id=name) for name in THEME_NAMES), markup=False)
        themes.highlighted = THEME_NAMES.index(self._before)
        yield themes
        yield Label("enter keeps it", id="about")

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.app.theme = event.option_id or self._before

    def action_leave(self) -> None:
        self.app.theme = self._before
        super().action_leave()

    async def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(None)
        await self.run_action(f"app.choose_theme({event.option_id!r})")


# ---- chat keys: the keys of the chat screen, with the user's own in place: as the help lists them, and as hints name
# them
HINT_NAMES: Mapping[str, str] = {"escape": "esc"}  # hints are short


class ChatKeys:
    """The bindings of the prompt and of the app by key: a key that both have is the prompt's."""

    def __init__(
        self, of_prompt: Mapping[str, Binding], of_app: Sequence[BindingType], keys: Mapping[str, str]
    ) -> None:
        """keys: binding id -> comma-separated keys, in place of the default ones."""
        rest = {
            key: binding for key, binding in map_keys(of_app, keys).items() if binding.priority or key not in of_prompt
        }
        self._bindings = {**of_prompt, **rest}

    def help_rows(self) -> list[HelpRow]:
        """Return a row for the keys of each action."""
        return make_key_rows(self._bindings, CHAT_PURPOSES)

    def hint(self, *names: str) -> str:
        """Return the first key of each action, by the ids of their bindings: `ctrl+d or ctrl+q`."""
        firsts = (next((key for key, each in self._bindings.items() if each.id == name), "") for name in names)
        return " or ".join(HINT_NAMES.get(key, name_key(key)) for key in firsts if key)


def list_command_rows() -> list[HelpRow]:
    """Return a row of the help for each slash command."""
    return [HelpRow(f"{name} {each.arguments}".rstrip(), each.purpose, "commands") for name, each in COMMANDS.items()]
