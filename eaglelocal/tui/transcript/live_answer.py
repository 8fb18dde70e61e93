"""An answer while it grows: pieces in from any thread, entries out on the screen's thread, finished ones only once.

Does not know widgets. Only the last block of Markdown is returned repeatedly, so a long answer costs no more than a
short one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from eaglelocal.core.events import TextPiece
from eaglelocal.tui.transcript.entries import EntryKind, TranscriptEntry


class LiveAnswer:
    """A growing answer. `push` is quick and safe from any thread; everything else is for one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: list[TextPiece] = []
        self.has_begun = False
        self._text, self._mask = "", b""  # of the blocks that may still change
        self._num_whole_chars = 0  # characters of whole lines, when it was last cut into blocks
        self._thought = ""

    def push(self, pieces: Iterable[TextPiece]) -> None:
        with self._lock:
            self._pieces.extend(pieces)
            self.has_begun = True

    @property
    def has_pieces(self) -> bool:
        return bool(self._pieces)

    def advance(self) -> tuple[list[TranscriptEntry], list[TranscriptEntry]]:
        """Return the entries finished since the last call, and those that may still change."""
        with self._lock:
            pieces, self._pieces = self._pieces, []
        self._thought += "".join(piece.reasoning for piece in pieces)
        self._text += "".join(piece.text for piece in pieces)
        self._mask += b"".join((b"\1" if piece.drafted else b"\0") * len(piece.text) for piece in pieces)
        if not self._text.strip():
            return [], self._thought_entries()
        return self._thought_entries(end=True) + self._finished_blocks(), self._block(len(self._text))

    def _thought_entries(self, *, end: bool = False) -> list[TranscriptEntry]:
        """Return the thoughts so far, which may change until the answer's text begins; `end`: it has begun."""
        thought = self._thought
        if end:
            self._thought = ""
        return [TranscriptEntry(EntryKind.THOUGHT, thought)] if thought.strip() else []

    def _finished_blocks(self) -> list[TranscriptEntry]:
        """Return an entry for each finished block, so that it looks the same however much came at once.

        Only whole lines are cut: `#` begins a heading, `#tag` continues the paragraph.
        """
        num_whole = self._text.rfind("\n") + 1
        if num_whole == self._num_whole_chars:  # no line has been completed
            return []
        whole = self._text[:num_whole]
        from eaglelocal.tui.transcript.markdown_rows import measure_blocks

        finished = [entry for length in measure_blocks(whole)[:-1] for entry in self._take_block(length)]
        self._num_whole_chars = self._text.rfind("\n") + 1
        return finished

    def _take_block(self, length: int) -> list[TranscriptEntry]:
        block = self._block(length)
        self._text, self._mask = self._text[length:], self._mask[length:]
        return block

    def _block(self, length: int) -> list[TranscriptEntry]:
        return [TranscriptEntry(EntryKind.ANSWER, self._text[:length], self._mask[:length])] if length else []
