"""The answer that is being generated: follow it on one thread, watch and cancel it from others."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from eaglelocal.conversation.ask import follow_answer
from eaglelocal.conversation.pictures import Pictures, describe_question
from eaglelocal.conversation.session import AnswerEvents, RequestOutcome
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.events import Finished, RequestEvent, TextPiece, Tokens
from eaglelocal.text.loop_guard import LoopGuard
from eaglelocal.tui.chat.chat_events import Emit, FirstTokensReceived, QuestionSent
from eaglelocal.tui.panel.feed import Feed
from eaglelocal.tui.transcript.entries import LiveAnswer


class CurrentAnswer:
    """The current answer, if any. `begin` and `follow` are for the task thread; everything else is for any thread."""

    def __init__(self, emit: Emit, feed: Feed) -> None:
        self._emit, self._feed = emit, feed
        self._events: AnswerEvents | None = None
        self._live = LiveAnswer()
        self._is_closed = False
        self.is_stopping = False  # cancelled; the engine still reads images to their end
        self._images_sent_at: float | None = None  # None: the question has no images
        self._guard = LoopGuard()
        self._num_thinking = 0
        self._budget: int | None = None
        self._has_ended = threading.Event()  # until `wait_for_end` reports it

    def begin(self, question: str, pictures: Pictures, budget: int | None = None) -> None:
        """Announce the question whose answer is followed next. `budget`: tokens of thinking; None: any number."""
        self._live, self._guard = LiveAnswer(), LoopGuard()
        self._num_thinking, self._budget = 0, budget
        self._images_sent_at = time.monotonic() if pictures else None
        self._emit(QuestionSent(describe_question(question, pictures), self._live))

    def follow(self, events: AnswerEvents) -> RequestOutcome:
        """Pass the events to the feed and the live answer until the last one. Return the outcome."""
        self.is_stopping, self._events = False, events
        if self._is_closed:
            events.cancel()
        try:
            return follow_answer(events, self._receive)
        finally:
            self._events = None
            self._has_ended.set()

    def _receive(self, event: RequestEvent) -> None:
        self._feed.add_event(event, time.monotonic())
        match event:
            case Tokens(pieces=pieces):
                is_first = not self._live.has_begun
                self._live.push(pieces)
                if is_first:
                    self._emit(FirstTokensReceived())
                self._watch(pieces)
            case Finished(text=text, reasoning=reasoning):
                self._live.push((TextPiece(-1, text, False, reasoning=reasoning),))

    def _watch(self, pieces: Sequence[TextPiece]) -> None:
        """Count the tokens of thinking, and notice an answer that repeats itself."""
        if any(piece.text for piece in pieces):
            self._num_thinking, self._budget = 0, None
        else:
            self._num_thinking += sum(bool(piece.reasoning) for piece in pieces)
        for piece in pieces:
            self._guard.push(piece.reasoning + piece.text)

    @property
    def is_looping(self) -> bool:
        return self._guard.is_looping

    @property
    def thinking(self) -> str:
        """The tokens of thinking so far, such as `312 of 512 tokens`; "" before them, and once the text has begun."""
        if not self._num_thinking:
            return ""
        if self._budget is None:
            return count_noun(self._num_thinking, "token")
        return (
            f"{min(self._num_thinking, self._budget)} of {count_noun(self._budget, 'token')}"  # without closing words
        )

    @property
    def is_running(self) -> bool:
        return self._events is not None

    @property
    def image_reading_s(self) -> float | None:
        """The seconds since images were sent, until the first token; None if no images are being read."""
        if self._images_sent_at is None or self._live.has_begun:
            return None
        return time.monotonic() - self._images_sent_at

    def cancel(self) -> bool:
        """Cancel the answer. Return True if there was one."""
        events = self._events
        if events is not None:
            self.is_stopping = True
            events.cancel()
        return events is not None

    def wait_for_end(self, timeout_s: float) -> bool:
        """Return True if an answer has ended since the last call, or ends within `timeout_s`."""
        has_ended = self._has_ended.wait(timeout_s)
        self._has_ended.clear()
        return has_ended

    def close(self) -> None:
        """Cancel the answer and all later ones, and wake the thread that waits for the end."""
        self._is_closed = True
        self._has_ended.set()
        self.cancel()
