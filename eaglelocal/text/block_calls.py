"""Calls between markers, for the many families that have them: a block is read when it has come to its end.

JSON shows its end itself; of anything else the closing marker decides, and where what it closes cannot be read yet, the
marker was part of a value. Forms are data (call_forms.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from eaglelocal.core.tools import CallForm, Notation, Tool, ToolCall
from eaglelocal.text.call_forms import CODER, OPEN
from eaglelocal.text.gathering import Gathering, as_object, read_call
from eaglelocal.text.gemma_calls import read_gemma
from eaglelocal.text.json_spans import elements
from eaglelocal.text.marks import Item, Mark
from eaglelocal.text.python_calls import PythonCalls
from eaglelocal.text.tagged_text import TaggedText
from eaglelocal.text.tool_calls import Block, tell_all

MAX_HEAD_CHARS = 512
Read = Callable[[str], list[ToolCall] | None]
_HEAD = re.compile(r"[\s\w.:`>-]*")
# how the text of a block may begin; what does not is given up at once
_BEGINNINGS: dict[Notation, re.Pattern[str]] = {
    Notation.TAGS: re.compile(r"<|[\w.-]{1,64}\s*(<|$)"),
    Notation.PYTHON: re.compile(r"[\[\w]"),
    Notation.GEMMA: re.compile(r"c"),
}


class BlockCalls:
    """Implements tool_calls.CallParser."""

    def __init__(self, found: Gathering, form: CallForm, tools: tuple[Tool, ...]) -> None:
        self._found, self._form = found, form
        self._read = reader_of(form, {tool.name: tool for tool in tools})
        self._block: Block | None = None
        self._head: str | None = None  # of the block: what stands before its JSON; None: it is no JSON
        self._lead = ""  # markers around blocks, as they came: text, if no block follows
        self._is_behind = False  # a call, whose closing markers may follow

    def push(self, item: Item) -> None:
        block = self._block
        if isinstance(item, Mark):
            self._mark(item, block)
        elif block is None:
            self._outside(item)
        else:
            self._inside(block, item)

    def finish(self) -> None:
        if self._block is not None and not self._tell_text(self._block):
            self._abandon(self._block)
        self._found.say(self._lead)
        self._lead = ""

    # ---- outside a block
    def _outside(self, text: str) -> None:
        if self._is_behind:
            text = text.lstrip(" \t\r\n" + self._form.tail)
        if self._lead and not text.strip():
            self._lead += text
        elif text:
            self._found.say(self._lead + text)
            self._lead, self._is_behind = "", False

    def _mark_outside(self, mark: Mark) -> None:
        form = self._form
        if mark.name == form.begin:
            self._block, self._head = Block(self._lead + mark.shown), None
            self._lead, self._is_behind = "", False
        elif self._is_behind and (mark.name == form.end or mark.name in form.section):
            return
        elif mark.name in form.section:
            self._lead += mark.shown
        else:
            self._outside(mark.shown)

    # ---- in a block
    def _mark(self, mark: Mark, block: Block | None) -> None:
        form = self._form
        if block is None:
            self._mark_outside(mark)
        elif block.in_string:
            block.keep(mark.shown)
        elif mark.name == form.end and self._tell_text(block):
            return
        elif mark.name in form.inside and (self._head is None or not block.first):
            block.raw += mark.shown
            block.body += mark.name
        elif mark.shown and self._is_value(block):
            block.keep(mark.shown)
        else:
            if not self._tell_text(block):
                self._abandon(block)
            self._mark_outside(mark)

    def _is_value(self, block: Block) -> bool:
        """The marker may be text in an argument."""
        if self._is_json(block):
            return False
        return bool(block.first) and not block.body.rstrip().endswith(self._form.tags[1] or "\0")

    def _inside(self, block: Block, text: str) -> None:
        if self._head is not None:
            self._json(block, text)
        elif self._is_json(block, text):
            self._before_json(block, text)
        else:
            block.keep(text)
            beginning = block.body.lstrip() if len(block.body) < MAX_HEAD_CHARS else ""
            if beginning and not self._may_begin(beginning):
                self._abandon(block)

    def _is_json(self, block: Block, text: str = "") -> bool:
        """Told by the first character where a block may hold JSON or tags."""
        first = block.first or text.lstrip()[:1]
        match self._form.notation:
            case Notation.JSON:
                return not (first == "<" and self._form.begin == OPEN)
            case Notation.TAGS:
                return first == "{"
        return False

    def _may_begin(self, beginning: str) -> bool:
        notation = self._form.notation
        return _BEGINNINGS[Notation.TAGS if notation is Notation.JSON else notation].match(beginning) is not None

    def _before_json(self, block: Block, text: str) -> None:
        """A name or an id, up to the object or the array."""
        begun = re.search(r"[{\[]", text)
        lead = text if begun is None else text[: begun.start()]
        head = block.body + lead
        is_none = not self._form.head and head.strip()
        if is_none or not _HEAD.fullmatch(lead) or len(head) > MAX_HEAD_CHARS:
            self._abandon(block)
            self._outside(text)
            return
        block.raw += lead
        block.body = head
        if begun is not None:
            self._head, self._block = head, Block(block.raw)
            self._json(self._block, text[begun.start() :])

    def _json(self, block: Block, text: str) -> None:
        if not block.add_json(text):
            return
        self._is_behind = self._tell_json(block.body)
        if not self._is_behind:
            self._abandon(block)
        self._block = self._head = None
        if block.rest:
            self._outside(block.rest)

    # ---- its end
    def _tell_json(self, body: str) -> bool:
        """All calls of an array, or none."""
        head = self._head or ""
        if head.strip():
            named = re.fullmatch(self._form.head, head)
            arguments = as_object(body)
            if named is None or arguments is None:
                return False
            self._found.call(named["name"], arguments, named.groupdict().get("id") or "")
            return True
        texts = [body] if body.startswith("{") else elements(body) or []
        calls = [call for call in map(read_call, texts) if call is not None]
        tell_all(self._found, calls if len(calls) == len(texts) else [])
        return bool(calls) and len(calls) == len(texts)

    def _tell_text(self, block: Block) -> bool:
        """Of a block that is no JSON, if it can be read."""
        calls = None if self._head is not None else self._read(block.body)
        if calls is None:
            return False
        tell_all(self._found, calls)
        self._block, self._is_behind = None, True
        return True

    def _abandon(self, block: Block) -> None:
        self._found.say(block.raw)
        self._block = self._head = None


def reader_of(form: CallForm, tools: dict[str, Tool]) -> Read:
    """Of blocks that are no JSON."""
    match form.notation:
        case Notation.PYTHON:
            return PythonCalls(tools)
        case Notation.GEMMA:
            return read_gemma
    # a model that was taught Hermes' form may have learned Qwen Coder's before
    return TaggedText(form if form.notation is Notation.TAGS else CODER, tools)
