"""The list on an empty screen: a model worth downloading, the last conversations, and questions to begin with.

The prompt passes keys to it. It is gone from the first question on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from rich.cells import cell_len
from textual import events
from textual.message import Message
from textual.worker import get_current_worker

from eaglelocal.catalog.reference import EMBEDDED_NAMES
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation_file import SavedConversation
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.amounts import format_age, format_disk
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from eaglelocal.preparation.model_choices import CatalogChoice
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.panel.panel_text import format_tok_s
from eaglelocal.tui.styled_lines import Line, StyledSpan, cut_line, make_line

FindBest = Callable[[ActiveModel], CatalogChoice | None]
STARTERS = (
    "Explain in five sentences why drafting tokens ahead makes a model faster.",
    "Write a Python function that finds duplicate files in a folder, with a test.",
    "Which questions should I ask before I buy a used graphics card?",
)
MAX_CONVERSATIONS = 3
MARK = "> "
EMBEDDED_NOTE = "The embedded model shows how drafts work, but knows little; F5 lists others."
KEYS_NOTE = "down and enter choose, or just type"


@dataclass(frozen=True, slots=True)
class StartRow:
    """A row. `value`: a model's reference, a conversation's name, or a question."""

    kind: Literal["model", "conversation", "question"]
    value: str
    about: str = ""


def make_rows(
    best: CatalogChoice | None, conversations: Sequence[SavedConversation], now: float, max_rows: int
) -> list[StartRow]:
    """Return the rows, the most useful first, as far as there is room. now: seconds since 1970."""
    rows = [] if best is None else [StartRow("model", best.option.reference, describe_best(best))]
    for entry in conversations[:MAX_CONVERSATIONS]:
        rows.append(StartRow("conversation", entry.name, format_age(now - entry.modified_at)))
    rows += [StartRow("question", starter) for starter in STARTERS]
    return rows[: max(max_rows, 0)]


def describe_best(best: CatalogChoice) -> str:
    """Return the size and the predicted speed of a model to download."""
    speed = f", {format_tok_s(best.tok_s)} tok/s predicted" if best.tok_s else ""
    return f"{format_disk(best.option.shape.weights_bytes)}{speed}"


WORDS = {"model": ("download ", ", the best here"), "conversation": ("continue: ", ""), "question": ("", "")}


def format_row(row: StartRow, width: int, *, is_highlighted: bool) -> Line:
    """Return a row in exactly `width` cells; a mark says that it is highlighted."""
    mark = MARK if is_highlighted else " " * len(MARK)
    about = f"  {row.about}" if row.about else ""
    before, after = WORDS[row.kind]
    text = make_line(mark, (before, "quiet"), row.value, (after, "quiet"))
    left = cut_line(text, max(width - cell_len(about), 0))
    line = cut_line((*left, *make_line((about, "quiet"))), width)
    return tuple(StyledSpan(span.text, "selected") for span in line) if is_highlighted else line


class StartList(LinesWidget):
    """The rows, and the one that is highlighted, if any."""

    DEFAULT_CSS = "StartList { height: auto; padding: 0 1; display: none; }"

    class Chosen(Message):
        """A row was chosen."""

        def __init__(self, row: StartRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, folder: Path, find_best: FindBest) -> None:
        """folder: of saved conversations."""
        super().__init__(id="start")
        self._folder, self._find_best = folder, find_best
        self._best: dict[str, CatalogChoice | None] = {}  # what to download, by the model that runs
        self.is_wanted = True  # there is no question on the screen yet
        self._rows: Sequence[StartRow] = ()
        self._note = ""
        self._highlighted: int | None = None

    @property
    def highlighted(self) -> StartRow | None:
        return None if self._highlighted is None else self._rows[self._highlighted]

    @property
    def is_open(self) -> bool:
        return bool(self._rows) and self.display

    def offer(self, model: ActiveModel | None) -> None:
        """List what to begin with; a thread reads it. model: that is loaded; None: none yet."""
        self.run_worker(partial(self._read, model), thread=True, exclusive=True)

    def want(self, *, is_wanted: bool) -> None:
        """Say whether there is a use for the list; if not, it is hidden."""
        self.is_wanted = is_wanted
        if not is_wanted:
            self.show_rows((), "")

    def _read(self, model: ActiveModel | None) -> None:
        worker = get_current_worker()
        saved = conversation_file.list_conversations(self._folder)
        self.app.call_from_thread(self._show, model, None, saved)
        if model is None:
            return
        if model.info.target not in self._best:
            try:
                self._best[model.info.target] = self._find_best(model)
            except (EagleLocalError, OSError):
                self._best[model.info.target] = None  # it is an offer: whoever plans sees the error
        if not worker.is_cancelled:
            self.app.call_from_thread(self._show, model, self._best[model.info.target], saved)

    def _show(self, model: ActiveModel | None, best: CatalogChoice | None, saved: Sequence[SavedConversation]) -> None:
        if self.is_wanted and self.is_attached:
            rows = make_rows(best, saved, time.time(), self.app.size.height // 2 - 4)
            is_embedded = model is not None and model.local_name.partition("@")[0] in EMBEDDED_NAMES
            self.show_rows(rows, EMBEDDED_NOTE if rows and is_embedded else "")

    def show_rows(self, rows: Sequence[StartRow], note: str) -> None:
        """Show rows below a note; the highlighted row stays highlighted."""
        kept = self.highlighted
        self._rows, self._note = rows, note
        self._highlighted = rows.index(kept) if kept is not None and kept in rows else None
        self._draw()

    def move(self, step: int) -> None:
        """Highlight the next row; before the first one and after the last, none."""
        place = (-1 if self._highlighted is None else self._highlighted) + step
        self._highlighted = place if 0 <= place < len(self._rows) else None
        self._draw()

    def _draw(self) -> None:
        self.display = bool(self._rows)
        width = max(self.content_size.width, 1)
        notes = (self._note, KEYS_NOTE) if self._rows else ()
        lines = [cut_line(make_line((note, "quiet")), width) for note in notes if note]
        rows = [
            format_row(row, width, is_highlighted=index == self._highlighted) for index, row in enumerate(self._rows)
        ]
        self.styles.height = len(lines) + len(rows)
        self.show_lines([*lines, *rows])

    def on_resize(self) -> None:
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Choose the row that is clicked."""
        index = event.get_content_offset_capture(self).y - 1 - bool(self._note)
        if 0 <= index < len(self._rows):
            event.stop()
            self.post_message(self.Chosen(self._rows[index]))
