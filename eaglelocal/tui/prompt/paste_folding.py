"""Fold long pastes in the prompt to marks such as `[pasted 312 lines]`, and unfold them again.

A mark is edited as a whole: an edit that cuts into it covers all of it, an insertion inside it goes after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from textual.document._document import Document
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult

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
