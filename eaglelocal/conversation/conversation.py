"""The conversation: a system message and turns.

It decides which messages go to the model, and records which turns no longer fit in the context. It does not depend on
files, tokens, models or terminals.
"""

from __future__ import annotations

from dataclasses import field

from eaglelocal.conversation.pictures import Pictures, describe_question, make_message
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer; `stopped` marks an answer that was cut off by the user or a failure."""

    question: str
    answer: str
    stopped: bool = False
    reasoning: str = ""  # not sent again: chat templates leave out the reasoning of earlier turns

    pictures: Pictures = ()  # sent with the question

    @property
    def shown_question(self) -> str:
        return describe_question(self.question, self.pictures)

    def messages(self, *, sees: bool = True) -> tuple[Message, Message]:
        """Return the turn's user and assistant message. sees: the model reads images."""
        return make_message(self.question, self.pictures, sees=sees), Message("assistant", self.answer)


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

    def messages(
        self, question: str, pictures: Pictures = (), *, num_forgotten: int | None = None, sees: bool = True
    ) -> tuple[Message, ...]:
        """Return the messages to send: system message, turns still in the context, question.

        sees: the model reads images.
        """
        first = self.num_forgotten if num_forgotten is None else num_forgotten
        system = (Message("system", self.system),) if self.system else ()
        past = tuple(message for turn in self.turns[first:] for message in turn.messages(sees=sees))
        return (*system, *past, make_message(question, pictures, sees=sees))

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

    def rename(self, name: str) -> None:
        """Record the name under which it is saved; "" if it is no longer."""
        self.name = name

    def forget(self, num_turns: int) -> None:
        """Send the first `num_turns` turns no more."""
        self.num_forgotten = num_turns

    def drop_unanswered(self) -> None:
        self.unanswered = ""

    def mark_saved(self, stamp: FileStamp) -> None:
        """Count all turns as saved, in a file with this stamp."""
        self.num_saved, self.stamp = len(self.turns), stamp

    def record_model(self, target: str, reference: str) -> None:
        """Record the model that answers from now on."""
        self.target, self.reference = target, reference

    def keep_unanswered(self, question: str, pictures: Pictures) -> None:
        """Keep a question whose answer failed, to be asked again."""
        self.unanswered, self.unanswered_pictures = question, pictures

    def clear(self) -> None:
        """Forget the turns; the system message stays."""
        self.turns.clear()
        self.num_forgotten = self.num_saved = 0
        self.unanswered, self.unanswered_pictures = "", ()
        self.name, self.stamp = "", None
