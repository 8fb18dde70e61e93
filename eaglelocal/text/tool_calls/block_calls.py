"""A parser of calls between markers, for the many families that write them: a block is read when it is complete.

JSON shows its own end; otherwise the closing marker decides, and where the block cannot be read at that marker, the
marker was part of a value. What is certain is emitted while a block is written (json_calls.py, tagged_calls.py). The
forms are data (call_forms.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from eaglelocal.core.tools import CallForm, Notation, Tool, ToolCall
from eaglelocal.text.reasoning.markers import Item, Mark
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.call_forms import CODER, KEYED, OPEN, bare_openings
from eaglelocal.text.tool_calls.call_parser import CallBlock, tell_all
from eaglelocal.text.tool_calls.gemma_calls import read_gemma
from eaglelocal.text.tool_calls.json_calls import BY_KEYS, BY_NAME, MAX_HEAD_CHARS, JsonCalls
from eaglelocal.text.tool_calls.python_calls import PythonCalls
from eaglelocal.text.tool_calls.tagged_calls import TaggedCalls
from eaglelocal.text.tool_calls.tagged_text import TaggedText
from eaglelocal.text.tool_calls.tool_schemas import has_required

Read = Callable[[str], list[ToolCall] | None]
_HEAD = re.compile(r"[\s\w./:`>-]*")
# how the text of a block may begin; any other is given up at once
_BEGINNINGS: dict[Notation, re.Pattern[str]] = {
    Notation.TAGS: re.compile(r"<|[\w./:-]{1,64}(\s*<|\"|\s*$)"),
    Notation.PYTHON: re.compile(r"[\[\w]"),
    Notation.GEMMA: re.compile(r"c"),
}


class BlockCalls:
    """A parser of calls in blocks. Implements tool_calls.CallParser."""

    def __init__(self, found: AnswerCollector, form: CallForm, tools: tuple[Tool, ...]) -> None:
        self._found, self._form = found, form
        self._tools = {tool.name: tool for tool in tools}
        self._read = reader_of(form, self._tools)
        self._tags = TaggedCalls(found, self._read) if isinstance(self._read, TaggedText) else None
        self._openings = frozenset(bare_openings(form, tools))
        self._block: CallBlock | None = None
        self._json: JsonCalls | None = None  # the block's JSON, once it has begun
        self._lead = ""  # markers around blocks, as written; text, if no block follows
        self._is_behind = False  # after a call, whose closing markers may follow
        self._half = ""  # text there that may be half a marker, if the answer is cut off in it

    def push(self, item: Item) -> None:
        if isinstance(item, Mark):
            self._mark(item)
        elif self._block is None:
            self._outside(item)
        else:
            self._inside(self._block, item)

    def finish(self, *, is_cut: bool) -> None:
        """End the answer. If it was cut off, an incomplete call is dropped, except for what was emitted of it."""
        if not is_cut:
            if self._block is not None:
                self._end_unmarked(self._block)
            self._found.say(self._lead)
        self._block = self._json = None
        self._lead = ""

    # ---- outside a block
    def _outside(self, text: str) -> None:
        if self._is_behind:
            text = (self._half + text).lstrip(" \t\r\n" + self._form.tail)
            is_half = self._form.end.startswith(text) or self._form.begin.startswith(text)
            self._half = text if is_half else ""
            if is_half:
                return
        if self._lead and not text.strip():
            self._lead += text
        elif text:
            self._found.say(self._lead + text)
            self._lead, self._is_behind = "", False

    def _mark_outside(self, mark: Mark) -> None:
        self._found.say(self._half)  # the answer goes on, so it was text
        form, self._half = self._form, ""
        if mark.name == form.begin:
            self._open(CallBlock(self._lead + mark.shown))
        elif mark.name in self._openings:
            self._open(CallBlock(self._lead, is_unopened=True))
            self.push(mark.shown)
        elif self._is_behind and (mark.name == form.end or mark.name in form.section):
            self._found.is_over = self._found.is_over or form.ends_turn
        elif mark.name in form.section:
            self._lead += mark.shown
        else:
            self._outside(mark.shown)

    def _open(self, block: CallBlock) -> None:
        self._block, self._json = block, None
        self._lead, self._is_behind = "", False
        if self._tags is not None:
            self._tags.begin()

    # ---- in a block
    def _mark(self, mark: Mark) -> None:
        block, form = self._block, self._form
        if block is None:
            self._mark_outside(mark)
        elif mark.shown and self._is_text(block, mark):
            self._inside(block, mark.shown)
        elif self._json is None and mark.name == form.end and self._tell(block):
            return
        elif self._json is None and mark.name in form.inside:
            block.raw += mark.shown
            block.body += mark.name
            self._tell_tags(block)
        elif mark.shown and self._is_value(block):
            block.keep(mark.shown)
        else:
            self._end_unmarked(block)
            self._mark_outside(mark)

    def _is_text(self, block: CallBlock, mark: Mark) -> bool:
        """Return whether text that looks like a marker is inside a JSON string, or a tag of this block."""
        if self._json is not None:
            return self._json.in_string
        return mark.name in self._openings

    def _is_value(self, block: CallBlock) -> bool:
        """Return whether the marker may be text in an argument."""
        if self._json is not None or self._is_json(block):
            return False
        return bool(block.first) and not block.body.rstrip().endswith(self._form.tags[1] or "\0")

    def _inside(self, block: CallBlock, text: str) -> None:
        if self._json is not None:
            self._push_json(self._json, text)
        elif self._is_json(block, text):
            self._before_json(block, text)
        else:
            text, rest = to_first_tag(text) if block.is_unopened else (text, "")
            block.keep(text)
            if not self._may_be_call(block):
                self._abandon(block)
            else:
                self._tell_tags(block)
                if block.is_unopened and text.rstrip().endswith(">"):
                    self._tell(block)
            if rest:
                self.push(rest)

    def _is_json(self, block: CallBlock, text: str = "") -> bool:
        """Return whether the block holds JSON; its first character tells, where it may hold JSON or tags."""
        first = block.first or text.lstrip()[:1]
        match self._form.notation:
            case Notation.JSON:
                return not (first == "<" and self._form.begin == OPEN)
            case Notation.TAGS:
                return first == "{"
        return False

    def _may_be_call(self, block: CallBlock) -> bool:
        beginning = block.body.lstrip() if len(block.body) < MAX_HEAD_CHARS else ""
        if not beginning:
            return True
        notation = self._form.notation
        if _BEGINNINGS[Notation.TAGS if notation is Notation.JSON else notation].match(beginning) is None:
            return False
        return not block.is_unopened or self._tags is None or self._tags.may_go_on(beginning)

    def _before_json(self, block: CallBlock, text: str) -> None:
        """Read a name or an id, up to the object or the array."""
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
            self._begin_json(block, head, text[begun.start() :])

    def _begin_json(self, block: CallBlock, head: str, text: str) -> None:
        named = None
        if head.strip():
            match = re.fullmatch(self._form.head, head)
            if match is None:
                self._abandon(block)
                self._outside(text)
                return
            named = ToolCall(match.groupdict().get("id") or "", match["name"], "")
        keys = BY_NAME if self._form.call == KEYED else BY_KEYS
        self._json = JsonCalls(self._found, self._tools, raw=block.raw, named=named, keys=keys)
        self._push_json(self._json, text)

    def _push_json(self, json: JsonCalls, text: str) -> None:
        if not json.push(text):
            return
        self._end_json(json, json.tell_rest())
        if json.rest:
            self._outside(json.rest)

    def _end_json(self, json: JsonCalls, is_told: bool) -> None:
        self._block = self._json = None
        self._is_behind = is_told
        if not is_told:
            self._found.say(json.raw)

    # ---- its end
    def _tell(self, block: CallBlock) -> bool:
        """Emit the calls of a block that may end here. Returns False if it cannot be read yet."""
        calls = self._read(block.body)
        if calls is None:
            return False
        self._tell_all(calls)
        return True

    def _tell_all(self, calls: list[ToolCall]) -> None:
        if self._tags is not None:
            self._tags.end(calls)
        else:
            tell_all(self._found, calls)
        self._block, self._is_behind = None, True

    def _tell_tags(self, block: CallBlock) -> None:
        """Emit what is certain of the block so far."""
        if self._tags is not None and self._json is None:
            self._tags.tell(block.body)

    def _end_unmarked(self, block: CallBlock) -> None:
        """End a block whose closing marker does not come. A call with its required arguments counts as complete."""
        if self._json is not None:
            self._end_json(self._json, self._json.close(is_cut=False))
            return
        calls = self._read(block.body)
        if calls is not None and all(has_required(self._tools.get(call.name), call.arguments) for call in calls):
            self._tell_all(calls)
            return
        if self._tags is not None:
            self._tags.close(block.body)
        self._abandon(block)

    def _abandon(self, block: CallBlock) -> None:
        """Give up the block: it is text, unless parts of a call were emitted already."""
        self._block = self._json = None
        self._is_behind = self._tags is not None and self._tags.num_told > 0
        if not self._is_behind:
            self._found.say(block.raw)


def to_first_tag(text: str) -> tuple[str, str]:
    """Split the text after its first tag, because any tag may end a block that has no opening marker."""
    end = text.find(">") + 1 or len(text)
    return text[:end], text[end:]


def reader_of(form: CallForm, tools: dict[str, Tool]) -> Read:
    """Return the reader for blocks that are not JSON."""
    match form.notation:
        case Notation.PYTHON:
            return PythonCalls(tools)
        case Notation.GEMMA:
            return read_gemma
    # a model trained on Hermes' form may still use Qwen Coder's
    return TaggedText(form if form.notation is Notation.TAGS else CODER, tools)
