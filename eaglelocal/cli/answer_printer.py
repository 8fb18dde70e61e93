"""Ask one question and show the answer as it arrives. One-shot and interactive chat share this.

It handles Ctrl-C (the first cancels, the second leaves) and the lines after an answer. Questions come from
the caller.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from eaglelocal.cli.output import REDRAW_S, Output, StatusLine
from eaglelocal.cli.tool_calls import LineReviewer
from eaglelocal.client.server_reading import AWAY_TEXTS
from eaglelocal.conversation.answer_stats import format_ending, statistics_line
from eaglelocal.conversation.ask import LOOP_LINE, AskResult, ask, follow_answer, left_out_line
from eaglelocal.conversation.session import AnswerEvents, RequestOutcome, Session
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.events import Failed, Finished, PromptProgress, RequestEvent, Started, TextPiece, Tokens
from eaglelocal.core.records import dataclass


@contextmanager
def cancel_on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Cancel a running answer at the first Ctrl-C, and raise KeyboardInterrupt at the next.

    The first calls a handler because an exception could interrupt the client's code at any point.
    """
    is_cancelled = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_cancelled
        if is_cancelled:
            raise KeyboardInterrupt
        is_cancelled = True
        cancel()

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@dataclass(frozen=True, slots=True)
class Asker:
    """A session and the output that shows its answers."""

    session: Session
    output: Output
    tint: bool = True
    has_figures: bool = True  # below each answer
    quiet: bool = False  # no answer on stdout, no statistics: the caller prints a JSON object

    def ask(self, question: str) -> RequestOutcome:
        """Ask a question, show the answer and record both. Reports it if old turns no longer fit and are left out."""
        self._mention_server()
        pictures = self.session.take_attached()
        if pictures and not self.quiet:  # it may take long, without any progress to show
            self.output.note(f"reading {' '.join(picture.label for picture in pictures)}")
        reviewer = LineReviewer(self.output, is_quiet=self.quiet)
        with cancel_on_interrupt(reviewer.stop):
            result = ask(self.session, question, self._follow, pictures, reviewer)
        self._show_footer(result)
        return result.outcome

    def _mention_server(self) -> None:
        """Say that the joined server is away, so that the question waits, or has another model."""
        client = self.session.model.client
        if self.session.model.plan is not None or self.quiet:
            return
        client.snapshot()
        if why := AWAY_TEXTS.get(client.state):
            self.output.note(f"{why}; the question waits for it")
        elif notice := self.session.rejoin():
            self.output.note(notice)

    def _follow(self, answer: AnswerEvents) -> RequestOutcome:
        """Show the answer as it arrives; Ctrl-C stops it."""
        stream = None if self.quiet else self.output.answer(tint=self.tint)  # else the JSON object holds the text
        hides_thoughts = stream is None or not self.output.is_terminal
        work = WorkLine(self.output.status(faint=True), hides_thoughts=hides_thoughts)

        def receive(event: RequestEvent) -> None:
            work.show(event)
            if stream is not None:
                stream.show(_text_pieces(event))

        try:
            with cancel_on_interrupt(answer.cancel):
                outcome = follow_answer(answer, receive)
        finally:
            work.erase()
        if outcome.calls:
            self._end_line(outcome)
        return outcome

    def _show_footer(self, result: AskResult) -> None:
        """Show the lines below an answer: that turns were left out, that it was cut off, its statistics."""
        outcome = result.outcome
        if self.quiet:
            return
        self._end_line(outcome)
        if result.num_left_out:
            self.output.note(left_out_line(result.num_left_out, self.session.model.info.n_ctx))
        if outcome.finished is not None:
            n_ctx = self.session.model.info.n_ctx
            endings = " · ".join(format_ending(outcome.finished, n_ctx))
            if line := statistics_line(outcome.finished, n_ctx) if self.has_figures else endings:
                self.output.note(line)
            if outcome.is_loop:
                self.output.note(LOOP_LINE)
            elif missing := outcome.missing_text:
                self.output.note(missing)
        elif outcome.text:
            self.output.note("the answer above is cut off")

    def _end_line(self, outcome: RequestOutcome) -> None:
        """End the last line of what was shown of an answer."""
        shown = outcome.text or (outcome.reasoning if self.output.is_terminal else "")
        if shown and not shown.endswith("\n") and not self.quiet:
            self.output.data("")


class WorkLine:
    """A line on stderr until the answer begins: how much of a long prompt has been read, and unseen thoughts."""

    def __init__(self, status: StatusLine, *, hides_thoughts: bool) -> None:
        self._status, self._hides_thoughts = status, hides_thoughts
        self._began_at = time.monotonic()  # of reading, then of thinking
        self._num_read_of = self._num_thoughts = 0  # tokens of the prompt, of the thoughts
        self._drawn_at = float("-inf")

    def show(self, event: RequestEvent) -> None:
        match event:
            case Started(prompt_tokens=num_tokens):
                self._num_read_of = num_tokens
            case PromptProgress(_, num_read):
                self._draw(f"reading {num_read}/{self._num_read_of}")
            case Tokens(pieces=pieces) if self._hides_thoughts and not any(piece.text for piece in pieces):
                if not self._num_thoughts:
                    self._began_at, self._drawn_at = time.monotonic(), float("-inf")
                self._num_thoughts += len(pieces)
                if time.monotonic() - self._drawn_at >= REDRAW_S:
                    self._draw(f"thinking, {count_noun(self._num_thoughts, 'token')}")
            case Tokens() | Finished() | Failed():
                self._hides_thoughts = False  # text may be in this line from here on
                self.erase()

    def _draw(self, work: str) -> None:
        self._drawn_at = time.monotonic()
        self._status.show(f"{work} · {self._drawn_at - self._began_at:.0f} s")

    def erase(self) -> None:
        if self._drawn_at > float("-inf"):
            self._status.show()
        self._drawn_at = float("-inf")


def _text_pieces(event: RequestEvent) -> tuple[TextPiece, ...]:
    match event:
        case Tokens():
            return event.pieces
        case Finished(text=text, reasoning=thought) if text or thought:
            return (TextPiece(-1, text, False, reasoning=thought),)
    return ()
