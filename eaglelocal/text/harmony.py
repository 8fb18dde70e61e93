"""Answers in OpenAI's harmony format (gpt-oss): messages on channels, each with a header.

    <|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..

analysis is thought, final and commentary are text, and what goes to=functions.name is a call. The prompt has
written the first `<|start|>assistant`. The last message ends with the answer: its end token is not shown here.
"""

from __future__ import annotations

import re
from enum import Enum

from eaglelocal.text.gathering import Gathering, as_object
from eaglelocal.text.marks import Item, Mark

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class Kind(Enum):
    """What a message is to the reader."""

    THOUGHT = "thought"
    TEXT = "text"
    CALL = "call"


class HarmonyParser:
    """Implements tool_calls.CallParser."""

    def __init__(self, found: Gathering, *, may_call: bool, begun: Kind | None = None) -> None:
        """`begun`: the message that the prompt has begun."""
        self._found, self._may_call = found, may_call
        self._header, self._said_in_header = "", ""  # with its markers, and its text alone
        self._kind: Kind | None = begun  # of the message; None: still its header
        self._recipient = self._arguments = ""

    def push(self, item: Item) -> None:
        if isinstance(item, Mark):
            self._mark(item.name)
        elif self._kind is None:
            self._header += item
            self._said_in_header += item
        else:
            self._body(item)

    def finish(self) -> None:
        self._end()
        if "<|" not in self._header:  # a model that writes no headers after all
            self._found.say(self._said_in_header)

    def _mark(self, name: str) -> None:
        if name == MESSAGE and self._kind is None:
            self._begin()
        elif name in ENDS or name == START:
            self._end()
            self._header = self._said_in_header = ""
        elif self._kind is None:
            self._header += name
        else:  # a header right behind a message that was not ended
            self._end()
            self._header, self._said_in_header = name, ""

    def _begin(self) -> None:
        channel, recipient = _CHANNEL.search(self._header), _RECIPIENT.search(self._header)
        self._recipient = recipient[1] if recipient else ""
        self._header = self._said_in_header = ""
        if self._may_call and self._recipient.startswith("functions."):
            self._kind = Kind.CALL
        elif channel is not None and (channel[1] == "analysis" or self._recipient):
            self._kind = Kind.THOUGHT
        else:
            self._kind = Kind.TEXT

    def _body(self, text: str) -> None:
        match self._kind:
            case Kind.THOUGHT:
                self._found.think(text)
            case Kind.CALL:
                self._arguments += text
            case _:
                self._found.say(text)

    def _end(self) -> None:
        """The message is whole."""
        if self._kind is Kind.THOUGHT:
            self._found.thought.release()
        if self._kind is Kind.CALL:
            self._call()
        self._kind, self._arguments = None, ""

    def _call(self) -> None:
        name, arguments = self._recipient.removeprefix("functions."), as_object(self._arguments.strip() or "{}")
        if arguments is None:
            self._found.say(self._arguments)
        else:
            self._found.call(name, arguments)
