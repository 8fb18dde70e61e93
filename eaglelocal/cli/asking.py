"""Ask one question and show the answer as it comes. One-shot and interactive chat share this.

Knows Ctrl-C (the first cancels, the second leaves) and what is said after an answer. Does not know
where questions come from.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType, TracebackType

from eaglelocal.cli.context_window import turns_to_forget
from eaglelocal.cli.output import Output
from eaglelocal.cli.report import honest_line
from eaglelocal.cli.session import Answer, Outcome, Session
from eaglelocal.core.events import (
    Embedded,
    Failed,
    Finished,
    Piece,
    RequestEvent,
    SpeculationChanged,
    Started,
    Tokens,
    ToolCalled,
)
from eaglelocal.errors import EagleLocalError

Show = Callable[[tuple[Piece, ...]], None]


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


def listen(answer: Answer, show: Show) -> Outcome:
    """Follow an answer to its end. A failure comes back inside the outcome, with the text so far."""
    outcome = Outcome()
    try:
        with InterruptGuard(answer.cancel):
            for event in answer:
                outcome = _after(outcome, event, show)
    except EagleLocalError as error:
        return replace(outcome, error=error)
    return outcome


def _after(outcome: Outcome, event: RequestEvent, show: Show) -> Outcome:
    match event:
        case Started():
            return replace(outcome, started=True)
        case Tokens():
            show(event.pieces)
            return replace(outcome, text=outcome.text + event.text)
        case Finished():
            show((Piece(-1, event.text, False),))
            return replace(outcome, text=outcome.text + event.text, finished=event)
        case Failed():
            return replace(outcome, error=event.error)
        case (
            SpeculationChanged() | ToolCalled() | Embedded()
        ):  # chat offers no tools, and the line after the answer says how it ended
            return outcome


@dataclass(frozen=True, slots=True)
class Asker:
    """A session with a place to show its answers."""

    session: Session
    output: Output
    tint: bool = True
    quiet: bool = False  # nothing on stdout, no figures: the caller prints the object

    def ask(self, question: str) -> Outcome:
        """Ask, show, record. Old turns that no longer fit are left out, and said so."""
        num_forgotten = self._forgettable(question)
        outcome = self._try(question, num_forgotten)
        while outcome.refused and num_forgotten < len(self.session.conversation.turns):
            num_forgotten += 1
            outcome = self._try(question, num_forgotten)
        self._tell(outcome, num_forgotten - self.session.conversation.num_forgotten)
        self.session.record(question, outcome, num_forgotten)
        return outcome

    def _forgettable(self, question: str) -> int:
        session = self.session
        if not session.model.info.n_ctx:  # a server that does not tell: it will say what is too long
            return session.conversation.num_forgotten
        return turns_to_forget(
            session.conversation,
            question,
            estimate=session.estimate,
            n_ctx=session.model.info.n_ctx,
            max_tokens=session.params.max_tokens,
        )

    def _try(self, question: str, num_forgotten: int) -> Outcome:
        show = _hide if self.quiet else self.output.answer(tint=self.tint).show
        return listen(self.session.model.client.stream(self.session.request(question, num_forgotten)), show)

    def _tell(self, outcome: Outcome, num_left_out: int) -> None:
        """What stands under an answer: that turns were left out, that it was stopped, the honest line."""
        if self.quiet:
            return
        if outcome.text and not outcome.text.endswith("\n"):
            self.output.data("")
        if num_left_out and not outcome.refused:
            self.output.aside(forgotten_line(num_left_out, self.session.model.info.n_ctx))
        if outcome.finished is not None:
            self.output.aside(honest_line(outcome.finished))
        elif outcome.text:
            self.output.aside("the answer above is cut off")


def _hide(pieces: tuple[Piece, ...]) -> None:
    """Shows nothing: the object at the end says it all."""


def forgotten_line(num_turns: int, n_ctx: int) -> str:
    turns = "oldest turn is" if num_turns == 1 else f"{num_turns} oldest turns are"
    size = f" of {n_ctx} tokens" if n_ctx else ""
    return f"the {turns} left out from here on: the conversation outgrew the context{size}"
