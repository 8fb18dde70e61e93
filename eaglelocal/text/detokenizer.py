"""A streaming detokenizer: tokens to text, one token at a time, without splitting characters.

Bytes that may still become a character are held back. Bytes that cannot are replaced by U+FFFD, exactly as
`bytes.decode(errors="replace")` would do for the whole answer. If the answer ends inside a character, its first bytes
are dropped, as llama-server and vLLM do in streams. Stop strings are handled elsewhere.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # ports imports numpy, which the process that renders templates does without
    from eaglelocal.core.ports import Vocabulary

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Pieces:
    """A cache of the text of each token in a vocabulary. One per model, shared by its requests.

    A piece of whole characters is kept as str, any other as bytes.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: dict[int, str | bytes] = {}

    def __getitem__(self, token: int) -> str | bytes:
        piece = self._known.get(token)
        if piece is None:
            piece = self._known[token] = _whole(self._vocabulary.piece(token))
        return piece


class Detokenizer:
    """The text of one answer. `push` returns final text, `flush` the held-back bytes of a character that cannot
    continue.

    At the end of an answer nothing is flushed, because its last character is incomplete.
    """

    __slots__ = ("_decoder", "_holds", "_pieces")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._decoder = _new_decoder(errors="replace")
        self._holds = False  # the decoder has bytes of an unfinished character

    def push(self, token: int) -> str:
        piece = self._pieces[token]
        if not self._holds and isinstance(piece, str):
            return piece
        text = self._decoder.decode(piece.encode() if isinstance(piece, str) else piece)
        self._holds = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        self._holds = False
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def _whole(piece: bytes) -> str | bytes:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return piece
