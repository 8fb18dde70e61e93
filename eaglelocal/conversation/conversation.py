"""The conversation: a system message and turns.

It decides which messages go to the model, and records which turns no longer fit in the context. It does not depend on
files, tokens, models or terminals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from itertools import accumulate

from eaglelocal.conversation.pictures import Pictures, describe_question, make_message
from eaglelocal.core.events import Finished
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
    others: tuple[tuple[Turn, ...], ...] = ()  # its other versions, each with the turns that followed it
    version: int = 0  # its index among all its versions
    finished: Finished | None = field(default=None, compare=False)  # its figures; None: it failed

    @property
    def num_versions(self) -> int:
        return len(self.others) + 1

    @property
    def is_answered(self) -> bool:
        """True if it has more than thoughts. A turn without an answer is kept, but its question is not sent again."""
        return bool(self.answer or self.rounds) or not self.stopped

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that the model wrote, in order: those before calls of tools, and the answer."""
        return (*(done.text for done in self.rounds), self.answer)

    @property
    def shown_question(self) -> str:
        return describe_question(self.question, self.pictures)

    def messages(self, *, sees: bool = True) -> tuple[Message, ...]:
        """Return the turn's messages, from the user's to the answer. sees: the model reads images."""
        if not self.is_answered:
            return ()
        return (*self.begun_messages(sees=sees, is_current=False), Message("assistant", self.answer))

    def begun_messages(self, *, sees: bool = True, is_current: bool = True) -> tuple[Message, ...]:
        """Return the messages before the answer. is_current: it is being written."""
        rounds = (message for each in self.rounds for message in each.messages(is_current=is_current))
        return (make_message(self.question, self.pictures, sees=sees), *rounds)


Branch = tuple[Turn, ...]  # a version of a turn, and the turns that followed it


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """A summary that is sent in place of the first `num_turns` turns."""

    text: str
    num_turns: int
    last_answer: str  # of those turns: another one means that they were replaced
    num_forgotten: int = 0  # before it was made


SUMMARY_QUESTION = "What have we said so far?"  # templates want questions and answers by turns
FileStamp = tuple[int, int, int]  # inode, nanoseconds since 1970, bytes: another one after each write


