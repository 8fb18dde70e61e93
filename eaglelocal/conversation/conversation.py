"""The conversation: a system message and turns.

It decides which messages go to the model, and records which turns no longer fit in the context. It does not depend on
files, tokens, models or terminals.
"""

from __future__ import annotations

from dataclasses import field

from eaglelocal.conversation.pictures import Pictures, describe_question, make_message
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Message
from eaglelocal.core.tools import ToolCall


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """A call of a tool by the model, and the result that it was given.

    label  server and tool, as people see them: `time.get_current_time`
    state  done, failed, or refused: it was not run
    """

    call: ToolCall
    label: str
    result: str
    state: str = "done"


@dataclass(frozen=True, slots=True)
class ToolRound:
    """An answer that ended with calls of tools, and their results. The model goes on after it."""

    calls: tuple[CompletedCall, ...]
    text: str = ""  # before the calls
    reasoning: str = ""

    def messages(self, *, is_current: bool) -> tuple[Message, ...]:
        """Return the assistant's message with the calls, and a message for each result.

        is_current: the answer goes on after it, so the model may need the reasoning.
        """
        calls = tuple(done.call for done in self.calls)
        asked = Message("assistant", self.text, self.reasoning if is_current else "", calls)
        results = (Message("tool", one.result, tool_call_id=one.call.id, name=one.call.name) for one in self.calls)
        return (asked, *results)


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer; `stopped` marks an answer that was cut off by the user or a failure."""

    question: str
    answer: str
    stopped: bool = False
    reasoning: str = ""  # not sent again: chat templates leave out the reasoning of earlier turns

    pictures: Pictures = ()  # sent with the question
    rounds: tuple[ToolRound, ...] = ()  # before the answer

    @property
    def shown_question(self) -> str:
        return describe_question(self.question, self.pictures)

    def messages(self, *, sees: bool = True) -> tuple[Message, ...]:
        """Return the turn's messages, from the user's to the answer. sees: the model reads images."""
        return (*self.begun_messages(sees=sees, is_current=False), Message("assistant", self.answer))

    def begun_messages(self, *, sees: bool = True, is_current: bool = True) -> tuple[Message, ...]:
        """Return the messages before the answer. is_current: it is being written."""
        rounds = (message for each in self.rounds for message in each.messages(is_current=is_current))
        return (make_message(self.question, self.pictures, sees=sees), *rounds)


FileStamp = tuple[int, int, int]  # inode, nanoseconds since 1970, bytes: another one after each write


@dataclass(slots=True)
class Conversation:
    """A conversation, changed by each turn; the first `num_forgotten` turns are no longer sent."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    num_forgotten: int = 0
    unanswered: str = ""  # the question whose answer failed, for /retry
    unanswered_pictures: Pictures = ()  # sent with it
    name: str = ""  # it was saved or loaded under this name
    num_saved: int = 0  # turns at the front that are on disk
    stamp: FileStamp | None = None  # of its file when it was read or written here; None: it has none
    target: str = ""  # label of the model that it was saved with
    reference: str = ""  # what loads that model here; "": unknown, or a server's
    sampling: dict[str, float | int | None] = field(default_factory=dict)  # what was set while chatting, by name

    def messages(self, begun: Turn, *, num_forgotten: int | None = None, sees: bool = True) -> tuple[Message, ...]:
        """Return the messages to send: system message, turns still in the context, and the one that has begun.

        sees: the model reads images.
        """
        first = self.num_forgotten if num_forgotten is None else num_forgotten
        system = (Message("system", self.system),) if self.system else ()
        past = tuple(message for turn in self.turns[first:] for message in turn.messages(sees=sees))
        return (*system, *past, *begun.begun_messages(sees=sees))

    def add(self, turn: Turn) -> None:
        self.turns.append(turn)
        self.unanswered, self.unanswered_pictures = "", ()

    @property
    def last_pictures(self) -> Pictures:
        """The pictures of the question that `take_last_question` would return."""
        if self.unanswered:
            return self.unanswered_pictures
        return self.turns[-1].pictures if self.turns else ()

    def take_last_question(self) -> str:
        """Return the question to ask again: the failed one, or the last one, whose turn is removed; "" if none."""
        if self.unanswered:
            return self.unanswered
        if not self.turns:
            return ""
        question = self.turns.pop().question
        self.num_forgotten = min(self.num_forgotten, len(self.turns))
        self.num_saved = min(self.num_saved, len(self.turns))
        return question

    def clear(self) -> None:
        """Forget the turns; the system message stays."""
        self.turns.clear()
        self.num_forgotten = self.num_saved = 0
        self.unanswered, self.unanswered_pictures = "", ()
        self.name, self.stamp = "", None


