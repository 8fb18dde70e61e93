"""The answer that is being generated: follow it on one thread, watch and cancel it from others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from eaglelocal.conversation.ask import follow_answer
from eaglelocal.conversation.code_blocks import count_code_blocks, number_next_code
from eaglelocal.conversation.conversation import ToolRound, Turn
from eaglelocal.conversation.pictures import Pictures, describe_question
from eaglelocal.conversation.session import AnswerEvents, RequestOutcome
from eaglelocal.core.events import Finished, PromptProgress, RequestEvent, Started, TextPiece, Tokens
from eaglelocal.tui.chat.chat_events import AnswerWork, CallsCompleted, Emit, FirstTokensReceived, QuestionSent
from eaglelocal.tui.panel.feed import Feed
from eaglelocal.tui.transcript.entries import LiveAnswer

WAITING = AnswerWork(phase="waiting", seconds=0.0)
READING_IMAGES = replace(WAITING, phase="reading images")
SUMMARIZING = replace(WAITING, phase="summarizing")


class CurrentAnswer:
    """The current answer, if any. `begin` and `follow` are for the task thread; everything else is for any thread."""

    def __init__(self, emit: Emit, feed: Feed) -> None:
        self._emit, self._feed = emit, feed
        self._events: AnswerEvents | None = None
        self.on_begin: Callable[[RequestEvent], None] = lambda event: None  # the first of a request, before it is shown
        self._has_begun = False
        self._live = LiveAnswer()
        self._is_closed = False
        self._is_stopping = False  # cancelled; the engine still reads images to their end
        self._budget: int | None = None
        self._first_code = 1  # the number of the next text's first code block
        self._work, self._began_at = WAITING, 0.0  # of the phase
        self._has_ended = threading.Event()  # until `wait_for_end` reports it

    def begin(self, question: str, pictures: Pictures, earlier: Sequence[Turn], budget: int | None = None) -> None:
        """Announce the question whose answer is followed next, after the `earlier` turns.

        budget: tokens of thinking; None: any number
        """
        self._first_code = number_next_code(earlier)
        self._live, self._budget = LiveAnswer(self._first_code), budget
        self._enter(READING_IMAGES if pictures else WAITING)
        self._emit(QuestionSent(describe_question(question, pictures), self._live, len(earlier)))

    def go_on(self, done: ToolRound) -> None:
        """Announce the results of calls, after which the answer goes on."""
        self._first_code += count_code_blocks(done.text)
        self._live = LiveAnswer(self._first_code)
        self._enter(WAITING)
        self._emit(CallsCompleted(done, self._live))

    def follow(self, events: AnswerEvents) -> RequestOutcome:
        """Pass the events to the feed and the live answer until the last one. Return the outcome."""
        self._is_stopping, self._has_begun, self._events = False, False, events
        if self._is_closed:
            events.cancel()
        try:
            return follow_answer(events, self._receive)
        finally:
            self._events = None
            self._has_ended.set()

    def follow_summary(self, events: AnswerEvents) -> RequestOutcome:
        """Follow a summary, which no live answer shows."""
        self._live = LiveAnswer()
        self._enter(SUMMARIZING)
        return self.follow(events)

    def _receive(self, event: RequestEvent) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.on_begin(event)
        self._feed.add_event(event, time.monotonic())
        match event:
            case Started(prompt_tokens=total, cached_tokens=cached) if self._work.phase == "waiting":
                # since it was sent: the engine reports the start of a prompt with its first rows
                self._work = replace(WAITING, phase="reading", count=cached, total=total, num_cached=cached)
            case PromptProgress(_, num_read) if self._work.phase == "reading":
                self._work = replace(self._work, count=num_read, num_cached=num_read)
            case Tokens(pieces=pieces):
                is_first = not self._live.has_begun
                self._live.push(pieces)
                self._count(pieces)
                if is_first:
                    self._emit(FirstTokensReceived())
            case Finished(text=text, reasoning=reasoning):
                self._live.push((TextPiece(-1, text, False, reasoning=reasoning),))

    def _enter(self, work: AnswerWork) -> None:
        self._work, self._began_at = work, time.monotonic()

    def _count(self, pieces: Sequence[TextPiece]) -> None:
        """Count the tokens of thinking, and then of the text."""
        work = self._work
        num_cached = (work.total or 0 if work.phase == "reading" else work.num_cached) + len(pieces)
        phase = "answering" if work.phase == "answering" or any(piece.text for piece in pieces) else "thinking"
        if work.phase == SUMMARIZING.phase:
            phase = SUMMARIZING.phase
        if phase != work.phase:
            self._enter(AnswerWork(phase=phase, seconds=0.0, total=self._budget if phase == "thinking" else None))
        self._work = replace(self._work, count=self._work.count + len(pieces), num_cached=num_cached)

    @property
    def work(self) -> AnswerWork | None:
        """The progress of the answer; None if none is running."""
        if self._events is None:
            return None
        return replace(self._work, seconds=time.monotonic() - self._began_at, is_stopping=self._is_stopping)

    @property
    def is_running(self) -> bool:
        return self._events is not None

    def cancel(self) -> bool:
        """Cancel the answer. Return True if there was one."""
        events = self._events
        if events is not None:
            self._is_stopping = True
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
