"""A parser of answers in OpenAI's harmony format (gpt-oss): messages on channels, each with a header.

    <|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..

The channel analysis is reasoning, final and commentary are text, and a message to=functions.name is a call. The prompt
has the first `<|start|>assistant`. The last message ends with the answer: its end token is not shown here.
"""

from __future__ import annotations

import re
from enum import Enum

from eaglelocal.core.tools import Tool, ToolCall, Turns
from eaglelocal.text.reasoning.markers import Item, Mark
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector, as_object
from eaglelocal.text.tool_calls.json_calls import JsonCalls
from eaglelocal.text.tool_calls.tool_schemas import has_required

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
TURNS = Turns(
    thought=f"{CHANNEL}analysis{MESSAGE}",
    said=f"{CHANNEL}final{MESSAGE}",
    aside=f"{CHANNEL}commentary{MESSAGE}",
    onward=f"{ENDS[0]}{START}assistant",
)
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyKind(Enum):
    """The kind of a message."""

    THOUGHT = "thought"
    TEXT = "text"
    CALL = "call"


class HarmonyParser:
    """A parser of harmony messages. Implements tool_calls.CallParser."""

    def __init__(self, found: AnswerCollector, tools: tuple[Tool, ...], *, begun: HarmonyKind | None = None) -> None:
        """Create a parser. `begun`: the kind of message that the prompt has begun."""
        self._found, self._tools = found, {tool.name: tool for tool in tools}
        self._header, self._said_in_header = "", ""  # with and without its markers
        self._kind: HarmonyKind | None = begun  # of the message; None: in its header
        self._recipient = self._body_text = ""  # of the message; its text, before a JSON object begins
        self._json: JsonCalls | None = None  # the arguments, once they have begun
        self._has_marks = False

    def push(self, item: Item) -> None:
        if isinstance(item, Mark):
            self._mark(item.name)
        elif self._kind is None:
            self._header += item
            self._said_in_header += item
        else:
            self._body(item)

    def finish(self, *, is_cut: bool) -> None:
        self._end(is_cut=is_cut, is_told=False)
        if not self._has_marks:  # a model that writes no headers after all
            self._found.say(self._said_in_header)

    def _mark(self, name: str) -> None:
        self._has_marks = True
        if name == MESSAGE and self._kind is None:
            self._begin()
        elif name in ENDS or name == START:
            self._end()
            self._header = self._said_in_header = ""
        elif self._kind is None:
            self._header += name
        else:  # a header after a message that was not ended
            self._end()
            self._header, self._said_in_header = name, ""

    def _begin(self) -> None:
        channel, recipient = _CHANNEL.search(self._header), _RECIPIENT.search(self._header)
        self._recipient = recipient[1] if recipient else ""
        self._header = self._said_in_header = ""
        if self._tools and self._recipient.startswith("functions.") and self._called:
            self._kind = HarmonyKind.CALL
        elif channel is not None and (channel[1] == "analysis" or self._recipient):
            self._kind = HarmonyKind.THOUGHT
        else:
            self._kind = HarmonyKind.TEXT

    def _body(self, text: str) -> None:
        match self._kind:
            case HarmonyKind.THOUGHT:
                self._found.think(text)
            case HarmonyKind.CALL:
                self._argue(text)
            case _:
                self._found.say(text)

    def _argue(self, text: str) -> None:
        if self._json is None:
            self._body_text += text
            before, begun, text = self._body_text.partition("{")
            if not begun or before.strip():
                return
            named = ToolCall("", self._called, "")
            self._json, text = JsonCalls(self._found, self._tools, raw=before, named=named), begun + text
        self._json.push(text)

    @property
    def _called(self) -> str:
        return self._recipient.removeprefix("functions.")

    def _end(self, *, is_cut: bool = False, is_told: bool = True) -> None:
        """End the message; `is_told`: by a marker of its own."""
        if self._kind is HarmonyKind.THOUGHT:
            self._found.thought.release()
        if self._kind is HarmonyKind.CALL:
            self._call(is_cut=is_cut, is_told=is_told)
        self._kind, self._json, self._body_text = None, None, ""

    def _call(self, *, is_cut: bool, is_told: bool) -> None:
        json, text = self._json, self._body_text.strip()
        if json is not None:
            if not (json.tell_rest() if json.is_whole else json.close(is_cut=is_cut)):
                self._found.say(json.raw + json.rest)
            return
        is_sure = is_told or (not is_cut and has_required(self._tools.get(self._called), "{}"))
        arguments = as_object(text) if text or is_sure else None
        if arguments is None:
            self._found.say(self._body_text)
        else:
            self._found.call(self._called, arguments)
