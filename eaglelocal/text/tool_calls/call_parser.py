"""The interface of parsers of tool calls, what they share, and the parser for families that use no markers.

Each parser takes text and markers in order and adds text and calls to a Gathering; `finish` says that nothing
follows. Nothing is lost: what begins like a call and is none is text, as written. Parsers of blocks (block_calls.py),
reasoning (think_parser.py) and channels (harmony.py) are elsewhere.
"""

from __future__ import annotations

import re
from typing import Protocol

from eaglelocal.core.tools import CallForm, Tool, ToolCall
from eaglelocal.text.reasoning.markers import Item, Mark
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.json_calls import JsonCalls
from eaglelocal.text.tool_calls.python_calls import PythonCalls


class CallParser(Protocol):
    """A parser of one answer."""

    def push(self, item: Item) -> None: ...

    def finish(self, *, is_cut: bool) -> None:
        """End the answer: what was begun and is no call is text.

        `is_cut`: the model would have gone on, so a marked call that was begun is dropped.
        """


class NoCalls:
    """A parser that expects no calls: everything is text."""

    def __init__(self, found: AnswerCollector) -> None:
        self._found = found

    def push(self, item: Item) -> None:
        self._found.say(item.shown if isinstance(item, Mark) else item)

    def finish(self, *, is_cut: bool) -> None:
        pass


class CallBlock:
    """A block that may become a call: its whole text as written, and the text in it."""

    def __init__(self, opening: str = "", *, is_unopened: bool = False) -> None:
        self.raw, self.body = opening, ""
        self.is_unopened = is_unopened  # the opening marker was left out
        self._first = ""

    @property
    def first(self) -> str:
        """The first character that is no white space, or empty if there is none yet."""
        if not self._first:  # cached: it is read with every token, and a block may be long
            self._first = self.body.lstrip()[:1]
        return self._first

    def keep(self, text: str) -> None:
        self.raw += text
        self.body += text


class BareCalls:
    """A parser of {"name": .., "parameters": {..}} at the beginning or after <|python_tag|>; more after semicolons.

    Or [look_up(word="owl")], which some of these models write. Only the name distinguishes a call from JSON that was
    asked for, so it must be that of an offered tool.
    """

    def __init__(self, found: AnswerCollector, form: CallForm, tools: tuple[Tool, ...]) -> None:
        self._found, self._closing = found, form.end
        self._tools = {tool.name: tool for tool in tools}
        self._python = PythonCalls(self._tools)
        names = "|".join(re.escape(name) for name in sorted(self._tools))
        self._begins_python = re.compile(rf"\[\s*(?:{names})\s*\(")
        self._longest_begin = max(map(len, self._tools), default=0) + 16
        self._block: CallBlock | None = CallBlock()  # None: all is text up to a marker
        self._json: JsonCalls | None = None  # the object that the block turned out to be
        self._is_behind = False  # after a call, whose closing marker may follow

    def push(self, item: Item) -> None:
        block = self._block
        if isinstance(item, Mark):
            self._mark(item)
        elif self._json is not None:
            self._object(self._json, item)
        elif block is None:
            self._found.say(item)
        elif block.first == "[":
            self._list(block, item)
        else:
            self._before(block, item)

    def finish(self, *, is_cut: bool) -> None:
        json, self._json = self._json, None
        block, self._block = self._block, None
        if json is not None:
            self._is_behind = json.close(is_cut=is_cut)
            if not self._is_behind:
                self._found.say(json.raw)
        elif block is not None and not self._tell_list(block):
            self._found.say(block.raw)

    def _mark(self, mark: Mark) -> None:
        if self._json is not None and self._json.in_string and mark.shown:
            self._object(self._json, mark.shown)
            return
        self.finish(is_cut=False)
        if not (self._is_behind and mark.name == self._closing):
            self._block = CallBlock(mark.shown)
        self._is_behind = False

    def _before(self, block: CallBlock, text: str) -> None:
        """Read the text before an object or list, which may only be white space, and semicolons after a call."""
        begun = re.search(r"[{\[]", text)
        lead = text if begun is None else text[: begun.start()]
        if lead.strip("; \t\r\n"):
            self._found.say(block.raw + text)
            self._block = None
            return
        block.raw += lead
        if begun is None:
            return
        if begun[0] == "[":
            self._list(block, text[begun.start() :])
        else:
            self._json, self._block = JsonCalls(self._found, self._tools, raw=block.raw, is_bare=True), None
            self._object(self._json, text[begun.start() :])

    def _object(self, json: JsonCalls, text: str) -> None:
        if not json.push(text):
            return
        self._json = None
        if json.tell_rest():
            self._block, self._is_behind = CallBlock(), True
            self._again(json.rest)
        else:
            self._found.say(json.raw + json.rest)

    def _list(self, block: CallBlock, text: str) -> None:
        """Collect a list up to its end, once it has begun with a call of an offered tool."""
        block.keep(text)
        if len(block.body) > self._longest_begin and not self._begins_python.match(block.body):
            self._found.say(block.raw)
            self._block = None

    def _tell_list(self, block: CallBlock) -> bool:
        calls = self._python(block.body) if self._begins_python.match(block.body) else None
        if calls is None or any(call.name not in self._tools for call in calls):
            return False
        tell_all(self._found, calls)
        self._is_behind = True
        return True

    def _again(self, text: str) -> None:
        if text:
            self.push(text)


def tell_all(found: AnswerCollector, calls: list[ToolCall]) -> None:
    for call in calls:
        found.call(call.name, call.arguments, call.id)
