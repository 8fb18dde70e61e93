"""The input field for questions: grows with the text, sends with Enter, and recalls earlier questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar, cast

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.document._document import Document
from textual.keys import Keys
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult, Selection

from eaglelocal.conversation.added_file import (
    escape_mentions,
    find_escaped_mentions,
    find_mentions,
    names_file,
    read_added_file,
)
from eaglelocal.conversation.pictures import find_dropped_pictures
from eaglelocal.conversation.question_history import HistorySearch, QuestionHistory
from eaglelocal.conversation.slash_commands import is_command
from eaglelocal.errors import EagleLocalError
from eaglelocal.tui.chat.menu_rows import MenuRow, MenuSources
from eaglelocal.tui.chat.prompt_menu import PromptMenu
from eaglelocal.tui.chat.start_list import StartList
from eaglelocal.tui.chat.text_marks import MAX_CHARS, TextMarks, estimate_tokens
from eaglelocal.tui.mapped_keys import map_keys
from eaglelocal.tui.panel.panel_text import format_count

COLORS = re.compile(r"\x1b\[[0-9;:]*m")  # as in what a terminal's recorder wrote
WARNING = "$text-warning"  # the style of a warning
SEARCH_HELP = "press again for an older one, enter to take it, esc to cancel"
# Most terminals send this for alt+enter, and some are set up to send it for shift+enter. Textual takes it for enter.
cast(dict[str, object], ANSI_SEQUENCES_KEYS)["\x1b\r"] = (Keys.ControlJ,)


class FoldingTextArea(TextArea):
    """A text area whose `text` has the marks, and `whole_text` and `selected_text` the pastes."""

    def __init__(self, *, placeholder: str, id: str) -> None:
        super().__init__(
            id=id, soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False, placeholder=placeholder
        )
        self._marks = TextMarks(lambda text: self.count_tokens(text))
        self.count_tokens: Callable[[str], int] = estimate_tokens

    @property
    def whole_text(self) -> str:
        return self._marks.unfold(self.text)

    @property
    def selected_text(self) -> str:
        return self._marks.unfold(super().selected_text)

    def edit(self, edit: Edit) -> EditResult:
        """Apply an edit, widened to whole marks.

        Textual deletes a line up to the start of the next one, which does not exist after the last line.
        """
        index, location = self._lines.get_index_from_location, self._lines.get_location_from_index
        top, bottom = (min(place, self.document.end) for place in (edit.top, edit.bottom))
        begin, end = self._marks.widen(self.text, index(top), index(bottom))
        edit.from_location, edit.to_location = location(begin), location(end)
        return super().edit(edit)

    def _recompute_cursor_offset(self) -> None:
        """Leave out a cursor below the last line: undo and redo shorten the text first, then move the cursor."""
        if self.cursor_location[0] < self.document.line_count:
            super()._recompute_cursor_offset()  # type: ignore[no-untyped-call]

    def action_cut(self) -> None:
        """Move the selection, or without one the line, to the clipboard, with the pastes of its marks."""
        result = self._delete_cursor_line() if self.selection.is_empty else self._delete_via_keyboard(*self.selection)
        if result is not None and result.replaced_text:
            self.app.copy_to_clipboard(self._marks.unfold(result.replaced_text))

    def insert_pasted(self, text: str) -> None:
        """Insert a text at the cursor: folded if it is long, else with a backslash before what would add a file."""
        folded = self._marks.fold(text)
        keeps = folded != text or is_command(self.text)
        self.replace(folded if keeps else escape_mentions(text), *self.selection)

    def insert_file(self, path: str, begin: int | None = None, end: int | None = None) -> None:
        """Insert the mark of a text file at the cursor, in place of the text from an index on. Raises UsageError.

        end: the index up to which the text is replaced; None: the cursor, with a blank after the mark.
        """
        file = read_added_file(path)
        mark = self._marks.mark(f"{file.quoted}\n", file.label)  # nothing may follow the fence on its line
        mark += " " if end is None else ""
        self.replace(mark, *self._locate(begin, end))

    def _locate(self, *indexes: int | None) -> list[tuple[int, int]]:
        """Return the places of indexes in the text; None: the cursor's."""
        locate = self._lines.get_location_from_index
        return [self.cursor_location if index is None else locate(index) for index in indexes]

    def get_cursor_line_start_location(self, smart_home: bool = False) -> tuple[int, int]:
        """Return the start of the whole line, as in a shell: a wrapped line is one line."""
        return self.cursor_location[0], 0

    def get_cursor_line_end_location(self) -> tuple[int, int]:
        row, _ = self.cursor_location
        return row, len(self.document.get_line(row))

    def load_folded(self, text: str) -> None:
        """Show another text, with known pastes folded, and the cursor at its end."""
        self.load_text(self._marks.fold_known(text))
        self.move_cursor(self.document.end)

    @property
    def _lines(self) -> Document:
        assert isinstance(self.document, Document)
        return self.document


