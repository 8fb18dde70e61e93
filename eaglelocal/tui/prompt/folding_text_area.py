"""A text area in which long pastes are folded to marks, which are edited as a whole."""

from __future__ import annotations

from textual.document._document import Document
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult

from eaglelocal.tui.prompt.paste_folding import PasteFolding


class FoldingTextArea(TextArea):
    """A text area whose `text` has the marks, and `whole_text` and `selected_text` the pastes."""

    def __init__(self, *, placeholder: str, id: str | None = None) -> None:
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
