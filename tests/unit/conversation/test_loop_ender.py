"""An answer that repeats itself is cancelled: for the screen and line mode alike, at any server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eaglelocal.conversation.ask import LoopEnder
from eaglelocal.core.events import RequestEvent, TextPiece, Tokens


class CountedAnswer:
    """An answer that counts its events, and goes on until it is cancelled, or to its end."""

    def __init__(self, pieces: list[TextPiece], *, obeys: bool = True) -> None:
        self.obeys, self.pieces, self.num_given, self.is_cancelled = obeys, pieces, 0, False

    def cancel(self) -> None:
        self.is_cancelled = True

    def __iter__(self) -> Iterator[RequestEvent]:
        for piece in self.pieces:
            if self.is_cancelled and self.obeys:
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


def test_a_server_that_ignores_the_budget_of_thoughts_is_cancelled() -> None:
    answer = CountedAnswer([think(" tea")] * 2000)
    assert 1000 < len(list(LoopEnder(answer, 1000))) < 1700


def test_text_that_was_under_way_does_not_hide_the_loop() -> None:
    answer = CountedAnswer([*[think(" tea")] * 600, say("Yes")], obeys=False)
    ender = LoopEnder(answer)
    assert len(list(ender)) == 601 and ender.is_looping
