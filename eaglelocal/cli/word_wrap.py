"""Word wrap of streamed text, for a terminal that would break it anywhere.

A word is shown as it grows; if it reaches the right edge it is erased and written again on the next line. Fenced
code is not wrapped, since people copy it. Runs carry whether they were drafted; colouring is up to the caller.

Example, width 10: `a lovely` + ` gar` fills the line, `den` does not fit: go back three cells, erase,
new line, `garden`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import field

from eaglelocal.core.records import dataclass

FENCE = "```"

Run = tuple[str, bool]  # text, and whether it was accepted from a draft


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
