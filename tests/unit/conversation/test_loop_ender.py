"""The end of an answer that repeats itself: in its thoughts or its text, for the screen and line mode alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eaglelocal.conversation.ask import LoopEnder
from eaglelocal.core.events import RequestEvent, TextPiece, Tokens


class CountedAnswer:
    """An answer that counts its events, and goes on until it is cancelled."""

    def __init__(self, pieces: list[TextPiece]) -> None:
        self.pieces, self.num_given, self.is_cancelled = pieces, 0, False

    def cancel(self) -> None:
        self.is_cancelled = True

    def __iter__(self) -> Iterator[RequestEvent]:
        for piece in self.pieces:
            if self.is_cancelled:
                return
            self.num_given += 1
            yield Tokens("a", (piece,))


def think(text: str) -> TextPiece:
    return TextPiece(0, "", False, reasoning=text)


def say(text: str) -> TextPiece:
    return TextPiece(0, text, False)


@pytest.mark.parametrize("piece", [think(" tea"), say(" tea")])
def test_a_loop_ends_thoughts_and_text(piece: TextPiece) -> None:
    answer = CountedAnswer([piece] * 900)
    ender = LoopEnder(answer)
    assert len(list(ender)) == answer.num_given < 700
    assert ender.is_looping and answer.is_cancelled


def test_text_after_repeated_thoughts_is_judged_by_itself() -> None:
    """The thoughts alone would be too few tokens, and the text continues them letter by letter."""
    answer = CountedAnswer([*[think(" tea")] * 300, *[say(" tea")] * 300])
    ender = LoopEnder(answer)
    assert len(list(ender)) == 600 and not ender.is_looping
