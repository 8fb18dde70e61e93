"""Replace the old turns of a conversation by a summary that its model writes. The turns stay, and so does the file.

Line mode and the screen share this. How the request is followed and stopped is up to the caller's `Follow`.
"""

from __future__ import annotations

from dataclasses import replace

from eaglelocal.conversation.ask import Follow
from eaglelocal.conversation.conversation import Conversation, Turn, TurnSummary
from eaglelocal.conversation.session import RequestOutcome, Session
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.thinking import Thinking
from eaglelocal.errors import UsageError

NUM_KEPT = 2  # last turns that stay as they are
MAX_SUMMARY_TOKENS = 1024
SUMMARY_REQUEST = (
    "Summarize our conversation so far, for yourself: facts, names, numbers, decisions, code that still matters, and "
    "what is still open. Write only the summary."
)
REQUEST_TURN = Turn(SUMMARY_REQUEST, "")


def can_compact(conversation: Conversation) -> bool:
    """Return whether there are turns to summarize, besides the last NUM_KEPT."""
    num_done = 0 if conversation.summary is None else conversation.summary.num_turns
    return len(conversation.turns) - NUM_KEPT > num_done


def compact(session: Session, follow: Follow) -> str:
    """Summarize all turns but the last NUM_KEPT, and return what that saves; "" if the user stopped it.

    There must be something to summarize. Raises the error of the request, and UsageError for a summary that is not
    shorter than the turns; nothing has changed then.
    """
    conversation = session.conversation
    before, num_turns = conversation.summary, len(conversation.turns) - NUM_KEPT
    past = Conversation(conversation.system, conversation.turns[:num_turns], summarized=before)
    outcome = _ask_for_summary(session, past, follow)
    if outcome.error is not None:
        raise outcome.error
    if outcome.stopped or not outcome.text.strip():
        return ""
    num_forgotten = conversation.num_forgotten if before is None else before.num_forgotten
    summary = TurnSummary(outcome.text.strip(), num_turns, past.turns[-1].answer, num_forgotten)
    replaced = Conversation(past.system, past.turns, summarized=summary)
    old, new = (session.estimate.count_tokens(each.messages(REQUEST_TURN)[:-1]) for each in (past, replaced))
    turns = count_noun(num_turns, "turn")
    if new >= old:
        raise UsageError(f"the summary of {turns} is not shorter ({new} tokens instead of {old}), so it is not used")
    conversation.summarize(summary, max(conversation.num_forgotten, num_turns))
    return f"{turns} summarized: {old} to {new} tokens; /undo takes it back"


def undo_compaction(conversation: Conversation) -> None:
    """Send the summarized turns again, as far as they fit. Raises UsageError if there is no summary."""
    summary = conversation.summary
    if summary is None:
        raise UsageError("there is no summary to undo", hint="/compact makes one")
    conversation.summarize(None, summary.num_forgotten)


def _ask_for_summary(session: Session, past: Conversation, follow: Follow) -> RequestOutcome:
    """Ask for a summary; the oldest turns are left out until the engine takes the request."""
    n_ctx = session.model.info.n_ctx
    max_tokens = min(MAX_SUMMARY_TOKENS, n_ctx // 4) if n_ctx else MAX_SUMMARY_TOKENS
    params = replace(session.params, max_tokens=max_tokens, thinking=Thinking(budget=0))
    for num_forgotten in range(session.count_forgettable(past, REQUEST_TURN, max_tokens), len(past.turns) + 1):
        request = session.request(past, REQUEST_TURN, num_forgotten=num_forgotten, params=params)
        outcome = follow(session.model.client.stream(request))
        if not outcome.refused:
            break
    return outcome
