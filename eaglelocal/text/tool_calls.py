"""Tool calls in an answer, for the families that mark them: Hermes and Qwen, Llama, Mistral.

Each parser takes text and markers in order and tells text and calls to a Gathering; `finish` says that nothing
follows. Nothing is lost: what begins like a call and is none is text, spelled as it came.
Does not know thoughts (reasoning.py), nor channels (harmony.py).
"""

from __future__ import annotations

import re
from typing import Protocol

from eaglelocal.core.tools import Tool
from eaglelocal.text.function_xml import read_function
from eaglelocal.text.gathering import Gathering, as_object, read_call
from eaglelocal.text.json_spans import JsonEnd, elements
from eaglelocal.text.marks import Item, Mark

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MAX_NAME_CHARS = 256
_BEGINS_NAME = re.compile(r"\s*[\w.-]*\s*")


class CallParser(Protocol):
    """One answer's parser."""

    def push(self, item: Item) -> None: ...

    def finish(self) -> None:
        """Nothing follows: what was begun is text."""


class NoCalls:
    """No calls are expected: all is text."""

    def __init__(self, found: Gathering) -> None:
        self._found = found

    def push(self, item: Item) -> None:
        self._found.say(item.shown if isinstance(item, Mark) else item)

    def finish(self) -> None:
        pass


class Block:
    """What may become a call: all of its text as it came, and the JSON in it as far as it has come."""

    def __init__(self, opening: str = "") -> None:
        self.raw, self.body, self.rest = opening, "", ""
        self._end = JsonEnd()

    @property
    def first(self) -> str:
        """The first character that is no white space, or nothing yet."""
        return self.body.lstrip()[:1]

    @property
    def in_string(self) -> bool:
        return self._end.in_string

    def keep(self, text: str) -> None:
        self.raw += text
        self.body += text

    def add_json(self, text: str) -> bool:
        """True when the value is whole; `rest` is then what lies behind it."""
        end = self._end.find(text)
        if end is None:
            self.keep(text)
            return False
        self.keep(text[:end])
        self.rest = text[end:]
        return True


class TaggedCalls:
    """<tool_call>{"name": .., "arguments": {..}}</tool_call>, or in it <function=name><parameter=key>text."""

    def __init__(self, found: Gathering, tools: tuple[Tool, ...]) -> None:
        self._found = found
        self._tools = {tool.name: tool for tool in tools}
        self._block: Block | None = None
        self._is_closing = False  # the call is told, its closing marker may follow

    def push(self, item: Item) -> None:
        block = self._block
        if isinstance(item, Mark):
            self._mark(item, block)
        elif block is None:
            self._text(item)
        elif block.first == "<" or (not block.first and item.lstrip()[:1] in ("<", "")):
            block.keep(item)
        elif not block.first and item.lstrip()[:1] != "{":
            self._abandon(block)
            self._text(item)
        else:
            self._json(block, item)

    def finish(self) -> None:
        if self._block is not None and not self._read_xml(self._block):
            self._abandon(self._block)

    def _text(self, text: str) -> None:
        self._is_closing = self._is_closing and not text.strip()
        self._found.say(text)

    def _mark(self, mark: Mark, block: Block | None) -> None:
        if block is not None and (block.in_string or self._is_value(mark, block)):
            block.keep(mark.shown)
            return
        if block is not None and mark.name == CLOSE and self._read_xml(block):
            return
        if block is not None:
            self._abandon(block)
        if mark.name == OPEN:
            self._block = Block(mark.shown)
        elif not (self._is_closing and mark.name == CLOSE):
            self._text(mark.shown)
        self._is_closing = False

    def _is_value(self, mark: Mark, block: Block) -> bool:
        """Inside <parameter=..> a marker is text."""
        return block.first == "<" and mark.shown != "" and not block.body.rstrip().endswith("</function>")

    def _json(self, block: Block, text: str) -> None:
        if not block.add_json(text):
            return
        if self._found.try_call(block.body):
            self._block, self._is_closing = None, True
        else:
            self._abandon(block)
        if block.rest:
            self._text(block.rest)

    def _read_xml(self, block: Block) -> bool:
        """Tell the call, if the block is one."""
        call = read_function(block.body, self._tools)
        if call is None:
            return False
        self._found.call(call.name, call.arguments)
        self._block = None
        return True

    def _abandon(self, block: Block) -> None:
        self._found.say(block.raw)
        self._block = None