# ---- context window: the number of old turns to leave out so that the next question and its answer fit in the
# context
#
# Pure. The client has no tokenizer, so tokens are estimated: from the last answer, for which the engine counted
# prompt and completion tokens, and before the first answer from characters. The engine may still refuse a request.
#
# Example: context 2048, no max_tokens, so 512 are kept for the answer. Three turns of about 700 tokens each and a
# question of 50 make 2150 > 1536: the oldest must go. That leaves 1450, so the next question would remove another
# turn, and so on, and each time the whole prompt is prefilled again. So the second goes at once, which leaves 750.
TOKENS_PER_CHAR = 0.35  # small vocabularies write English at about three characters a token
TARGET_SHARE = 0.75  # of the available tokens, once turns must be left out
TOKENS_PER_MESSAGE = 6.0  # role markers of the template
TOKENS_PER_IMAGE = 300.0  # most models: 256 of a square, more of a large one


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """An estimate of the tokens of messages, calibrated on the engine's counts for the last answer."""

    tokens_per_char: float = TOKENS_PER_CHAR
    num_tool_chars: int = 0  # of the tools that are offered with the messages

    def count_tokens(self, messages: tuple[Message, ...]) -> int:
        num_chars = _count_chars(messages) + self.num_tool_chars
        return round(num_chars * self.tokens_per_char + _estimate_overhead(messages))


@dataclass(frozen=True, slots=True)
class ContextUse:
    """The use of the context, in tokens; `size` 0: not known."""

    size: int = 0
    system: int = 0  # estimated
    history: int = 0  # questions and answers that are sent again

    @property
    def used(self) -> int:
        return self.system + self.history

    @property
    def share(self) -> float:
        return min(self.used / self.size, 1.0) if self.size else 0.0

    @property
    def free(self) -> int:
        return max(self.size - self.used, 0)


def calibrate_estimate(messages: tuple[Message, ...], num_tokens: int, num_tool_chars: int = 0) -> TokenEstimate:
    """Return the estimate that gives `num_tokens` for these messages, and tools of so many characters.

    The default if they have fewer than 200 characters or any images.
    """
    num_chars = _count_chars(messages) + num_tool_chars
    if num_chars < 200 or any(message.images for message in messages):  # the images' share is not known
        return TokenEstimate()
    return TokenEstimate(max(0.0, num_tokens - _estimate_overhead(messages)) / num_chars)


def _count_chars(messages: tuple[Message, ...]) -> int:
    """Return the characters of the messages, calls of tools included."""
    calls = (call for message in messages for call in message.tool_calls)
    return sum(len(message.content) for message in messages) + sum(len(call.name + call.arguments) for call in calls)


def _estimate_overhead(messages: tuple[Message, ...]) -> float:
    return len(messages) * TOKENS_PER_MESSAGE + sum(len(message.images) for message in messages) * TOKENS_PER_IMAGE


def reserve_for_answer(n_ctx: int, max_tokens: int | None) -> int:
    """Return the tokens to keep free for the answer.

    At most 3/4 of the context: a max_tokens that the engine would clip must not push out the whole conversation.
    """
    return n_ctx // 4 if max_tokens is None else min(max_tokens, n_ctx * 3 // 4)


def turns_to_forget(
    conversation: Conversation,
    begun: Turn,
    *,
    estimate: TokenEstimate,
    n_ctx: int,
    max_tokens: int | None,
) -> int:
    """Return how many of the oldest turns to leave out so that the turn `begun` fits; never fewer than now.

    If more must be left out than now, the rest takes at most TARGET_SHARE of the available tokens, unless that would
    leave out the last turn too. If the question does not even fit alone, all turns are left out, and the engine reports
    the error.
    """
    num_available = n_ctx - reserve_for_answer(n_ctx, max_tokens)
    counts = range(conversation.num_forgotten, len(conversation.turns) + 1)
    messages = {count: conversation.messages(begun, num_forgotten=count) for count in counts}
    needs = {count: estimate.count_tokens(sent) for count, sent in messages.items()}
    fitting = [count for count in counts if needs[count] <= num_available]
    if not fitting or fitting[0] == conversation.num_forgotten:
        return fitting[0] if fitting else len(conversation.turns)
    target = num_available * TARGET_SHARE
    with_space = (count for count in fitting if needs[count] <= target and count < len(conversation.turns))
    return next(with_space, fitting[0])
