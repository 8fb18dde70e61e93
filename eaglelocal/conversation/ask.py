"""Ask one question: leave out old turns until it fits, follow the answer, record both.

Line mode and the screen share this. How answers are shown and stopped is up to the caller's `Follow`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from eaglelocal.conversation.conversation import turns_to_forget
from eaglelocal.conversation.pictures import Pictures
from eaglelocal.conversation.session import AnswerEvents, RequestOutcome, Session
from eaglelocal.core.events import (
    Embeddings,
    Failed,
    Finished,
    Prompted,
    PromptProgress,
    RequestEvent,
    SpeculationChanged,
    Started,
    Tokens,
)
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError

Listener = Callable[[RequestEvent], None]
Follow = Callable[[AnswerEvents], RequestOutcome]  # usually `follow_answer`, with a way to stop the answer


@dataclass(frozen=True, slots=True)
class AskResult:
    """The result of a question."""

    outcome: RequestOutcome
    num_left_out: int  # old turns that were left out for the first time
    is_restored: bool = False  # there is no answer, so the turns that were cut for it are back


def ask(session: Session, question: str, follow: Follow, pictures: Pictures = ()) -> AskResult:
    """Ask a question and record the answer in the session.

    The oldest turns are left out until the engine takes the request. Turns that were cut for this question are kept as
    another version of it; without an answer they stay in the conversation.
    """
    try:
        result = _ask_until_taken(session, question, follow, pictures)
    finally:
        is_restored = session.conversation.restore()
    return replace(result, is_restored=is_restored)


def _ask_until_taken(session: Session, question: str, follow: Follow, pictures: Pictures) -> AskResult:
    num_before = session.conversation.num_forgotten
    num_forgotten = _count_forgettable(session, question, pictures)
    outcome = _try_ask(session, question, pictures, num_forgotten, follow)
    while outcome.refused and num_forgotten < len(session.conversation.turns):
        num_forgotten += 1
        outcome = _try_ask(session, question, pictures, num_forgotten, follow)
    session.record(question, outcome, num_forgotten, pictures)
    return AskResult(outcome, 0 if outcome.refused else num_forgotten - num_before)


def follow_answer(answer: AnswerEvents, listen: Listener) -> RequestOutcome:
    """Pass each event of an answer to `listen` and return the outcome, which keeps an EagleLocalError."""
    outcome = RequestOutcome()
    try:
        for event in answer:
            listen(event)
            outcome = _apply_event(outcome, event)
    except EagleLocalError as error:
        return replace(outcome, error=error)
    return outcome


def _apply_event(outcome: RequestOutcome, event: RequestEvent) -> RequestOutcome:
    match event:
        case Started():
            return replace(outcome, started=True)
        case Tokens():
            reasoning = "".join(piece.reasoning for piece in event.pieces)
            return replace(outcome, text=outcome.text + event.text, reasoning=outcome.reasoning + reasoning)
        case Finished():
            text, reasoning = outcome.text + event.text, outcome.reasoning + event.reasoning
            return replace(outcome, text=text, reasoning=reasoning, finished=event)
        case Failed():
            return replace(outcome, error=event.error)
        case Prompted() | PromptProgress() | SpeculationChanged() | Embeddings():
            return outcome  # the line after the answer shows how drafting ended


def _try_ask(session: Session, question: str, pictures: Pictures, num_forgotten: int, follow: Follow) -> RequestOutcome:
    return follow(session.model.client.stream(session.request(question, num_forgotten, pictures)))


def _count_forgettable(session: Session, question: str, pictures: Pictures) -> int:
    if not session.model.info.n_ctx:  # the server does not report it, and refuses a request that is too long
        return session.conversation.num_forgotten
    return turns_to_forget(
        session.conversation,
        question,
        pictures,
        estimate=session.estimate,
        n_ctx=session.model.info.n_ctx,
        max_tokens=session.params.max_tokens,
    )


def left_out_line(num_turns: int, n_ctx: int) -> str:
    """Return the message that the oldest turns are left out because the context is full."""
    turns = "oldest turn is" if num_turns == 1 else f"{num_turns} oldest turns are"
    size = f" of {n_ctx} tokens" if n_ctx else ""
    return f"the {turns} no longer sent: the conversation is longer than the context{size}"
