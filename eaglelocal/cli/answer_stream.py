"""The stream of an answer to stdout, with word wrap for a terminal that would break it anywhere.

A word is shown as it grows; if it reaches the right edge it is erased and written again on the next line. Fenced
code is not wrapped, since people copy it. Runs carry whether they were drafted.

Example, width 10: `a lovely` + ` gar` fills the line, `den` does not fit: go back three cells, erase,
new line, `garden`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import groupby
from typing import TYPE_CHECKING

from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import clean_text

if TYPE_CHECKING:
    from eaglelocal.core.events import TextPiece

FENCE = "```"
ACCEPTED, QUIET, BAD = "32", "2", "31"  # SGR codes: green, faint, red

Run = tuple[str, bool]  # text, and whether it was accepted from a draft


class AnswerStream:
    """The stream of an answer to stdout: on a terminal coloured and wrapped between words, elsewhere unchanged.

    On a terminal the reasoning is shown in faint letters before the answer; elsewhere it is left out.
    """

    def __init__(self, write: Callable[[str], None], *, tint: bool, faint: bool, width: int | None) -> None:
        self._write = write
        self._tint, self._faint = tint, faint
        self._wrap = None if width is None else WordWrap(width)
        self._thoughts = None if width is None else WordWrap(width)
        self._is_thinking = False

    def show(self, pieces: Sequence[TextPiece]) -> None:
        self._think("".join([piece.reasoning for piece in pieces]))
        if self._is_thinking and any(piece.text for piece in pieces):
            self._is_thinking = False
            self._write("\n\n")
        runs = [run for piece in pieces for run in self._runs(piece)]
        grouped = groupby(runs, key=lambda run: run[1] and self._tint)
        texts = [(tinted, "".join(text for text, _ in group)) for tinted, group in grouped]
        self._write("".join(paint(text, ACCEPTED) if tinted else text for tinted, text in texts))

    def _think(self, thought: str) -> None:
        if thought and self._thoughts is not None:
            self._is_thinking = True
            shown = "".join(text for text, _ in self._thoughts.feed(clean_text(thought), False))
            self._write(paint(shown, QUIET) if self._faint else shown)

    def _runs(self, piece: TextPiece) -> list[Run]:
        if self._wrap is None:
            return [(piece.text, piece.drafted)]
        return self._wrap.feed(clean_text(piece.text), piece.drafted)


def paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if text else ""


@dataclass(slots=True)
class WordWrap:
    """The state of one answer's wrapping: the cursor's column and the current word."""

    width: int  # cells to use; a terminal's last cell must stay free, or moving the cursor back miscounts
    column: int = 0
    word: list[Run] = field(default_factory=list)  # one run a character
    line_start: str = ""
    in_code: bool = False

    def feed(self, text: str, drafted: bool) -> list[Run]:
        """Return the text with the control sequences and line breaks to write; those count as not drafted."""
        runs: list[Run] = []
        for char in text:
            runs += self._put(char, drafted)
        return runs

    def _put(self, char: str, drafted: bool) -> list[Run]:
        if char == "\n":
            self._next_line()
        elif char.isspace():
            self.word.clear()
            if self.column >= self.width and not self._is_code:
                return []  # the line ends here, and the next word begins a new one
            self.column += 1
        else:
            return self._letter(char, drafted)
        return [(char, drafted)]

    def _letter(self, char: str, drafted: bool) -> list[Run]:
        if len(self.line_start) < len(FENCE):
            self.line_start += char
        cells, word_cells = _cells(char), sum(_cells(letter) for letter, _ in self.word)
        overflows = self.column + cells > self.width and not self._is_code
        before: list[Run] = []
        if overflows and word_cells < self.column:
            back = f"\x1b[{word_cells}D\x1b[K" if word_cells else ""
            before = [(f"{back}\n", False), *self.word]
            self.column = word_cells
        self.word.append((char, drafted))
        self.column += cells
        return [*before, (char, drafted)]

    @property
    def _is_code(self) -> bool:
        return self.in_code or self.line_start == FENCE

    def _next_line(self) -> None:
        if self.line_start == FENCE:
            self.in_code = not self.in_code
        self.column, self.line_start = 0, ""
        self.word.clear()


def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
