"""Ask one question: leave out old turns until it fits, follow the answer, record both.

Line mode and the screen share this. How answers are shown and stopped is up to the caller's `Follow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from eaglelocal.conversation.chat_tools import ToolOffer
from eaglelocal.conversation.conversation import Turn
from eaglelocal.conversation.pictures import Pictures
from eaglelocal.conversation.session import AnswerEvents, RequestOutcome, Session
from eaglelocal.conversation.tool_rounds import MAX_ROUNDS, CallReviewer, CallRunner, shrink_results
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
from eaglelocal.core.tools import ANY_TOOL, ToolChoice, ToolUse
from eaglelocal.errors import Cancelled, EagleLocalError
from eaglelocal.text.loop_guard import LoopGuard

Listener = Callable[[RequestEvent], None]
Follow = Callable[[AnswerEvents], RequestOutcome]  # usually `follow_answer`, with a way to stop the answer
STOPPED = RequestOutcome(error=Cancelled("stopped"))  # while no answer was being written


@dataclass(frozen=True, slots=True)
class AskResult:
    """The result of a question."""

    outcome: RequestOutcome
    num_left_out: int  # old turns that were left out for the first time
    is_restored: bool = False  # there is no answer, so the turns that were cut for it are back


def ask(
    session: Session,
    question: str,
    follow: Follow,
    pictures: Pictures = (),
    reviewer: CallReviewer | None = None,
) -> AskResult:
    """Ask a question, run the calls of tools that the model writes, and record the answer in the session.

    The oldest turns are left out until the engine takes the request. Turns that were cut for this question are kept as
    another version of it; without an answer they stay in the conversation. Without a reviewer, no tools are offered.
    """
    session.conversation.begun = (Turn(question, "", stopped=True, pictures=pictures),)
    try:
        result = _ask_and_record(session, question, follow, pictures, reviewer)
    finally:
        session.conversation.begun = ()
        is_restored = session.conversation.restore()
    return replace(result, is_restored=is_restored)


def _ask_and_record(
    session: Session, question: str, follow: Follow, pictures: Pictures, reviewer: CallReviewer | None
) -> AskResult:
    num_before = session.conversation.num_forgotten
    offer = ToolOffer() if reviewer is None else _offer_tools(session, reviewer)
    session.estimate = replace(session.estimate, num_tool_chars=offer.num_chars)
    begun = Turn(question, "", pictures=pictures)
    if reviewer is not None and reviewer.is_stopped():
        asked = _Asked(begun, STOPPED, num_before)
    else:
        asked = _ask_until_taken(session, begun, offer, follow, ANY_TOOL)
    if reviewer is not None and offer.by_name:
        asked = _go_on(session, asked, CallRunner(session.tools, offer, reviewer, session.model.info.n_ctx), follow)
    session.record(asked.begun, asked.outcome, asked.num_forgotten, offer.num_chars)
    outcome = replace(asked.outcome, rounds=asked.begun.rounds)
    is_refused = outcome.refused and not outcome.rounds
    return AskResult(outcome, 0 if is_refused else asked.num_forgotten - num_before)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The outcome of the last request of a turn, and how many old turns it left out."""

    begun: Turn
    outcome: RequestOutcome
    num_forgotten: int


def _ask_until_taken(session: Session, begun: Turn, offer: ToolOffer, follow: Follow, choice: ToolChoice) -> _Asked:
    """Ask, and leave out old turns, then parts of results, while the request is refused."""
    num_forgotten = session.count_forgettable(session.conversation, begun, session.params.max_tokens)
    while True:
        request = session.request(
            session.conversation,
            begun,
            num_forgotten=num_forgotten,
            params=session.params,
            offer=offer,
            choice=choice,
        )
        outcome = _follow_to_end(session, session.model.client.stream(request), follow)
        shorter = shrink_results(begun)
        if outcome.refused and num_forgotten < len(session.conversation.turns):
            num_forgotten += 1
        elif outcome.refused and shorter is not None:
            begun = shorter
        else:
            return _Asked(begun, outcome, num_forgotten)


