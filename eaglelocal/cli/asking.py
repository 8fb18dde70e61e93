"""Ask one question and show the answer as it comes. One-shot and interactive chat share this.

Knows Ctrl-C (the first cancels, the second leaves) and what is said after an answer. Does not know
where questions come from.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType

from eaglelocal.cli.output import Output
from eaglelocal.core.events import Finished, Piece, RequestEvent, Tokens
from eaglelocal.talk.asking import Asked, ask, forgotten_line, listen
from eaglelocal.talk.report import honest_line
from eaglelocal.talk.session import Answer, Outcome, Session


class InterruptGuard:
    """While an answer runs, the first Ctrl-C cancels it and the next raises KeyboardInterrupt.

    A handler rather than an exception: an exception could strike in the middle of the client.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self.presses = 0

    def __enter__(self) -> InterruptGuard:
        self._previous = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.presses += 1
        if self.presses > 1:
            raise KeyboardInterrupt
        self._cancel()


@dataclass(frozen=True, slots=True)
class Asker:
    """A session with a place to show its answers."""

    session: Session
    output: Output
    tint: bool = True
    quiet: bool = False  # nothing on stdout, no figures: the caller prints the object

    def ask(self, question: str) -> Outcome:
        """Ask, show, record. Old turns that no longer fit are left out, and said so."""
        pictures = self.session.take_attached()
        if pictures and not self.quiet:  # it may take long, and nothing moves meanwhile
            self.output.aside(f"reading {' '.join(picture.label for picture in pictures)}")
        asked = ask(self.session, question, self._follow, pictures)
        self._tell(asked)
        return asked.outcome

    def _follow(self, answer: Answer) -> Outcome:
        """Show the answer as it comes; Ctrl-C stops it."""
        shown = None if self.quiet else self.output.answer(tint=self.tint)  # the object at the end says it all

        def hear(event: RequestEvent) -> None:
            if shown is not None:
                shown.show(_pieces_of(event))

        with InterruptGuard(answer.cancel):
            return listen(answer, hear)

    def _tell(self, asked: Asked) -> None:
        """What stands under an answer: that turns were left out, that it was stopped, the honest line."""
        outcome = asked.outcome
        if self.quiet:
            return
        shown = outcome.text or (outcome.reasoning if self.output.is_terminal else "")
        if shown and not shown.endswith("\n"):
            self.output.data("")
        if asked.num_left_out:
            self.output.aside(forgotten_line(asked.num_left_out, self.session.model.info.n_ctx))
        if outcome.finished is not None:
            self.output.aside(honest_line(outcome.finished))
            if outcome.reasoning and not outcome.text:
                self.output.aside("all of it was thought: nothing is said yet")
        elif outcome.text:
            self.output.aside("the answer above is cut off")


def _pieces_of(event: RequestEvent) -> tuple[Piece, ...]:
    match event:
        case Tokens():
            return event.pieces
        case Finished(text=text, reasoning=thought) if text or thought:
            return (Piece(-1, text, False, reasoning=thought),)
    return ()
