"""The text of one answer: tokens in, text out, ended by a stop string if the request has any.

Joins the detokenizer and the stop matcher. Sampling, limits and end-of-generation tokens are handled elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eaglelocal.core.tools import CallPart
from eaglelocal.text.detokenizer import Detokenizer, Pieces
from eaglelocal.text.stops.stop_strings import StopMatcher


class AnswerPiece(NamedTuple):
    """The output that one token added: reasoning first, then text, then parts of calls.

    `text` is empty while bytes or a possible stop string are held back.
    """

    text: str
    stop: str | None = None  # the stop string that ended the answer
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    is_over: bool = False  # a call ended the answer
    unread: tuple[str, ...] = ()  # at the end: texts that only began like a call: form and reason

    @property
    def stopped(self) -> bool:
        return self.is_over or self.stop is not None


class AnswerText:
    """The text of one request's answer. After a piece that is `stopped`, further tokens add nothing."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, pieces: Pieces, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(pieces)
        self._stops = StopMatcher(stops)

    def push(self, token: int) -> AnswerPiece:
        return AnswerPiece(*self._stops.push(self._detokenizer.push(token)))

    def finish(self, *, is_cut: bool = False) -> AnswerPiece:
        """Return the text still held back at the end of the answer, cut off or not; empty after a stop string.

        If the answer ends inside a character, its first bytes are dropped.
        """
        return AnswerPiece(self._stops.flush())
