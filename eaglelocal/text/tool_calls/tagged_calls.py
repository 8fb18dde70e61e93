"""An emitter of calls between tags while they are written: the name when its first argument begins, then each argument.

<function=look_up><parameter=word>owl</parameter><parameter=      -> look_up begun, arguments {"word": "owl" so far
"""

from __future__ import annotations

import json

from eaglelocal.core.tools import ToolCall
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.tagged_text import TaggedText


class TaggedCalls:
    """An emitter of the calls of one block after another."""

    def __init__(self, found: AnswerCollector, text: TaggedText) -> None:
        self._found, self._text = found, text
        self.begin()

    @property
    def num_told(self) -> int:
        """The number of this block's calls that were emitted, the last perhaps in part."""
        return len(self._told)

    def begin(self) -> None:
        """Begin a new block."""
        self._told: list[str] = []  # the emitted arguments of each call
        self._is_open = False  # the last of them may get more
        self._num_seen = 0  # characters
        self._value_at = self._text_at = -1  # an unfinished text: where it begins, and up to where it is emitted

    def may_go_on(self, body: str) -> bool:
        """Return whether arguments, or a call's end, can follow the tag that begins it."""
        return self._text.may_go_on(body)

    def tell(self, body: str) -> None:
        """Emit what is certain of the block so far."""
        seen, self._num_seen = self._num_seen, len(body)
        if self._text.has_news(body, seen):
            begun = self._text.begun(body)
            for index, (call, is_whole) in enumerate(begun.calls):
                self._tell(index, call, is_whole)
            self._value_at, self._text_at = begun.value_at, begun.text_at
        elif self._value_at >= 0:
            more, self._text_at = self._text.more(body, self._value_at, self._text_at)
            self._argue(json.dumps(more, ensure_ascii=False)[1:-1])

    def end(self, calls: list[ToolCall]) -> None:
        """End the block, whose calls these are, and emit the rest of them."""
        for index, call in enumerate(calls):
            self._tell(index, call, is_whole=True)

    def close(self, body: str) -> None:
        """End the block without its closing tags. The last call may be complete all the same."""
        if self._is_open and self._text.lacks_only_its_end(body):
            self._found.argue("}")
            self._found.end_call()
            self._is_open = False

    def _tell(self, index: int, call: ToolCall, is_whole: bool) -> None:
        if index == len(self._told):
            self._found.begin_call(call.name)
            self._told.append("")
            self._is_open = True
        elif index < len(self._told) - 1 or not self._is_open:
            return
        self._argue(call.arguments.removeprefix(self._told[index]))
        if is_whole:
            self._found.end_call()
            self._is_open = False

    def _argue(self, arguments: str) -> None:
        self._told[-1] += arguments
        self._found.argue(arguments)