class LoopEnder:
    """The events of an answer, which is cancelled once its text, or the thoughts before it, repeat themselves.

    budget  tokens of thoughts, which the server ends, if it can
    """

    def __init__(self, events: AnswerEvents, budget: int = 0) -> None:
        self._events, self._guard = events, LoopGuard(budget)

    @property
    def is_looping(self) -> bool:
        return self._guard.is_looping

    def cancel(self) -> None:
        self._events.cancel()

    def __iter__(self) -> Iterator[RequestEvent]:
        for event in self._events:
            yield event
            for piece in event.pieces if isinstance(event, Tokens) else ():
                if self._guard.push(piece.text, piece.reasoning):
                    self.cancel()


def _follow_to_end(session: Session, events: AnswerEvents, follow: Follow) -> RequestOutcome:
    """Follow an answer; one that repeats itself is ended, unless the user switched that off."""
    if not session.params.stop_loops:
        return follow(events)
    ender = LoopEnder(events, session.thinking_budget or 0)
    outcome = follow(ender)
    return replace(outcome, is_loop=outcome.is_loop or (ender.is_looping and outcome.stopped))


def _go_on(session: Session, asked: _Asked, runner: CallRunner, follow: Follow) -> _Asked:
    """Run the calls of the answer, and ask again with their results, until an answer has none."""
    while calls := asked.outcome.calls:
        outcome = asked.outcome
        done = runner.run_round(calls, asked.begun, outcome.text, outcome.reasoning)
        runner.reviewer.show(done)
        begun = replace(asked.begun, rounds=(*asked.begun.rounds, done))
        if outcome.finished is not None:
            session.answers.append(outcome.finished)
        if runner.reviewer.is_stopped():
            return _Asked(begun, STOPPED, asked.num_forgotten)
        is_last = len(begun.rounds) >= MAX_ROUNDS
        if is_last:
            runner.reviewer.note(f"after {MAX_ROUNDS} rounds of calls, the model has to answer")
        choice = ToolChoice(use=ToolUse.NONE) if is_last else ANY_TOOL
        asked = _ask_until_taken(session, begun, runner.offer, follow, choice)
        if is_last:
            break
    return asked


def _offer_tools(session: Session, reviewer: CallReviewer) -> ToolOffer:
    """Start the servers that are needed, and return the tools that the model is offered; say once why some are not."""
    tools, offer = session.tools, ToolOffer()
    before = tools.pool.statuses
    if session.model.info.takes_tools and tools.needed_servers:
        if tools.has_to_start:
            reviewer.begin("starting tool servers")
            tools.start(reviewer.is_stopped)
            reviewer.begin("")
        offer = tools.offer(session.model.info.n_ctx)
    for old, status in zip(before, tools.pool.statuses, strict=True):
        if status.state == "failed" and status != old:
            reviewer.note(f"tool server {status.name} failed: {status.reason}")
    if notice := tools.take_notice(offer, takes_tools=session.model.info.takes_tools):
        reviewer.note(notice)
    return offer


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
            reasoning = outcome.reasoning + "".join(piece.reasoning for piece in event.pieces)
            calls = tuple(part for piece in event.pieces for part in piece.calls)
            parts = outcome.call_parts + calls if calls else outcome.call_parts
            return replace(outcome, text=outcome.text + event.text, reasoning=reasoning, call_parts=parts)
        case Finished():
            text, reasoning = outcome.text + event.text, outcome.reasoning + event.reasoning
            return replace(outcome, text=text, reasoning=reasoning, finished=event, is_loop=event.is_loop)
        case Failed():
            return replace(outcome, error=event.error)
        case Prompted() | PromptProgress() | SpeculationChanged() | Embeddings():
            return outcome  # the line after the answer shows how drafting ended


LOOP_LINE = "the answer repeated itself over and over, so it was ended (--no-stop-loops)"


def left_out_line(num_turns: int, n_ctx: int) -> str:
    """Return the message that the oldest turns are left out because the context is full."""
    turns = "oldest turn is" if num_turns == 1 else f"{num_turns} oldest turns are"
    size = f" of {n_ctx} tokens" if n_ctx else ""
    return f"the {turns} no longer sent: the conversation is longer than the context{size}"
