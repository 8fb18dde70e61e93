"""An emitter of calls between tags while they are written: the name when its first argument begins, then each argument.

<function=look_up><parameter=word>owl</parameter><parameter=      -> look_up begun, arguments {"word": "owl" so far
"""

from __future__ import annotations

import json

from eaglelocal.core.tools import ToolCall
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.tagged_text import TaggedText


class TaggedCalls:
    """An emitter of the calls of one block."""

    def __init__(self, collector: AnswerCollector, reader: TaggedText) -> None:
        self._collector, self._reader = collector, reader
        self._emitted: list[str] = []  # the emitted arguments of each call
        self._is_open = False  # the last of them may get more
        self._num_read = 0  # characters
        self._value_at = self._text_at = -1  # an unfinished string: where it begins, and up to where it is emitted

    @property
    def num_emitted(self) -> int:
        """The number of calls that were emitted, the last perhaps in part."""
        return len(self._emitted)

    def may_continue(self, body: str) -> bool:
        """Return whether arguments, or a call's end, can follow the tag that begins it."""
        return self._reader.may_continue(body)

    def emit_certain(self, body: str) -> None:
        """Emit the parts of calls that are certain so far."""
        num_read, self._num_read = self._num_read, len(body)
        if self._reader.has_new_tag(body, num_read):
            partial = self._reader.read_partial(body)
            for index, (call, is_complete) in enumerate(partial.calls):
                self._emit_call(index, call, is_complete)
            self._value_at, self._text_at = partial.value_at, partial.text_at
        elif self._value_at >= 0:
            more, self._text_at = self._reader.read_more(body, self._value_at, self._text_at)
            self._emit_arguments(json.dumps(more, ensure_ascii=False)[1:-1])

    def end(self, calls: list[ToolCall]) -> None:
        """End the block, whose calls these are, and emit the rest of them."""
        for index, call in enumerate(calls):
            self._emit_call(index, call, is_complete=True)

    def close(self, body: str) -> None:
        """End the block without its closing tags. The last call may be complete all the same."""
        if self._is_open and self._reader.lacks_only_end_tag(body):
            self._collector.add_arguments("}")
            self._collector.end_call()
            self._is_open = False

    def _emit_call(self, index: int, call: ToolCall, is_complete: bool) -> None:
        if index == len(self._emitted):
            self._collector.begin_call(call.name)
            self._emitted.append("")
            self._is_open = True
        elif index < len(self._emitted) - 1 or not self._is_open:
            return
        self._emit_arguments(call.arguments.removeprefix(self._emitted[index]))
        if is_complete:
            self._collector.end_call()
            self._is_open = False

    def _emit_arguments(self, arguments: str) -> None:
        self._emitted[-1] += arguments
        self._collector.add_arguments(arguments)
