"""A parser of calls between markers, for the many families that write them: a block is read when it is complete.

JSON shows its own end. Otherwise the closing marker ends the block, unless the block cannot be read there: then the
marker is part of a value. Parts of a call that are certain are emitted while the block is written (json_calls.py,
TaggedCalls). The forms are data (call_forms.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from eaglelocal.core.tools import CallForm, Notation, Tool, ToolCall
from eaglelocal.text.reasoning.markers import Item, Marker
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.call_forms import CODER, KEYED, OPEN, VALUE, list_bare_openings
from eaglelocal.text.tool_calls.call_parser import CallBlock, read_python_calls
from eaglelocal.text.tool_calls.json_calls import BY_KEYS, BY_NAME, MAX_HEAD_CHARS, JsonCalls, read_json_calls
from eaglelocal.text.tool_calls.lenient_literals import Style, UnreadableCall, dump_json
from eaglelocal.text.tool_calls.lenient_values import CLOSERS, FENCE, LenientText, read_only_meaning
from eaglelocal.text.tool_calls.tagged_text import TaggedText
from eaglelocal.text.tool_calls.tool_schemas import find_tool_name, has_required

# ---- gemma calls: a reader of calls as Gemma 4 writes them: JSON with bare keys, and a token of its own around
# strings
#
# call:look_up{limit:3,word:<|"|>owl<|"|>} -> look_up {"limit": 3, "word": "owl"}
_BEGIN = re.compile(r"\s*call:\s*(?P<name>[\w./:-]+)\s*\{")


def read_gemma_call(text: str, tools: Mapping[str, Tool]) -> list[ToolCall]:
    """Return the only call of a text, without an id. Raises UnreadableCall if the text is not a call."""

    def parse(reader: LenientText) -> list[ToolCall]:
        opening = _BEGIN.match(reader.text)
        if opening is None:
            raise UnreadableCall("")
        name = find_tool_name(opening["name"], tools)
        arguments, at = reader.read_arguments(opening.end(), tools.get(name))
        reader.finish(at)
        return [ToolCall("", name, arguments)]

    return read_only_meaning(text, Style.GEMMA, parse)


# ---- block calls
ReadCalls = Callable[[str], list[ToolCall]]  # raises UnreadableCall for a text that holds no calls
_JSON = re.compile(r"\{|\[\s*\{")  # the beginning of a block of JSON
_FENCE_START = re.compile(r"\s*(?:`{0,3}|```\w*\s*)")
_HEAD = re.compile(r"[\s\w./:`>-]*")
# how the text of a block may begin; any other block is text
_BEGINNINGS: dict[Notation, re.Pattern[str]] = {
    Notation.TAGS: re.compile(r"<|```|`{1,2}\Z|[\w./:-]{1,64}(\s*<|\"|\s*$)"),
    Notation.PYTHON: re.compile(r"[\[{\w]|```|`{1,2}\Z"),
    Notation.GEMMA: re.compile(r"[c\[{]|```|`{1,2}\Z"),
}


class BlockCalls:
    """A parser of calls in blocks. Implements call_parser.CallParser."""

    def __init__(self, collector: AnswerCollector, form: CallForm, tools: tuple[Tool, ...]) -> None:
        self._collector, self._form = collector, form
        self._tools = {tool.name: tool for tool in tools}
        self._read = make_reader(form, self._tools)
        self._openings = frozenset(list_bare_openings(form, tools))
        self._call_ends = (form.tags[1] or "\0",)
        self._value_ends = (*self._call_ends, form.value.split(VALUE)[-1].strip() or "\0")
        self._block: CallBlock | None = None
        self._tags: TaggedCalls | None = None  # the emitter of the block's calls, for forms with tags
        self._json: JsonCalls | None = None  # the block's JSON, once it has begun
        self._prefix = ""  # markers around blocks, as written; text, if no block follows
        self._is_after_call = False  # closing markers may follow
        self._partial_marker = ""  # text after a call that may be half a marker, if the answer is cut off in it
        self._problem = ""  # why the block, which begins like a call, is not one
        self._closers = CLOSERS  # texts that a model may write once too often after a call

    def push(self, item: Item) -> None:
        if isinstance(item, Marker):
            self._push_marker(item)
        elif self._block is None:
            self._push_outside(item)
        else:
            self._push_inside(self._block, item)

    def finish(self, *, is_cut: bool) -> None:
        """End the answer. If it was cut off, an incomplete call is dropped, except for the parts already emitted."""
        if not is_cut:
            if self._block is not None:
                self._end_without_marker(self._block)
            self._collector.add_text(self._prefix)
        self._block = self._json = None
        self._prefix = ""

    # ---- outside a block
    def _push_outside(self, text: str) -> None:
        if self._is_after_call:
            text = (self._partial_marker + text).lstrip(" \t\r\n" + self._form.tail)
            is_marker = self._form.end.startswith(text) or self._form.begin.startswith(text)
            is_partial = is_marker or not text.strip(self._closers + " \t\r\n")
            self._partial_marker = text if is_partial else ""
            if is_partial:
                return
        if self._prefix and not text.strip():
            self._prefix += text
        elif text:
            self._collector.add_text(self._prefix + text)
            self._prefix, self._is_after_call = "", False

    def _push_marker_outside(self, marker: Marker) -> None:
        if self._partial_marker.strip(self._closers + " \t\r\n"):
            self._collector.add_text(self._partial_marker)  # the answer goes on, so it was text
        form, self._partial_marker = self._form, ""
        if marker.name == form.begin:
            self._open(CallBlock(self._prefix + marker.text))
        elif marker.name in self._openings:
            self._open(CallBlock(self._prefix, lacks_opening=True))
            self.push(marker.text)
        elif self._is_after_call and (marker.name == form.end or marker.name in form.section):
            if form.ends_turn:
                self._collector.is_over = True
        elif marker.name in form.section:
            self._prefix += marker.text
        else:
            self._push_outside(marker.text)

    def _open(self, block: CallBlock) -> None:
        self._block, self._json, self._closers = block, None, CLOSERS
        self._prefix, self._problem, self._is_after_call = "", "", False
        self._tags = TaggedCalls(self._collector, self._read) if isinstance(self._read, TaggedText) else None

    # ---- in a block
    def _push_marker(self, marker: Marker) -> None:
        block, form = self._block, self._form
        if block is None:
            self._push_marker_outside(marker)
        elif marker.text and self._is_text_marker(block, marker):
            if self._json is not None and marker.name == form.end and self._json.end_in_string():
                self._end_json(self._json)
            else:
                self._push_inside(block, marker.text)
        elif self._json is None and marker.name == form.end and self._end_marked(block):
            return
        elif self._json is None and marker.name in form.inside:
            block.append_marker(marker)
            self._emit_certain(block)
        elif self._may_be_value(block, marker):
            block.append_marker(marker)
        else:
            self._end_without_marker(block)
            self._push_marker_outside(marker)

    def _is_text_marker(self, block: CallBlock, marker: Marker) -> bool:
        """Return whether text that looks like a marker is inside a JSON string, or a tag of this block."""
        if self._json is not None:
            return self._json.in_string
        return marker.name in self._openings

    def _may_be_value(self, block: CallBlock, marker: Marker) -> bool:
        """Return whether a marker may be text in an argument. A closing marker may follow the end of one there."""
        if self._json is not None or self._is_json(block):
            return False
        ends = self._call_ends if marker.name == self._form.end else self._value_ends
        return bool(block.first) and not block.body.rstrip().endswith(ends)

    def _push_inside(self, block: CallBlock, text: str) -> None:
        if self._json is not None:
            self._push_json(self._json, text)
        elif self._is_json(block, text):
            self._push_before_json(block, text)
        else:
            end = text.find(">") + 1 if block.lacks_opening else 0  # any tag may end a block without an opening marker
            text, rest = (text[:end], text[end:]) if end else (text, "")
            block.append(text)
            if not self._may_be_call(block):
                self._abandon(block)
            else:
                self._emit_certain(block)
                if block.lacks_opening and text.rstrip().endswith(">"):
                    self._end_marked(block)
            if rest:
                self.push(rest)

    def _is_json(self, block: CallBlock, text: str = "") -> bool:
        """Return whether the block holds JSON. Where it may hold JSON or tags, its first character decides."""
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
        return not block.lacks_opening or self._tags is None or self._tags.reader.may_continue(beginning)

    def _push_before_json(self, block: CallBlock, text: str) -> None:
        """Read the name or the id before an object or an array."""
        bracket = re.search(r"[{\[]", text)
        lead = text if bracket is None else text[: bracket.start()]
        head = block.body + lead
        is_no_call = not self._form.head and not _FENCE_START.fullmatch(head)
        if is_no_call or not _HEAD.fullmatch(lead) or len(head) > MAX_HEAD_CHARS:
            self._abandon(block)
            self._push_outside(text)
            return
        block.append(lead)
        if bracket is not None:
            self._begin_json(block, head, text[bracket.start() :])

    def _begin_json(self, block: CallBlock, head: str, text: str) -> None:
        named = None
        if FENCE.fullmatch(head):
            self._closers = CLOSERS + head.strip()[:1]
        else:
            match = re.fullmatch(self._form.head, head)
            if match is None:
                self._abandon(block)
                self._push_outside(text)
                return
            named = ToolCall(match.groupdict().get("id") or "", match["name"], "")
        keys = BY_NAME if self._form.call == KEYED else BY_KEYS
        self._json = JsonCalls(self._collector, self._tools, raw=block.raw, named=named, keys=keys)
        self._push_json(self._json, text)

    def _push_json(self, json: JsonCalls, text: str) -> None:
        if json.push(text):
            self._end_json(json)

    def _end_json(self, json: JsonCalls) -> None:
        self._block = self._json = None
        self._is_after_call = json.is_call
        json.add_rejected(self._form.label)
        if json.rest:
            self._push_outside(json.rest)

    # ---- its end
    def _end_marked(self, block: CallBlock) -> bool:
        """Emit the calls of a block that may end here. Returns False if it cannot be read yet."""
        calls = self._read_block(block.body)
        if calls is None:
            return False
        self._emit_calls(calls)
        return True

    def _read_block(self, body: str) -> list[ToolCall] | None:
        fence = FENCE.match(body)
        text = body[fence.end() :].rstrip().removesuffix("```") if fence and fence[0].strip() else body
        if (self._form.notation is not Notation.JSON or text is not body) and _JSON.match(text.lstrip()):
            return read_json_calls(text.strip(), self._tools)
        try:
            return self._read(text)
        except UnreadableCall as error:
            self._problem = self._problem or str(error)
            return None

    def _emit_calls(self, calls: list[ToolCall]) -> None:
        if self._tags is not None:
            self._tags.end(calls)
        else:
            self._collector.add_calls(calls)
        self._block, self._is_after_call = None, True

    def _emit_certain(self, block: CallBlock) -> None:
        if self._tags is not None and self._json is None:
            self._tags.emit_certain(block.body)

    def _end_without_marker(self, block: CallBlock) -> None:
        """End a block without its closing marker. A call with its required arguments counts as complete."""
        if self._json is not None:
            self._json.close(is_cut=False)
            self._end_json(self._json)
            return
        calls = self._read_block(block.body)
        if calls is not None and all(has_required(self._tools.get(call.name), call.arguments) for call in calls):
            self._emit_calls(calls)
            return
        if self._tags is not None:
            self._tags.close(block.body)
        self._collector.note_unread(self._form.label, self._problem)
        self._abandon(block)

    def _abandon(self, block: CallBlock) -> None:
        """End the block as text, unless parts of a call were emitted already."""
        self._block = self._json = None
        self._is_after_call = self._tags is not None and bool(self._tags.emitted)
        if not self._is_after_call:
            self._collector.add_text(block.raw)


def make_reader(form: CallForm, tools: dict[str, Tool]) -> ReadCalls:
    """Return the reader for blocks that are not JSON."""
    match form.notation:
        case Notation.PYTHON:
            return partial(read_python_calls, tools=tools)
        case Notation.GEMMA:
            return partial(read_gemma_call, tools=tools)
    # a model trained on Hermes' form may still use Qwen Coder's
    return TaggedText(form if form.notation is Notation.TAGS else CODER, tools)


# ---- tagged calls: an emitter of calls between tags while they are written: the name when its first argument begins,
# then each argument
#
# <function=look_up><parameter=word>owl</parameter><parameter= -> look_up begun, arguments {"word": "owl" so far
class TaggedCalls:
    """An emitter of the calls of one block."""

    def __init__(self, collector: AnswerCollector, reader: TaggedText) -> None:
        self._collector, self.reader = collector, reader
        self.emitted: list[str] = []  # the emitted arguments of each call; the last one may be partial
        self._is_open = False  # the last of them may get more
        self._num_read = 0  # characters
        self._value_at = self._text_at = -1  # an unfinished string: where it begins, and up to where it is emitted

    def emit_certain(self, body: str) -> None:
        """Emit the parts of calls that are certain so far."""
        num_read, self._num_read = self._num_read, len(body)
        if self.reader.has_new_tag(body, num_read):
            partial = self.reader.read_partial(body)
            for index, (call, is_complete) in enumerate(partial.calls):
                self._emit_call(index, call, is_complete)
            self._value_at, self._text_at = partial.value_at, partial.text_at
        elif self._value_at >= 0:
            more, self._text_at = self.reader.read_more(body, self._value_at, self._text_at)
            self._emit_arguments(dump_json(more)[1:-1])

    def end(self, calls: list[ToolCall]) -> None:
        """End the block, whose calls these are, and emit the rest of them."""
        for index, call in enumerate(calls):
            self._emit_call(index, call, is_complete=True)

    def close(self, body: str) -> None:
        """End the block without its closing tags. The last call may still be complete."""
        if self._is_open and self.reader.lacks_only_end_tag(body):
            self._collector.add_arguments("}")
            self._collector.end_call()
            self._is_open = False

    def _emit_call(self, index: int, call: ToolCall, is_complete: bool) -> None:
        if index == len(self.emitted):
            self._collector.begin_call(call.name)
            self.emitted.append("")
            self._is_open = True
        elif index < len(self.emitted) - 1 or not self._is_open:
            return
        self._emit_arguments(call.arguments.removeprefix(self.emitted[index]))
        if is_complete:
            self._collector.end_call()
            self._is_open = False

    def _emit_arguments(self, arguments: str) -> None:
        self.emitted[-1] += arguments
        self._collector.add_arguments(arguments)
