"""The interface of parsers of tool calls, what they share, the parser for families that use no markers, and a reader of
calls as Python writes them.

Each parser takes text and markers in order and adds text and calls to an AnswerCollector; `finish` ends the input.
Nothing is lost: text that begins like a call but is none stays text, as written. Other files parse blocks
(block_calls.py), reasoning and messages (split_answer.py, harmony_parser.py).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Mapping
from typing import Protocol

from eaglelocal.core.tools import CallForm, Tool, ToolCall
from eaglelocal.text.reasoning.markers import Item, Marker
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.json_calls import JsonCalls
from eaglelocal.text.tool_calls.json_spans import skip_space
from eaglelocal.text.tool_calls.lenient_literals import Style, UnreadableCall
from eaglelocal.text.tool_calls.lenient_values import LenientText, read_only_meaning
from eaglelocal.text.tool_calls.tool_schemas import find_tool_name


class CallParser(Protocol):
    """A parser of one answer."""

    def push(self, item: Item) -> None: ...

    def finish(self, *, is_cut: bool) -> None:
        """End the answer. An unfinished block that is not a call becomes text.

        is_cut  the model would have continued, so an unfinished call between markers is dropped
        """


class NoCalls:
    """A parser that expects no calls: everything is text."""

    def __init__(self, collector: AnswerCollector) -> None:
        self._collector = collector

    def push(self, item: Item) -> None:
        self._collector.add_text(item.text if isinstance(item, Marker) else item)

    def finish(self, *, is_cut: bool) -> None:
        pass


class CallBlock:
    """A block that may become a call: its whole text as written, and the text in it."""

    def __init__(self, opening: str = "", *, lacks_opening: bool = False) -> None:
        self.raw, self.body = opening, ""
        self.lacks_opening = lacks_opening  # the opening marker was left out
        self._first = ""

    @property
    def first(self) -> str:
        """The first character that is not white space, or "" if there is none yet."""
        if not self._first:  # cached: it is read with every token, and a block may be long
            self._first = self.body.lstrip()[:1]
        return self._first

    def append(self, text: str) -> None:
        self.raw += text
        self.body += text

    def append_marker(self, marker: Marker) -> None:
        """Append a marker that belongs to the block; in the text it has its name, even if it is a control token."""
        self.raw += marker.text
        self.body += marker.name


class BareCalls:
    """A parser of {"name": .., "parameters": {..}} at the beginning or after <|python_tag|>; more after semicolons.

    It also reads [look_up(word="owl")], which some of these models write. Only the name distinguishes a call from JSON
    that was asked for, so it must be that of an offered tool.
    """

    def __init__(self, collector: AnswerCollector, form: CallForm, tools: tuple[Tool, ...]) -> None:
        self._collector, self._closing, self._label = collector, form.end, form.label
        self._tools = {tool.name: tool for tool in tools}
        names = "|".join(re.escape(name) for name in sorted(self._tools))
        self._python_start = re.compile(rf"\[\s*(?:[\w.:/-]*[.:/])?(?:{names})\s*\(")
        self._max_start_chars = max(map(len, self._tools), default=0) + 64
        self._block: CallBlock | None = CallBlock()  # None: everything is text up to the next marker
        self._json: JsonCalls | None = None  # the object that the block turned out to be
        self._is_after_call = False  # a closing marker may follow

    def push(self, item: Item) -> None:
        block = self._block
        if isinstance(item, Marker):
            self._push_marker(item)
        elif self._json is not None:
            self._push_object(self._json, item)
        elif block is None:
            self._collector.add_text(item)
        elif block.first == "[":
            self._push_list(block, item)
        else:
            self._push_before(block, item)

    def finish(self, *, is_cut: bool) -> None:
        json, self._json = self._json, None
        block, self._block = self._block, None
        if json is not None:
            json.close(is_cut=is_cut)
            self._end_object(json)
        elif block is not None and not self._emit_list(block):
            self._collector.add_text(block.raw)

    def _push_marker(self, marker: Marker) -> None:
        if self._json is not None and self._json.in_string and marker.text:
            self._push_object(self._json, marker.text)
            return
        self.finish(is_cut=False)
        if not (self._is_after_call and marker.name == self._closing):
            self._block = CallBlock(marker.text)
        self._is_after_call = False

    def _push_before(self, block: CallBlock, text: str) -> None:
        """Read the text before an object or list, which may only be white space, and semicolons after a call."""
        bracket = re.search(r"[{\[]", text)
        space = text if bracket is None else text[: bracket.start()]
        if space.strip("; \t\r\n"):
            self._collector.add_text(block.raw + text)
            self._block = None
            return
        block.raw += space
        if bracket is None:
            return
        if bracket[0] == "[":
            self._push_list(block, text[bracket.start() :])
        else:
            self._json, self._block = JsonCalls(self._collector, self._tools, raw=block.raw, is_bare=True), None
            self._push_object(self._json, text[bracket.start() :])

    def _push_object(self, json: JsonCalls, text: str) -> None:
        if not json.push(text):
            return
        self._json = None
        self._block = CallBlock() if json.is_call else None
        self._end_object(json)
        if json.rest:
            self.push(json.rest)

    def _end_object(self, json: JsonCalls) -> None:
        self._is_after_call = json.is_call
        json.add_rejected(self._label)

    def _push_list(self, block: CallBlock, text: str) -> None:
        """Collect a list up to its end, once it has begun with a call of an offered tool."""
        block.append(text)
        if len(block.body) > self._max_start_chars and not self._python_start.match(block.body):
            self._collector.add_text(block.raw)
            self._block = None

    def _emit_list(self, block: CallBlock) -> bool:
        if not self._python_start.match(block.body):
            return False
        try:
            calls = read_python_calls(block.body, self._tools)
        except UnreadableCall as error:
            self._collector.note_unread(self._label, str(error))
            return False
        if any(call.name not in self._tools for call in calls):
            return False
        self._collector.add_calls(calls)
        self._is_after_call = True
        return True


# ---- calls as Python writes them: [look_up(word="owl"), add(a=1)]. Nothing runs
#
# Names may have characters that Python does not allow (get-time, server/tool, from). Calls may also stand on a line
# each.
_NAME = re.compile(r"(?P<name>\w[\w./:-]*+)\s*+\(")
_LIST = {"[": "]", "(": ")"}
_JOINT = re.compile(r"\s*[,;]\s*|\s*\n\s*")


def read_python_calls(text: str, tools: Mapping[str, Tool]) -> list[ToolCall]:
    """Return the calls, without ids. Raises UnreadableCall if the text holds no calls."""
    return read_only_meaning(_blank_comments(text), Style.PYTHON, lambda reader: _read_list(reader, tools))


def _read_list(reader: LenientText, tools: Mapping[str, Tool]) -> list[ToolCall]:
    text = reader.text
    at = skip_space(text, 0)
    close = _LIST.get(text[at : at + 1], "")
    at = skip_space(text, at + len(close))
    calls: list[ToolCall] = []
    while (opening := _NAME.match(text, at)) is not None:
        name = find_tool_name(opening["name"], tools)
        arguments, at = reader.read_arguments(opening.end(), tools.get(name), ")")
        calls.append(ToolCall("", name, arguments))
        joint = _JOINT.match(text, at)
        if joint is None:
            break
        at = joint.end()
    if not calls:
        raise UnreadableCall("")
    at = skip_space(text, at)
    reader.finish(reader.skip_end(at, close) if close else at)
    return calls


def _blank_comments(text: str) -> str:
    """Replace a text's comments by blanks, if it is correct Python; otherwise comments cannot be recognized safely."""
    if "#" not in text:
        return text
    lines = io.StringIO(text).readlines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes, which would be written to stderr
            ast.parse(text.strip())
        for token in tokenize.generate_tokens(iter(lines[:]).__next__):
            if token.type == tokenize.COMMENT:
                row, begin, end = token.start[0] - 1, token.start[1], token.end[1]
                if lines[row][:begin].rstrip().endswith(("=", ":")):  # perhaps a value without quotes
                    return text
                lines[row] = lines[row][:begin] + " " * (end - begin) + lines[row][end:]
    except (SyntaxError, ValueError, MemoryError, RecursionError, tokenize.TokenError):
        return text
    return "".join(lines)
