"""Ask one question: leave out old turns until it fits, follow the answer, record what was said.

Line mode and the screen share this. Does not know how answers are shown or stopped: it is given `Follow`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from eaglelocal.core.events import (
    Embedded,
    Failed,
    Finished,
    Prompted,
    RequestEvent,
    SpeculationChanged,
    Started,
    Tokens,
)
from eaglelocal.errors import EagleLocalError
from eaglelocal.talk.context_window import turns_to_forget
from eaglelocal.talk.pictures import Pictures
from eaglelocal.talk.session import Answer, Outcome, Session

Listener = Callable[[RequestEvent], None]
Follow = Callable[[Answer], Outcome]  # most often `listen`, with something that can stop the answer around it


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of a question."""

    outcome: Outcome
    num_left_out: int  # more old turns than before that were not sent


def ask(session: Session, question: str, follow: Follow, pictures: Pictures = ()) -> Asked:
    """Ask and record. Turns that no longer fit are left out, oldest first, as many as the engine makes necessary."""
    before = session.conversation.num_forgotten
    num_forgotten = _forgettable(session, question, pictures)
    outcome = _try(session, question, pictures, num_forgotten, follow)
    while outcome.refused and num_forgotten < len(session.conversation.turns):
        num_forgotten += 1
        outcome = _try(session, question, pictures, num_forgotten, follow)
    session.record(question, outcome, num_forgotten, pictures)
    return Asked(outcome, 0 if outcome.refused else num_forgotten - before)


def listen(answer: Answer, hear: Listener) -> Outcome:
    """Follow an answer to its end; `hear` gets each event. A failure comes back inside the outcome, with the text."""
    outcome = Outcome()
    try:
        for event in answer:
            hear(event)
            outcome = _after(outcome, event)
    except EagleLocalError as error:
        return replace(outcome, error=error)
    return outcome


def _after(outcome: Outcome, event: RequestEvent) -> Outcome:
    match event:
        case Started():
            return replace(outcome, started=True)
        case Tokens():
            thought = "".join(piece.reasoning for piece in event.pieces)
            return replace(outcome, text=outcome.text + event.text, reasoning=outcome.reasoning + thought)
        case Finished():
            text, reasoning = outcome.text + event.text, outcome.reasoning + event.reasoning
            return replace(outcome, text=text, reasoning=reasoning, finished=event)
        case Failed():
            return replace(outcome, error=event.error)
        case Prompted() | SpeculationChanged() | Embedded():
            return outcome  # the line after the answer says how drafting ended


def _try(session: Session, question: str, pictures: Pictures, num_forgotten: int, follow: Follow) -> Outcome:
    return follow(session.model.client.stream(session.request(question, num_forgotten, pictures)))


def _forgettable(session: Session, question: str, pictures: Pictures) -> int:
    if not session.model.info.n_ctx:  # a server that does not tell: it will say what is too long
        return session.conversation.num_forgotten
    return turns_to_forget(
        session.conversation,
        question,
        pictures,
        estimate=session.estimate,
        n_ctx=session.model.info.n_ctx,
        max_tokens=session.params.max_tokens,
    )


def forgotten_line(num_turns: int, n_ctx: int) -> str:
    """That the context was full, in words."""
    turns = "oldest turn is" if num_turns == 1 else f"{num_turns} oldest turns are"
    size = f" of {n_ctx} tokens" if n_ctx else ""
    return f"the {turns} left out from here on: the conversation outgrew the context{size}"
