"""The input field for questions: grows with the text, sends with Enter, and recalls earlier questions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from eaglelocal.conversation.action_context import ListModels
from eaglelocal.conversation.pictures import complete_path, find_dropped_pictures
from eaglelocal.conversation.question_history import HistorySearch, QuestionHistory
from eaglelocal.conversation.slash_commands import COMMANDS
from eaglelocal.core.records import dataclass
from eaglelocal.tui.mapped_keys import map_keys

SEARCH_HELP = "press again for an older one, enter to take it, esc to cancel"
# Most terminals send this for alt+enter, and some are set up to send it for shift+enter. Textual takes it for enter.
cast(dict[str, object], ANSI_SEQUENCES_KEYS)["\x1b\r"] = (Keys.ControlJ,)


class FoldingTextArea(TextArea):
    """A text area whose `text` has the marks, and `whole_text` and `selected_text` the pastes."""

    def __init__(self, *, placeholder: str, id: str) -> None:
        super().__init__(
            id=id, soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False, placeholder=placeholder
        )
        self._folding = PasteFolding()

    @property
    def whole_text(self) -> str:
        return self._folding.unfold(self.text)

    @property
    def selected_text(self) -> str:
        return self._folding.unfold(super().selected_text)

    def edit(self, edit: Edit) -> EditResult:
        """Apply an edit, widened to whole marks.

        Textual deletes a line up to the start of the next one, which does not exist after the last line.
        """
        index, location = self._lines.get_index_from_location, self._lines.get_location_from_index
        top, bottom = (min(place, self.document.end) for place in (edit.top, edit.bottom))
        begin, end = self._folding.widen(self.text, index(top), index(bottom))
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
            self.app.copy_to_clipboard(self._folding.unfold(result.replaced_text))

    def insert_pasted(self, text: str) -> None:
        """Insert a text at the cursor, folded if it is long."""
        self.replace(self._folding.fold(text), *self.selection)

    def load_folded(self, text: str) -> None:
        """Show another text, with known pastes folded, and the cursor at its end."""
        self.load_text(self._folding.fold_known(text))
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

    def __init__(
        self, history: QuestionHistory, keys: Mapping[str, str], list_models: ListModels, *, reads_files: bool
    ) -> None:
        """keys: binding id -> comma-separated keys, in place of the default ones. list_models: to complete `/model`.

        reads_files: complete paths, and attach dropped pictures.
        """
        super().__init__(id="prompt", placeholder="Ask something; / begins a command")
        self._history, self._list_models, self.reads_files = history, list_models, reads_files
        self._search: HistorySearch | None = None
        self._title: str | None = None  # to show again after a search
        self.mapped_keys = map_keys((*TextArea.BINDINGS, *self.BINDINGS), keys)
        self.take_key: Callable[[events.Key | events.Paste], bool] = lambda event: False  # the keys of a turn
        self._hint = ""
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
        is_done = self._search is not None and self._apply_to_search(self._search, event, action)
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
        """Insert a paste, attach pictures dropped as paths, or extend a search. Line ends become line feeds."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if self._search is not None:
            self._search.extend(text.partition("\n")[0])
            self._show_search(self._search)
        elif self._is_drop(text):
            self.post_message(self.Dropped(text.strip()))
        else:
            self.insert_pasted(text)

    def _is_drop(self, text: str) -> bool:
        """Return whether a paste is the paths of dropped pictures; after a command a path is text."""
        return self.reads_files and not self.text.startswith("/") and bool(find_dropped_pictures(text))

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
            self.update_suggestion()

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

    # ---- above and below the text
    def update_suggestion(self) -> None:
        """Suggest the rest of the only command that fits; below the text, show all that fit, or waiting questions."""
        if self._search is not None:
            return
        matches = matching_commands(self.text)
        self.suggestion = matches[0][len(self.text) :] if len(matches) == 1 else ""
        if self._hint:
            self._show_subtitle(self._hint)
        elif matches:
            self._show_subtitle(describe_command(matches[0]) if len(matches) == 1 else " ".join(matches))
        else:
            self._show_subtitle(f"waiting: {'; '.join(self._waiting)}" if self._waiting else "")

    def show_title(self, text: str) -> None:
        """Show a title above the text; during a search, once it has ended."""
        title = text or None
        if self._search is not None:
            self._title = title
        else:
            self.border_title = Content(title) if title else None

    def show_hint(self, text: str) -> None:
        """Show a text below the prompt, in place of suggestions; "" removes it."""
        if text != self._hint:
            self._hint = text
            self.update_suggestion()

    def show_waiting(self, questions: tuple[str, ...]) -> None:
        """Show below the text the questions that were sent and have not started yet."""
        if questions != self._waiting:
            self._waiting = questions
            self.update_suggestion()

    def _show_subtitle(self, text: str) -> None:
        if text != self._subtitle:  # each change of a subtitle redraws the whole widget
            self._subtitle = text
            self.border_subtitle = Content(text.replace("\n", " ")) if text else None

    # ---- keys
    def action_submit(self) -> None:
        """Send the text, or add a line after a backslash."""
        row, column = self.cursor_location
        if self.document.get_line(row)[:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
        else:
            self._send(self.whole_text.strip("\n"))

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
        typed = self.text
        if typed.startswith(IMAGE) and not self.reads_files:
            return
        completion = complete_typed(typed, self._list_models)
        if completion.text:
            self.insert(completion.text)
        if typed.startswith((IMAGE, MODEL)):
            self._show_subtitle(" ".join(completion.choices))

    def action_delete_or_leave(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.app.exit(0)


# ---- command completion: complete slash commands and the paths of pictures while they are typed. Does not know
# widgets
IMAGE, MODEL = "/image ", "/model "


@dataclass(frozen=True, slots=True)
class Completion:
    """The text to add at the end, and the names that still fit, if there are several."""

    text: str
    choices: tuple[str, ...] = ()


def matching_commands(typed: str) -> list[str]:
    """Return the commands that begin with a text; none unless it begins with a slash."""
    return [name for name in COMMANDS if name.startswith(typed)] if typed.startswith("/") else []


def describe_command(name: str) -> str:
    return f"{name} {COMMANDS[name].arguments}".rstrip() + f": {COMMANDS[name].purpose}"


def complete_typed(typed: str, list_models: ListModels) -> Completion:
    """Return the completion of a command, of the path in `/image PATH`, or of the reference in `/model REF`."""
    if typed.startswith(MODEL):
        begun = typed.removeprefix(MODEL)
        models = [name for name in list_models() if name.lower().startswith(begun.lower())]
        same_case = [name for name in models if name.startswith(begun)]
        return Completion(_common_prefix(same_case)[len(begun) :], tuple(models) if len(models) > 1 else ())
    if typed.startswith(IMAGE):
        begun = typed.removeprefix(IMAGE)
        paths = complete_path(begun)
        names = tuple(path.removesuffix("/").rpartition("/")[2] for path in paths)
        return Completion(_common_prefix(paths)[len(begun) :], names if len(names) > 1 else ())
    matches = matching_commands(typed)
    if len(matches) == 1:
        return Completion(matches[0][len(typed) :] + (" " if COMMANDS[matches[0]].arguments else ""))
    return Completion(_common_prefix(matches)[len(typed) :])


def _common_prefix(texts: Sequence[str]) -> str:
    return os.path.commonprefix(texts)  # noqa: RUF071 # of characters, not of path components


# ---- paste folding: fold long pastes to marks such as `[pasted 312 lines]`, and unfold them again
#
# A mark is edited as a whole: an edit that cuts into it covers all of it, an insertion inside it goes after it.
MAX_LINES, MAX_CHARS = 8, 1000  # a longer paste is folded


class PasteFolding:
    """The pastes of a session by their marks, all kept because a deleted mark may be restored."""

    def __init__(self) -> None:
        self._pastes: dict[str, str] = {}  # by mark

    def fold(self, text: str) -> str:
        """Return the mark for a pasted text, or the text itself if it is short."""
        num_lines = text.rstrip("\n").count("\n") + 1
        if num_lines <= MAX_LINES and len(text) <= MAX_CHARS:
            return text
        size = f"{num_lines} lines" if num_lines > 1 else f"{len(text)} characters"
        numbered = (f"[pasted {size}, {number}]" for number in itertools.count(2))
        marks = itertools.chain([f"[pasted {size}]"], numbered)
        mark = next(mark for mark in marks if self._pastes.get(mark, text) == text)
        self._pastes[mark] = text
        return mark

    def unfold(self, text: str) -> str:
        """Return the text with its marks replaced by the pastes."""
        parts, done = [], 0
        for begin, end in self._spans(text):
            parts += [text[done:begin], self._pastes[text[begin:end]]]
            done = end
        return "".join([*parts, text[done:]])

    def fold_known(self, text: str) -> str:
        """Return a whole text with known pastes folded again."""
        for mark, paste in sorted(self._pastes.items(), key=lambda each: -len(each[1])):
            text = text.replace(paste, mark)
        return text

    def widen(self, text: str, begin: int, end: int) -> tuple[int, int]:
        """Return the range `begin:end` widened to whole marks; an empty range inside a mark moves to its end."""
        for first, last in self._spans(text):
            if begin == end and first < begin < last:
                return last, last
            if first < end and begin < last:
                begin, end = min(begin, first), max(end, last)
        return begin, end

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        done = 0
        while found := [(begin, mark) for mark in self._pastes if (begin := text.find(mark, done)) >= 0]:
            begin, mark = min(found)
            done = begin + len(mark)
            yield begin, done
