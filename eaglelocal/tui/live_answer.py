"""An answer as it grows: pieces in from any thread, entries out on the screen's, the finished ones only once.

Knows no widget. Only the last block of Markdown is given again and again, so a long answer costs no more than
a short one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from eaglelocal.core.events import Piece
from eaglelocal.tui.entries import Entry, Kind


class LiveAnswer:
    """`push` is quick and safe from any thread; everything else belongs to one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: list[Piece] = []
        self.has_begun = False
        self._text, self._mask = "", b""  # of the blocks that may still change
        self._num_cut_at = 0  # characters of whole lines, when blocks were last looked for
        self._thought = ""

    def push(self, pieces: Iterable[Piece]) -> None:
        with self._lock:
            self._arrived.extend(pieces)
            self.has_begun = True

    @property
    def has_news(self) -> bool:
        return bool(self._arrived)

    def advance(self) -> tuple[list[Entry], list[Entry]]:
        """Entries that stand and were not given before; then those that may change."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
        self._thought += "".join(piece.reasoning for piece in arrived)
        self._text += "".join(piece.text for piece in arrived)
        self._mask += b"".join((b"\1" if piece.drafted else b"\0") * len(piece.text) for piece in arrived)
        if not self._text.strip():
            return [], self._thoughts()
        return self._thoughts(end=True) + self._finished_blocks(), self._block(len(self._text))

    def _thoughts(self, *, end: bool = False) -> list[Entry]:
        """What is thought may change until something is said."""
        thought = self._thought
        if end:
            self._thought = ""
        return [Entry(Kind.THOUGHT, thought)] if thought.strip() else []

    def _finished_blocks(self) -> list[Entry]:
        """An entry for each block, so that it looks the same however much came at once.

        Whole lines only: `#` begins a heading, `#tag` goes on with the paragraph.
        """
        num_whole = self._text.rfind("\n") + 1
        if num_whole == self._num_cut_at:  # the text of the last block has grown, its lines have not
            return []
        whole = self._text[:num_whole]
        from eaglelocal.tui.markdown_rows import block_lengths

        finished = [entry for length in block_lengths(whole)[:-1] for entry in self._cut(length)]
        self._num_cut_at = self._text.rfind("\n") + 1
        return finished

    def _cut(self, length: int) -> list[Entry]:
        block = self._block(length)
        self._text, self._mask = self._text[length:], self._mask[length:]
        return block

    def _block(self, length: int) -> list[Entry]:
        return [Entry(Kind.ANSWER, self._text[:length], self._mask[:length])] if length else []
