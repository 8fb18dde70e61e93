"""The conversation: a system message and turns; what a question is asked against.

Knows which messages go to the model and which turns fell out of the context. Does not know files,
tokens, models or terminals.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglelocal.core.request import Message
from eaglelocal.talk.pictures import Pictures, message_of, shown


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and what came back; `stopped` marks an answer that was cut off by a person or a failure."""

    question: str
    answer: str
    stopped: bool = False
    reasoning: str = (
        ""  # what the model thought; templates leave thoughts of earlier turns out, so it is not sent again
    )

    pictures: Pictures = ()  # that went with the question

    @property
    def shown_question(self) -> str:
        return shown(self.question, self.pictures)

    def messages(self, *, sees: bool = True) -> tuple[Message, Message]:
        """sees: the model reads images."""
        return message_of(self.question, self.pictures, sees=sees), Message("assistant", self.answer)


@dataclass(slots=True)
class Conversation:
    """The one thing that changes while people talk; `num_forgotten` turns at the front are no longer sent."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    num_forgotten: int = 0
    unanswered: str = ""  # the question whose answer failed, for /retry
    unanswered_pictures: Pictures = ()  # that went with it
    name: str = ""  # under which it was saved or loaded
    num_saved: int = 0  # turns at the front that are on disk

    def messages(
        self, question: str, pictures: Pictures = (), *, num_forgotten: int | None = None, sees: bool = True
    ) -> tuple[Message, ...]:
        """What to send: the system message, the turns still in the context, the question. sees: as in Turn."""
        first = self.num_forgotten if num_forgotten is None else num_forgotten
        system = (Message("system", self.system),) if self.system else ()
        past = tuple(message for turn in self.turns[first:] for message in turn.messages(sees=sees))
        return (*system, *past, message_of(question, pictures, sees=sees))

    @property
    def num_sent(self) -> int:
        """Turns that still go to the model."""
        return len(self.turns) - self.num_forgotten

    def add(self, turn: Turn) -> None:
        self.turns.append(turn)
        self.unanswered, self.unanswered_pictures = "", ()

    @property
    def last_pictures(self) -> Pictures:
        """Of the question that `take_last_question` takes."""
        if self.unanswered:
            return self.unanswered_pictures
        return self.turns[-1].pictures if self.turns else ()

    def take_last_question(self) -> str:
        """For asking again: the failed question, or the last one, whose answer is then forgotten."""
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
        self.name = ""
