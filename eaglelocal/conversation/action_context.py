"""The context of an action of a chat (a slash command), and texts that the screen and line mode share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.ask import Follow, follow_answer
from eaglelocal.conversation.session import Session
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError

LINE_KEYS: Mapping[str, str] = {
    '"""': "begin and end a text of several lines",
    "alt-enter, \\ at the end": "continue the text on the next line",
    "ctrl-c": "stop the answer; pressed twice, leave the chat",
    "ctrl-d": "leave the chat",
}
ListModels = Callable[[], Sequence[str]]  # references of the models on this disk
Copy = Callable[[str], None]  # copies a text to the clipboard and reports it


def format_copy_message(text: str, place: str = "") -> str:
    """Return the message that a text was copied. place: where to, if that is not the usual clipboard."""
    copied = f"copied {count_noun(len(text), 'character')}"
    return f"{copied} {place}" if place else copied


def list_no_models() -> Sequence[str]:
    """Return no models: the `ListModels` of a screen that has a picker."""
    return ()


def refuse_to_copy(text: str) -> None:
    """Raise UsageError: the `Copy` of a terminal without a clipboard."""
    raise UsageError("there is no clipboard here", hint="/export writes the conversation to a file")


class LeaveChat(Exception):
    """The user asked to leave the chat (/exit)."""


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The context of an action: session, output, folder of conversations, clipboard."""

    session: Session
    output: MessageOutput
    conversations: Path
    copy: Copy = refuse_to_copy
    keys: Mapping[str, str] = field(default_factory=lambda: LINE_KEYS)  # the keys that /help lists
    list_models: ListModels = list_no_models  # that /model names
    follow: Follow = lambda events: follow_answer(events, lambda event: None)  # an answer that is not shown
    has_screen: bool = False  # what is said appears on the chat screen

    def say(self, *lines: str) -> None:
        for line in lines:
            self.output.message(line)
