"""A parser of answers of several messages, each with a header that gives its kind: Muse, Solar.

     to=self<|message|>..<|eom|><|start|>assistant to=user<|message|>..
    <|think|>..<|end|><|begin|>assistant<|content|>..

The prompt has the beginning of the first header. A message to the user is text; one to any other recipient may hold
calls, which their own parser reads. OpenAI's harmony format has its own parser (harmony_parser.py).
"""

from __future__ import annotations

import re
from enum import Enum

from eaglelocal.core.tools import MessageHeaders, Split
from eaglelocal.text.reasoning.markers import Item, Marker
from eaglelocal.text.reasoning.model_families import list_header_markers
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.call_parser import CallParser

MAX_HEADER_CHARS = 512
_RECIPIENT = re.compile(r"\s*+(t|to|to=\S*+)?\s*+")  # as far as it was read


class MessageState(Enum):
    """The parser's position in the answer: a header, or the kind of message."""

    HEADER = "header"
    REASONING = "reasoning"
    TEXT = "text"
    CALLS = "calls"


class MessageParser:
    """A parser of messages in front of one for calls. Implements call_parser.CallParser."""

    def __init__(self, collector: AnswerCollector, calls: CallParser, headers: MessageHeaders, split: Split) -> None:
        self._collector, self._calls = collector, calls
        self._reasoning, self._text = headers.reasoning.strip(), headers.text.strip()
        self._markers = frozenset(list_header_markers(headers))
        self._header_ends = frozenset(find_last_marker(header) for header in (headers.reasoning, headers.text))
        self._state = (
            MessageState.REASONING
            if split.in_reasoning
            else MessageState.TEXT
            if split.in_text
            else MessageState.HEADER
        )
        self._header = ""  # with its markers
        self._has_markers = split.in_reasoning or split.in_text
        # markers are control tokens, so one written as text is text
        self._has_tokens = any(name in self._markers for _, name in split.control_tokens)

    def push(self, item: Item) -> None:
        if isinstance(item, Marker) and item.name in self._markers and not (item.text and self._has_tokens):
            self._push_marker(item)
        elif self._state is MessageState.HEADER and isinstance(item, str):
            self._push_header(item)
        else:
            self._push_body(item)

    def finish(self, *, is_cut: bool) -> None:
        if self._state is MessageState.HEADER and not self._has_markers and not is_cut:
            self._collector.add_text(self._header)
        self._calls.finish(is_cut=is_cut)

    def _push_header(self, text: str) -> None:
        self._header += text
        is_too_long = len(self._header) > MAX_HEADER_CHARS
        if not self._has_markers and (
            is_too_long or not _RECIPIENT.fullmatch(self._header)
        ):  # a model that writes no headers after all
            self._state = MessageState.TEXT
            self._collector.add_text(self._header)
            self._header = ""

    def _push_marker(self, marker: Marker) -> None:
        self._has_markers = True
        self._has_tokens = self._has_tokens or not marker.text
        if self._state is MessageState.REASONING:
            self._collector.end_reasoning()
        if marker.name in self._header_ends:
            self._header += marker.name
            self._state = self._classify(self._header)
        else:
            self._state, self._header = MessageState.HEADER, ""

    def _classify(self, header: str) -> MessageState:
        """Return the kind of message that follows a header."""
        if header.endswith(self._reasoning):
            return MessageState.REASONING
        is_text = header.endswith(self._text) or " to=" not in f" {header}"
        return MessageState.TEXT if is_text else MessageState.CALLS

    def _push_body(self, item: Item) -> None:
        text = item.text if isinstance(item, Marker) else item
        if self._state is MessageState.REASONING:
            self._collector.add_reasoning(text)
        elif self._state is MessageState.TEXT:
            self._collector.add_text(text)
        else:
            self._state = MessageState.CALLS  # a marker of calls, without a header
            self._calls.push(item)


def find_last_marker(header: str) -> str:
    """Return the marker that ends a header, after which the message itself begins."""
    return header[header.rindex("<|") :]
