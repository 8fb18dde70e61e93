"""A parser of answers in OpenAI's harmony format (gpt-oss): messages on channels, each with a header.

    <|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..

The channel analysis is reasoning, final and commentary are text, and a message to=functions.name is a call. The prompt
has the first `<|start|>assistant`. The last message ends with the answer: its end token is not shown here.
"""

from __future__ import annotations

import re
from typing import Literal

from eaglelocal.core.tools import MessageHeaders, Split, ToolCall
from eaglelocal.text.reasoning.markers import Item, Marker
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.json_calls import JsonCalls, normalize_arguments
from eaglelocal.text.tool_calls.tool_schemas import has_required

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
HEADERS = MessageHeaders(
    reasoning=f"{CHANNEL}analysis{MESSAGE}",
    text=f"{CHANNEL}final{MESSAGE}",
    preamble=f"{CHANNEL}commentary{MESSAGE}",
    next_header=f"{ENDS[0]}{START}assistant",
)
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


HarmonyKind = Literal["reasoning", "text", "call"]  # of a message


class HarmonyParser:
    """A parser of harmony messages. Implements call_parser.CallParser."""

    def __init__(self, collector: AnswerCollector, split: Split) -> None:
        self._collector, self._tools = collector, {tool.name: tool for tool in split.tools}
        self._header, self._header_text = "", ""  # with and without its markers
        begun: HarmonyKind | None = "text" if split.in_text else None
        self._kind = "reasoning" if split.in_reasoning else begun  # of the message; None: in its header
        self._recipient = self._body_text = ""  # of the message; its text, before a JSON object begins
        self._json: JsonCalls | None = None  # the arguments, once they have begun
        self._has_markers = False

    @property
    def in_reasoning(self) -> bool:
        return self._kind == "reasoning"

    def push(self, item: Item) -> None:
        if isinstance(item, Marker):
            self._push_marker(item.name)
        elif self._kind is None:
            self._header += item
            self._header_text += item
        else:
            self._push_body(item)

    def finish(self, *, is_cut: bool) -> None:
        self._end(is_cut=is_cut, has_marker=False)
        if not self._has_markers:  # the model writes no headers
            self._collector.add_text(self._header_text)

    def _push_marker(self, name: str) -> None:
        self._has_markers = True
        if name == MESSAGE and self._kind is None:
            self._begin()
        elif name in ENDS or name == START:
            self._end()
            self._header = self._header_text = ""
        elif self._kind is None:
            self._header += name
        else:  # a header after a message that was not ended
            self._end()
            self._header, self._header_text = name, ""

    def _begin(self) -> None:
        channel, recipient = _CHANNEL.search(self._header), _RECIPIENT.search(self._header)
        self._recipient = recipient[1] if recipient else ""
        self._header = self._header_text = ""
        if self._tools and self._recipient.startswith("functions.") and self._tool_name:
            self._kind = "call"
        elif channel is not None and (channel[1] == "analysis" or self._recipient):
            self._kind = "reasoning"
        else:
            self._kind = "text"

    def _push_body(self, text: str) -> None:
        match self._kind:
            case "reasoning":
                self._collector.add_reasoning(text)
            case "call":
                self._push_arguments(text)
            case _:
                self._collector.add_text(text)

    def _push_arguments(self, text: str) -> None:
        if self._json is None:
            self._body_text += text
            before, brace, text = self._body_text.partition("{")
            if not brace or before.strip():
                return
            named = ToolCall("", self._tool_name, "")
            self._json, text = JsonCalls(self._collector, self._tools, raw=before, named=named), brace + text
        self._json.push(text)

    @property
    def _tool_name(self) -> str:
        return self._recipient.removeprefix("functions.")

    def _end(self, *, is_cut: bool = False, has_marker: bool = True) -> None:
        """End the message; `has_marker`: by a marker of its own."""
        if self._kind == "reasoning":
            self._collector.reasoning.release()
        if self._kind == "call":
            self._end_call(is_cut=is_cut, has_marker=has_marker)
        self._kind, self._json, self._body_text = None, None, ""

    def _end_call(self, *, is_cut: bool, has_marker: bool) -> None:
        json, text = self._json, self._body_text.strip()
        if json is not None:
            if not json.close(is_cut=is_cut):
                self._collector.add_text(json.raw + json.rest)
            self._collector.note_unread("harmony", json.problem)
            return
        is_certain = has_marker or (not is_cut and has_required(self._tools.get(self._tool_name), "{}"))
        arguments = normalize_arguments(text) if text or is_certain else None
        if arguments is None:
            self._collector.add_text(self._body_text)
        else:
            self._collector.add_calls([ToolCall("", self._tool_name, arguments)])