class PromptInput(FoldingTextArea):
    """A text area that shows one to eight lines of a text of any length."""

    DEFAULT_CSS = """
    PromptInput {
        height: auto; max-height: 10; min-height: 3; border: round $secondary; padding: 0 1; background: $background;
        &:focus { border: round $primary; }
        &:ansi { background: ansi_default; }
    }
    """
    # bindings that only make sense while typing have no description: the palette lists the others
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Send", id="send", key_display="enter"),
        Binding("shift+enter,alt+enter,ctrl+j", "newline", "", id="newline", show=False),
        Binding("up", "older", "", id="older", show=False),
        Binding("alt+up", "app.move_turn(-1)", "", id="stand_up", show=False),
        Binding("alt+down", "app.move_turn(1)", "", id="stand_down", show=False),
        Binding("down", "newer", "", id="newer", show=False),
        Binding("ctrl+r", "search", "Find", id="search", tooltip="find an earlier question"),
        # replaces TextArea's f6, which selects a line
        Binding(
            "f6", "app.run_command('/retry')", "Retry", id="retry", show=False, tooltip="ask the last question again"
        ),
        # replaces TextArea's f7, which selects everything
        Binding("f7", "app.run_command('/undo')", "", id="undo_summary", show=False),
        Binding("tab", "complete", "", id="complete", show=False),
        Binding("ctrl+d", "delete_or_leave", "", id="delete_or_leave", show=False),
        Binding("ctrl+c,super+c", "app.interrupt", "", id="interrupt", show=False),
        Binding("ctrl+z", "app.suspend_process", "", id="suspend", show=False),
        Binding("ctrl+underscore", "undo", "", id="undo", show=False),
        Binding("pageup", "app.scroll_chat('page_up')", "", id="page_up", show=False),
        Binding("pagedown", "app.scroll_chat('page_down')", "", id="page_down", show=False),
    ]

    class Submitted(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Dropped(Submitted):
        """Pictures were dropped; `text` has their paths."""

    class FileRefused(Message):
        """A file could not be added to the question."""

        def __init__(self, error: EagleLocalError) -> None:
            super().__init__()
            self.error = error

    def __init__(
        self, history: QuestionHistory, keys: Mapping[str, str], sources: MenuSources, start: StartList
    ) -> None:
        """keys: binding id -> comma-separated keys, in place of the default ones. sources: of the menu over it.

        start  the list on an empty screen, to which keys go while nothing is typed
        """
        super().__init__(id="prompt", placeholder="Ask something; / begins a command, @ adds a file")
        self._history = history
        self.menu, self.start = PromptMenu(sources), start
        self._search: HistorySearch | None = None
        self._title: str | None = None  # to show again after a search
        self.mapped_keys = map_keys((*TextArea.BINDINGS, *self.BINDINGS), keys)
        self.take_key: Callable[[events.Key | events.Paste], bool] = lambda event: False  # the keys of a turn
        self._hint, self._hint_style = "", ""
        self._waiting: tuple[str, ...] = ()
        self._subtitle = ""
        self.cursor_blink = False  # each blink would cost a redraw

    async def _on_key(self, event: events.Key) -> None:
        """Run the actions of keys at once, in the order in which they were typed.

        Textual runs bindings on other queues: in a line that arrives at once, Enter would overtake the text before it.
        """
        if self.take_key(event):
            event.stop()
            event.prevent_default()
            return
        binding = self.mapped_keys.get(event.key)
        action = None if binding is None else binding.action
        if self._search is not None:
            is_done = self._apply_to_search(self._search, event, action)
        else:
            is_done = self._apply_to_menu(event, action) or self._apply_to_start(event, action)
        if action is not None or is_done:
            event.stop()
            event.prevent_default()
        if action is not None and not is_done:
            await self.run_action(action)

    def replace_text(self, text: str) -> None:
        """Show another text, with the cursor at its end."""
        self._end_search()
        self.load_folded(text)

    # ---- pastes
    async def _on_paste(self, event: events.Paste) -> None:
        self.take_key(event)
        event.prevent_default()
        event.stop()
        self._paste(event.text)

    def action_paste(self) -> None:
        self._paste(self.app.clipboard)

    def _paste(self, text: str) -> None:
        """Insert a paste without its colors, attach pictures dropped as paths, or extend a search.

        Line ends become line feeds.
        """
        text = COLORS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        if self._search is not None:
            self._search.extend(text.partition("\n")[0])
            self._show_search(self._search)
        elif self._is_drop(text):
            self.post_message(self.Dropped(text.strip()))
        else:
            self.insert_pasted(text)

    def _is_drop(self, text: str) -> bool:
        """Return whether a paste is the paths of dropped pictures; after a command a path is text."""
        return not self.text.startswith("/") and bool(find_dropped_pictures(text))

    # ---- earlier questions
    def action_search(self) -> None:
        self._search, self._title = HistorySearch(self._history, self.text), self.border_title
        self._show_search(self._search)

    def _apply_to_search(self, search: HistorySearch, event: events.Key, action: str | None) -> bool:
        """Apply a key to a search. Return False if the key keeps its usual meaning."""
        if event.key == "escape" or action == "app.interrupt":
            self.replace_text(search.typed)
        elif action == "submit":
            self._end_search()
        elif action in ("search", "older"):
            search.find_older()
        elif action == "newer":
            search.show_newer()
        elif action == "delete_left":
            search.erase()
        elif action is None and event.is_printable:
            search.extend(event.character or "")
        else:
            if action is not None:
                self._end_search()
            return False
        if self._search is not None:
            self._show_search(search)
        return True

    def _show_search(self, search: HistorySearch) -> None:
        """Show the match, with the words of the search selected."""
        self.load_text(search.shown)
        begin = search.shown.lower().find(search.words.lower())
        end = begin + len(search.words)
        if begin >= 0 and end <= len(self.text):
            location = self._lines.get_location_from_index
            self.selection = Selection(location(begin), location(end))
        self.border_title = Content(search.title)
        self._show_subtitle(SEARCH_HELP)

    def _end_search(self) -> None:
        """End a search; the text it shows stays, to be changed or sent."""
        if self._search is not None:
            self._search, self.border_title = None, Content(self._title) if self._title else None
            self.move_cursor(self.document.end)
            self._show_waiting()

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

    # ---- the menu
    def _apply_to_menu(self, event: events.Key, action: str | None) -> bool:
        """Apply a key to the menu. Return False if the key keeps its usual meaning."""
        row = self.menu.highlighted
        if not self.menu.is_open:
            return False
        if event.key == "escape":
            self.menu.close(self._text_before_cursor)
        elif action in ("older", "newer") and self.menu.rows:
            self.menu.move(-1 if action == "older" else 1)
        elif action == "submit" and row is not None and row.text.strip() != self.text:
            self.choose_row(row, sends=True)
        else:
            return False
        return True

    def _apply_to_start(self, event: events.Key, action: str | None) -> bool:
        """Apply a key to the list of an empty screen. Return False if the key keeps its usual meaning."""
        row = self.start.highlighted
        if self.text or not self.start.is_open or self._history.is_recalling:
            return False
        if action == "newer" or (action == "older" and row is not None):
            self.start.move(1 if action == "newer" else -1)
        elif action == "submit" and row is not None:
            self.start.post_message(StartList.Chosen(row))
        else:
            return False
        return True

    def choose_row(self, row: MenuRow, *, sends: bool) -> None:
        """Put a row in place of the typed part; a file is added, and a whole command is sent if `sends`."""
        begin = self.menu.begin
        if row.path and row.is_complete:
            self.add_file(row.path, begin)
            return
        self.replace(row.text, self._lines.get_location_from_index(begin), self.cursor_location)
        if sends and row.is_complete:
            self.action_submit()

    def add_file(self, path: str, begin: int | None = None, end: int | None = None) -> bool:
        """Attach a picture, or insert the mark of a text file, as `insert_file`. Return whether the text can be sent.

        Not at once with a picture: its path comes back if the model reads none.
        """
        try:
            if not find_dropped_pictures(path):
                self.insert_file(path, begin, end)
                return True
            self.replace("", *self._locate(begin, end))
            self.post_message(self.Dropped(path))
        except EagleLocalError as error:
            if end is not None and not (error.hint and names_file(path)):  # named in a question
                error.hint = f"\\{self.text[begin:end]} is sent as text"
            self.menu.close(self._text_before_cursor)
            self.post_message(self.FileRefused(error))
        return False

    @property
    def _text_before_cursor(self) -> str:
        return self.text[: self._lines.get_index_from_location(self.cursor_location)]

    def update_suggestion(self) -> None:
        """Show the menu for the typed text, and after the text the rest of the only row that fits."""
        if self._search is None and self.is_mounted:
            self.menu.show_for(self._text_before_cursor)
            rows = self.menu.rows
            is_only = len(rows) == 1 and rows[0].text.startswith(self.text)
            self.suggestion = rows[0].text[len(self.text) :].rstrip() if is_only else ""

    # ---- above and below the text
    def show_title(self, text: str) -> None:
        """Show a title above the text; during a search, once it has ended."""
        title = text or None
        if self._search is not None:
            self._title = title
        else:
            self.border_title = Content(title) if title else None

    def show_hint(self, text: str, free: int | None) -> None:
        """Show a text below the prompt, in place of waiting questions; "" removes it.

        free: tokens of the context that are not used; a long text that needs more is warned of instead
        """
        style, whole = "", "" if free is None else self.whole_text
        if free is not None and len(whole) > MAX_CHARS and (count := self.count_tokens(whole)) > free:
            text, style = f"~{format_count(count)} tokens, more than the {format_count(free)} that are free", WARNING
        if text != self._hint:
            self._hint, self._hint_style = text, style
            self._show_waiting()

    def show_waiting(self, questions: tuple[str, ...]) -> None:
        """Show below the text the questions that were sent and have not started yet."""
        if questions != self._waiting:
            self._waiting = questions
            self._show_waiting()

    def _show_waiting(self) -> None:
        if self._search is None:
            waiting = f"waiting: {'; '.join(self._waiting)}" if self._waiting else ""
            self._show_subtitle(self._hint or waiting, self._hint_style)

    def _show_subtitle(self, text: str, style: str = "") -> None:
        if text != self._subtitle:  # each change of a subtitle redraws the whole widget
            self._subtitle = text
            self.border_subtitle = Content.styled(text.replace("\n", " "), style) if text else None

    # ---- keys
    def action_submit(self) -> None:
        """Send the text, or add a line after a backslash, unless that makes text of a path."""
        row, column = self.cursor_location
        line = self.document.get_line(row)
        if line[:column].endswith("\\") and not line[column:].startswith("@"):
            self.replace("\n", (row, column - 1), (row, column))
        elif self._add_mentions():
            self._send(self.whole_text.strip("\n"))

    def _add_mentions(self) -> bool:
        r"""Add the files that a question names after `@`, and take the backslash off `\@NAME`.

        Return False if it cannot be sent yet.
        """
        if is_command(self.text):
            return True
        if not all([self.add_file(path, begin, end) for begin, end, path in reversed(find_mentions(self.text))]):
            return False
        for begin in reversed(find_escaped_mentions(self.text)):
            self.replace("", *self._locate(begin, begin + 1))
        return True

    def _send(self, text: str) -> None:
        if text.strip():
            self._history.add(text)
            self.load_text("")
            self.post_message(self.Submitted(text))

    def keep_unsent(self) -> None:
        """Keep a question that was not sent among the earlier ones, so that it can be recalled at the next start."""
        if self._search is None and self.text.strip():
            self._history.add(self.whole_text.strip("\n"))

    def action_newline(self) -> None:
        self.insert("\n")

    def action_complete(self) -> None:
        """Take a row of the menu: the highlighted one, or the first."""
        if not self.menu.is_open:
            self.menu.close()  # it no longer stays closed
            self.update_suggestion()
            if len(self.menu.rows) != 1:
                return
        if self.menu.rows:
            self.choose_row(self.menu.highlighted or self.menu.rows[0], sends=False)

    def action_delete_or_leave(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.app.exit(0)
