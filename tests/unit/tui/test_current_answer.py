"""What the screen knows of an answer while it comes: how far it has been read and thought about."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.conversation.pictures import AttachedPicture, Pictures
from eaglelocal.core.events import PromptProgress, RequestEvent, Started, TextPiece, Tokens
from eaglelocal.tui.chat.chat_events import AnswerWork
from eaglelocal.tui.chat.current_answer import CurrentAnswer
from eaglelocal.tui.panel.feed import Feed


class Events:
    """An answer that lets the test look between its events."""

    def __init__(self, answer: CurrentAnswer, events: list[RequestEvent]) -> None:
        self._answer, self._events = answer, events
        self.work: list[AnswerWork] = []

    def cancel(self) -> None: ...

    def __iter__(self) -> Iterator[RequestEvent]:
        for event in self._events:
            yield event
            assert self._answer.work is not None
            self.work.append(self._answer.work)


def follow(events: list[RequestEvent], budget: int | None = None, pictures: Pictures = ()) -> list[AnswerWork]:
    """Return how far the answer had come after each event."""
    answer = CurrentAnswer(lambda event: None, Feed(by_events=True))
    assert answer.work is None
    answer.begin("Why?", pictures, (), budget)
    looked_at = Events(answer, events)
    answer.follow(looked_at)
    assert answer.work is None
    return looked_at.work


def tokens(*pieces: TextPiece) -> Tokens:
    return Tokens("a", pieces)


def said(text: str) -> TextPiece:
    return TextPiece(1, text, False)


def thought(text: str) -> TextPiece:
    return TextPiece(1, "", False, reasoning=text)


def test_a_prompt_is_read_and_then_answered() -> None:
    events = [
        Started("a", 90, 20), PromptProgress("a", 52), PromptProgress("a", 84), tokens(said("Ye"), said("s")),
        tokens(said(".")),
    ]  # fmt: skip
    works = follow(events)
    assert [(work.phase, work.count, work.total) for work in works] == [
        ("reading", 20, 90), ("reading", 52, 90), ("reading", 84, 90), ("answering", 2, None), ("answering", 3, None),
    ]  # fmt: skip
    assert [work.num_cached for work in works] == [20, 52, 84, 92, 93]


def test_thinking_is_counted_until_the_text_begins() -> None:
    events: list[RequestEvent] = [tokens(piece) for piece in (thought("hm"), thought(" well"), said("Yes"), said("."))]
    for budget in (512, None):
        counts = [(work.phase, work.count, work.total) for work in follow(events, budget)]
        assert counts == [
            ("thinking", 1, budget),
            ("thinking", 2, budget),
            ("answering", 1, None),
            ("answering", 2, None),
        ]


def test_images_are_read_until_the_first_token() -> None:
    events: list[RequestEvent] = [Started("a", 90, 0), PromptProgress("a", 52), tokens(said("Yes"))]
    phases = [work.phase for work in follow(events, pictures=(AttachedPicture("a.png", b"x"),))]
    assert phases == ["reading images", "reading images", "answering"]