@dataclass(slots=True)
class Conversation:
    """A conversation, changed by each turn; the first `num_forgotten` turns are no longer sent."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    num_forgotten: int = 0
    begun: Branch = ()  # the turn whose answer is being written
    replaced: Branch = ()  # turns that were cut; the next answer is another version of the first of them
    name: str = ""  # it was saved or loaded under this name
    num_saved: int = 0  # turns at the front that are on disk
    stamp: FileStamp | None = None  # of its file when it was read or written here; None: it has none
    target: str = ""  # label of the model that it was saved with
    reference: str = ""  # what loads that model here; "": unknown, or a server's
    sampling: dict[str, float | int | None] = field(default_factory=dict)  # what was set while chatting, by name
    summarized: TurnSummary | None = None  # as it was made, also if its turns were replaced since

    def __post_init__(self) -> None:
        self._leave_out_summarized()

    def summarize(self, made: TurnSummary | None, num_forgotten: int) -> None:
        """Send a summary in place of the turns that it is made of; None: send the turns again."""
        self.summarized, self.num_forgotten = made, num_forgotten
        self.num_saved = 0  # the file has another summary

    @property
    def summary(self) -> TurnSummary | None:
        """The summary of the first turns, if it was made of these turns."""
        made = self.summarized
        if made is None or len(self.turns) < made.num_turns:
            return None
        return made if self.turns[made.num_turns - 1].answer == made.last_answer else None

    @property
    def num_summarized(self) -> int:
        """The turns in place of which the summary is sent."""
        return 0 if self.summary is None else self.summary.num_turns

    def messages(self, begun: Turn, *, num_forgotten: int | None = None, sees: bool = True) -> tuple[Message, ...]:
        """Return the messages to send: system message, summary, turns still in the context, and the one that has begun.

        sees: the model reads images.
        """
        first = self.num_forgotten if num_forgotten is None else num_forgotten
        system = (Message("system", self.system),) if self.system else ()
        shown = self.turns[first:]
        if summary := self.summary:
            shown = [Turn(SUMMARY_QUESTION, summary.text), *self.turns[max(first, summary.num_turns) :]]
        past = tuple(message for turn in shown for message in turn.messages(sees=sees))
        return (*system, *past, *begun.begun_messages(sees=sees))

    def add(self, turn: Turn) -> None:
        """Add a turn; if turns were cut, as another version of the first of them, unless that has no answer."""
        versions = tuple(each for each in list_versions(self.replaced) if len(each) > 1 or each[0].is_answered)
        self.turns.append(replace(turn, others=versions, version=len(versions)))
        self.replaced = ()

    @property
    def kept(self) -> Branch:
        """The turns that are saved: those that were cut too, until an answer replaces them."""
        return (*self.turns, *(self.replaced or self.begun))

    @property
    def texts(self) -> list[str]:
        """The texts that the model wrote, in order, without empty ones."""
        return [text for turn in self.turns for text in turn.texts if text]

    def cut(self, index: int) -> None:
        """Cut the turns from an index on, to ask another version of the first of them. `restore` puts them back."""
        self.replaced = tuple(self.turns[index:])
        del self.turns[index:]
        self._mark_changed(index)

    def restore(self) -> bool:
        """Put cut turns back that no answer has replaced. Return True if there were any."""
        was_cut = bool(self.replaced)
        self.turns += self.replaced
        self.replaced = ()
        self._leave_out_summarized()
        return was_cut

    def choose_version(self, index: int, version: int) -> None:
        """Go on with another version of a turn, and the turns that followed that one."""
        versions = list_versions(tuple(self.turns[index:]))
        first, *rest = versions[version]
        others = (*versions[:version], *versions[version + 1 :])
        self.turns[index:] = [replace(first, others=others, version=version), *rest]
        self._mark_changed(index)

    def _mark_changed(self, index: int) -> None:
        """Note that the turns from an index on are other ones; what still fits before them is estimated anew."""
        self.num_saved = min(self.num_saved, index)
        if index < self.num_forgotten:
            self.num_forgotten = 0
        self._leave_out_summarized()

    def _leave_out_summarized(self) -> None:
        self.num_forgotten = max(self.num_forgotten, self.num_summarized)

    def branch(self, index: int) -> Conversation:
        """Return a new conversation with the turns up to this index, without their other versions."""
        turns = [replace(turn, others=(), version=0) for turn in self.turns[: index + 1]]
        return Conversation(self.system, turns, sampling=dict(self.sampling))

    def clear(self) -> None:
        """Forget the turns; the system message stays."""
        self.turns.clear()
        self.num_forgotten = self.num_saved = 0
        self.summarized = None
        self.replaced = ()
        self.name, self.stamp = "", None


def list_versions(branch: Branch) -> tuple[Branch, ...]:
    """Return all versions of a branch's first turn, itself among them; none of an empty branch."""
    if not branch:
        return ()
    first = branch[0]
    own = (replace(first, others=(), version=0), *branch[1:])
    return (*first.others[: first.version], own, *first.others[first.version :])


def walk_branches(turns: Branch) -> Iterator[Branch]:
    """Yield the turns, then each other version of any turn with the turns that followed it."""
    branches = [turns]
    for branch in branches:  # which grows
        yield branch
        branches += [other for turn in branch for other in turn.others]


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

    @property
    def tool_tokens(self) -> float:
        return self.num_tool_chars * self.tokens_per_char

    def count_tokens(self, messages: tuple[Message, ...]) -> int:
        return round(self.measure(messages))

    def measure(self, messages: tuple[Message, ...]) -> float:
        """Return the tokens before rounding, which add up over parts of a conversation."""
        return _count_chars(messages) * self.tokens_per_char + _estimate_overhead(messages)


@dataclass(frozen=True, slots=True)
class ContextUse:
    """The use of the context, in tokens; `size` 0: not known."""

    size: int = 0
    system: int = 0  # estimated
    history: int = 0  # questions and answers that are sent again
    is_counted: bool = True  # by the engine; False: the history is estimated too

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
    first, turns = conversation.num_forgotten, conversation.turns
    alone = estimate.tool_tokens + estimate.measure(conversation.messages(begun, num_forgotten=len(turns)))
    num_summarized = conversation.num_summarized
    sent = (turns[at].messages() if at >= num_summarized else () for at in reversed(range(first, len(turns))))
    totals = map(round, accumulate(map(estimate.measure, sent), initial=alone))
    needs = dict(zip(range(len(turns), first - 1, -1), totals, strict=True))  # by the count that is left out
    fitting = [count for count in range(first, len(turns) + 1) if needs[count] <= num_available]
    if not fitting or fitting[0] == conversation.num_forgotten:
        return fitting[0] if fitting else len(conversation.turns)
    target = num_available * TARGET_SHARE
    with_space = (count for count in fitting if needs[count] <= target and count < len(conversation.turns))
    return next(with_space, fitting[0])