class BareCalls:
    """{"name": .., "parameters": {..}}, where the answer begins or behind <|python_tag|>; more behind semicolons.

    Nothing but the name tells a call from JSON that was asked for, so it must be one that was offered.
    """

    def __init__(self, found: Gathering, tools: tuple[Tool, ...]) -> None:
        self._found, self._names = found, frozenset(tool.name for tool in tools)
        self._block: Block | None = Block()  # None: all is text up to a marker

    def push(self, item: Item) -> None:
        block = self._block
        if isinstance(item, Mark):
            self._mark(item)
        elif block is None:
            self._found.say(item)
        elif block.first == "{":
            self._json(block, item)
        else:
            self._before(block, item)

    def finish(self) -> None:
        if self._block is not None:
            self._found.say(self._block.raw)

    def _mark(self, mark: Mark) -> None:
        if self._block is not None and self._block.in_string:
            self._block.keep(mark.shown)
            return
        self.finish()
        self._block = Block(mark.shown)

    def _before(self, block: Block, text: str) -> None:
        """Only white space, and semicolons behind a call, may stand before an object."""
        start = text.find("{")
        lead = text if start < 0 else text[:start]
        if lead.strip("; \t\r\n"):
            self._found.say(block.raw + text)
            self._block = None
            return
        block.raw += lead
        if start >= 0:
            self._json(block, text[start:])

    def _json(self, block: Block, text: str) -> None:
        if not block.add_json(text):
            return
        if self._found.try_call(block.body, self._names):
            self._block = Block()
            self._again(block.rest)
        else:
            self._found.say(block.raw + block.rest)
            self._block = None

    def _again(self, text: str) -> None:
        if text:
            self.push(text)


class BracketCalls:
    """[TOOL_CALLS][{"name": .., "arguments": {..}}], or [TOOL_CALLS]name[ARGS]{..} for each call."""

    def __init__(self, found: Gathering) -> None:
        self._found = found
        self._block: Block | None = None
        self._name = self._call_id = ""
        self._in_id = False

    def push(self, item: Item) -> None:
        block = self._block
        if isinstance(item, Mark):
            self._mark(item, block)
        elif block is None:
            self._found.say(item)
        elif block.first in ("{", "["):
            self._json(block, item)
        else:
            self._before(block, item)

    def finish(self) -> None:
        if self._block is not None:
            self._abandon(self._block)

    def _mark(self, mark: Mark, block: Block | None) -> None:
        if block is not None and block.in_string:
            block.keep(mark.shown)
        elif block is not None and not block.first and mark.name in (ARGS, CALL_ID) and self._name:
            self._in_id = mark.name == CALL_ID
            block.raw += mark.shown
        else:
            self.finish()
            self._block = Block(mark.shown) if mark.name == CALLS else None
            self._name = self._call_id = ""
            self._in_id = False
            if self._block is None:
                self._found.say(mark.shown)

    def _before(self, block: Block, text: str) -> None:
        """A name or an id, up to the object or the array."""
        start = re.search(r"[{\[]", text)
        lead = text if start is None else text[: start.start()]
        if self._in_id:
            self._call_id += lead.strip()
        else:
            self._name += lead
        block.raw += lead
        if not _BEGINS_NAME.fullmatch(self._name) or len(self._name) > MAX_NAME_CHARS:
            self._found.say(block.raw + text[len(lead) :])
            self._block = None
        elif start is not None:
            self._json(block, text[start.start() :])

    def _json(self, block: Block, text: str) -> None:
        if not block.add_json(text):
            return
        self._block = None
        if not self._tell(block.body):
            self._found.say(block.raw)
        if block.rest:
            self._found.say(block.rest)

    def _tell(self, body: str) -> bool:
        """All calls of an array, or none."""
        if name := self._name.strip():
            arguments = as_object(body)
            if arguments is None:
                return False
            self._found.call(name, arguments, self._call_id)
            return True
        calls = [body] if body.startswith("{") else elements(body)
        if not calls or any(read_call(call) is None for call in calls):
            return False
        return all([self._found.try_call(call) for call in calls])

    def _abandon(self, block: Block) -> None:
        self._found.say(block.raw)
        self._block = None
