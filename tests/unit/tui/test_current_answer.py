"""What the screen knows of an answer while it comes: how far it has been thought about, and whether it loops."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.core.events import RequestEvent, TextPiece, Tokens
from eaglelocal.tui.chat.current_answer import CurrentAnswer
from eaglelocal.tui.panel.feed import Feed


class Events:
    """An answer that lets the test look between its events."""

    def __init__(self, answer: CurrentAnswer, pieces: list[TextPiece]) -> None:
        self._answer, self._pieces = answer, pieces
        self.thinking: list[str] = []
        self.looping: list[bool] = []

    def cancel(self) -> None: ...

    def __iter__(self) -> Iterator[RequestEvent]:
        for piece in self._pieces:
            yield Tokens("a", (piece,))
            self.thinking.append(self._answer.thinking)
            self.looping.append(self._answer.is_looping)


def follow(pieces: list[TextPiece], budget: int | None) -> Events:
    answer = CurrentAnswer(lambda event: None, Feed(by_events=True))
    answer.begin("Why?", (), budget)
    events = Events(answer, pieces)
    answer.follow(events)
    return events


def thought(text: str) -> TextPiece:
    return TextPiece(1, "", False, reasoning=text)


def test_thinking_is_counted_until_the_text_begins() -> None:
    pieces = [thought("hm"), thought(" well"), TextPiece(1, "Yes", False), TextPiece(1, ".", False)]
    assert follow(pieces, 512).thinking == ["1 of 512 tokens", "2 of 512 tokens", "", ""]
    assert follow(pieces, None).thinking == ["1 token", "2 tokens", "", ""]


def test_a_loop_is_noticed_in_thoughts_and_text() -> None:
    for piece in (thought(" tea"), TextPiece(1, " tea", False)):
        looping = follow([piece] * 600, None).looping
        assert not looping[400] and looping[-1]
