"""A reader of calls in JSON that emits them while they are written: an object, an array, or arguments after a name.

    {"name": "look_up", "arguments": {"wo      -> look_up begun, arguments {"wo so far

A call is emitted as soon as nothing but a call can follow: after the name of an offered tool and one of its arguments.
Its arguments are then emitted as far as they are certain (certain_arguments.py). Calls with another order of keys, of
tools not offered, or that are not quite JSON are emitted when they are complete. Markers around them are handled
elsewhere (block_calls.py, call_parser.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum

from eaglelocal.core.json_text import read_json
from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import Tool, ToolCall, join_calls
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.certain_arguments import CertainArguments
from eaglelocal.text.tool_calls.json_spans import JsonReader, is_json, read_elements, read_members
from eaglelocal.text.tool_calls.lenient_literals import Style, UnreadableCall
from eaglelocal.text.tool_calls.lenient_values import LenientText, read_only_meaning
from eaglelocal.text.tool_calls.tool_schemas import ANYTHING, WRAPPERS, Shape, find_tool_name, has_required

MAX_HEAD_CHARS = 512
_TEXT = r'"(?:[^"\\]|\\.)*"'
_BEFORE_KEYS = re.compile(
    rf'\{{(?:\s*(?!"(?:arguments|parameters)"){_TEXT}\s*:\s*(?:{_TEXT}|[\w.+-]+)\s*,)+'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{\s*["}])'
)
_BEFORE_OBJECT = re.compile(rf'\{{\s*{_TEXT}\s*:\s*(?=\{{\s*["}}])')
_OBJECT = re.compile(r'\{\s*["}]')
_MEMBERS = ("name", "tool_name", "arguments", "parameters", "id", "tool_call_id", "type")
_CALL = Shape({"properties": {key: {} for key in _MEMBERS}}, {})
_QUOTES = "[\"'`“”‘’]?"
_CALL_LIKE = re.compile(rf"\A[\[\s]*+\{{\s*+{_QUOTES}\s*+(?:{'|'.join(_MEMBERS)})\b", re.IGNORECASE)
_KEYED_LIKE = re.compile(rf"\A[\[\s]*+\{{\s*+{_QUOTES}[\w./-]++{_QUOTES}\s*+:\s*+\{{")
_BEFORE_ELEMENT = re.compile(r"[\[,\s]*")


class JsonState(Enum):
    """The reader's position in the JSON value."""

    HEAD = "head"  # before a call, or before its arguments
    ARGUMENTS = "arguments"
    AFTER = "after"  # after the arguments, in the call's object
    CARELESS = "careless"  # in a value that is not quite JSON: only the whole of it shows the rest


def read_call(text: str) -> ToolCall | None:
    """Read a call of the form {"name": "look_up", "arguments": {..}}; None if the text is not one."""
    members = read_members(text)
    if members is None:
        return None
    name = read_string(members.get("name", members.get("tool_name", "")))
    call_id = read_string(members.get("id", ""))
    arguments = normalize_arguments(members.get("arguments", members.get("parameters", "{}")))
    return ToolCall(call_id, name, arguments) if name and arguments is not None else None


def read_keyed_call(text: str) -> ToolCall | None:
    """Read a call of the form {"look_up": {..}}; None if the text is not one."""
    members = read_members(text)
    if members is None or len(members) != 1:
        return None
    ((name, value),) = members.items()
    arguments = normalize_arguments(value) if name else None
    return None if arguments is None else ToolCall("", name, arguments)


def read_string(value: str) -> str:
    """Return the value of a JSON string; empty for anything else, also for an incomplete one."""
    try:
        string = read_json(value)
    except ValueError:
        return ""
    return string if isinstance(string, str) else ""


def normalize_arguments(value: str) -> str | None:
    """Return arguments as the text of a JSON object; None if they are not an object.

    Some models write the object as a string again, leave line breaks unescaped, or write null for no arguments.
    """
    if value.startswith('"'):
        value = read_string(value) or value
    if value in ("", '""', "null"):
        return "{}"
    if value.startswith("{"):
        value, rest = JsonReader().push(value)
        return value if not (rest or "").strip() and read_members(value) is not None else None
    return None


@dataclass(frozen=True, slots=True)
class JsonCallKeys:
    """A form of calls as JSON objects.

    head   matches what precedes a call's arguments, once those have begun
    like   matches the beginning of what may be a call, carelessly written
    shape  of a call's object
    read   reads a complete call
    """

    head: re.Pattern[str]
    like: re.Pattern[str]
    shape: Shape
    read: Callable[[str], ToolCall | None]


BY_KEYS = JsonCallKeys(_BEFORE_KEYS, _CALL_LIKE, _CALL, read_call)  # {"name": "look_up", "arguments": {..}}
BY_NAME = JsonCallKeys(_BEFORE_OBJECT, _KEYED_LIKE, ANYTHING, read_keyed_call)  # {"look_up": {..}}


class JsonCalls:
    """A reader of one JSON value, as it is written.

    raw      the text before the value, as written
    tools    those offered, by name
    is_bare  only these can be called; else a complete call may have any name
    named    a call whose name and id preceded the value, which is then its arguments
    keys     the form of calls, unless `named`

    A value that is not quite JSON may seem to end early: then it goes on until `close`.
    """

    def __init__(
        self,
        collector: AnswerCollector,
        tools: Mapping[str, Tool],
        *,
        raw: str = "",
        is_bare: bool = False,
        named: ToolCall | None = None,
        keys: JsonCallKeys = BY_KEYS,
    ) -> None:
        self.raw = raw  # the whole text, as written
        self.rest = ""  # text after the value
        self.is_call = False  # known once the value has ended
        self.problem = ""  # why a text that begins like a call is none
        self._collector, self._tools, self._is_bare, self._keys = collector, tools, is_bare, keys
        self._named = named and replace(named, name=find_tool_name(named.name, tools))
        self._written, self._body, self._value = "", "", JsonReader()  # the value, and the same with its repairs
        self._is_complete = self._is_careless = False  # its end was read; where it ends is not certain
        self._state, self._at = JsonState.HEAD, 0  # up to this index everything was emitted or skipped
        self._inner = JsonReader()  # reads the arguments, then the object around them
        self._num_ended = 0  # calls
        self._begun: tuple[ToolCall, int] | None = None  # the call that is being read, and where its object begins
        self._certain = CertainArguments(ANYTHING)
        self._held = self._emitted = ""  # of its arguments: what is certain and not emitted, and what was emitted

    @property
    def in_string(self) -> bool:
        return self._value.in_string

    def push(self, text: str) -> bool:
        """Add text. Returns True when the value has ended: `is_call` and `rest` are then known."""
        if not self._is_complete:
            json_text, rest = self._value.push(text)
            self._is_complete = rest is not None
            self._add_written(text[: len(text) - len(rest or "")])
            self._body += json_text
            while self._emit_step():
                pass
            text = rest or ""
        if not self._is_complete:
            return False
        self.rest += text
        return self._end_value()

    def end_in_string(self) -> bool:
        """Return whether the value ends here, though as JSON it would be in a string, and emit its calls."""
        return self._emit_all(self._read_written())

    def close(self, *, is_cut: bool) -> bool:
        """End a value that was left unfinished. Returns False if it is not a call.

        Closing brackets may be missing, unless the answer was cut off.
        """
        is_whole = self._is_complete and not self._is_careless
        if not is_cut or is_whole:
            self._emit_all(self._read_body() if is_whole else self._read_written())
        if self._num_begun and not self.is_call:
            self.is_call = True
            self._collector.end_call()  # it stays as it is: emitted parts are never withdrawn
        return self.is_call

    def add_rejected(self, label: str) -> None:
        """Add a value that is not a call as text, and note why it is none."""
        self._collector.note_unread(label, self.problem)
        if not self.is_call:
            self._collector.add_text(self.raw)

    @property
    def _num_begun(self) -> int:
        """The number of emitted calls; the last one may be partial."""
        return self._num_ended + (self._begun is not None and self._emitted != "")

    def _add_written(self, text: str) -> None:
        self.raw += text
        self._written += text

    def _end_value(self) -> bool:
        """Emit the calls of a value that ends before `rest`. Returns False if it may go on."""
        following = self.rest.lstrip()[:1]
        if self._named is not None and not following:
            return False  # what follows shows whether the last bracket was doubled
        if not self._is_careless and not (self._named is not None and following in ',:"'):
            if self._emit_all(self._read_body()):
                return True
            if is_json(self._body) or not self._is_call_like():
                self._add_text_after_calls()
                return True
        self._is_careless = True
        self._add_written(self.rest)
        self.rest = ""
        return False

    def _is_call_like(self) -> bool:
        if self._named is not None:
            return self._named.name in self._tools
        is_like = self._keys.like.match(self._written) is not None
        return is_like and (not self._is_bare or any(name in self._written for name in self._tools))

    # ---- while it is written
    def _emit_step(self) -> bool:
        """Emit one step. Returns False if more text is needed."""
        match self._state:
            case JsonState.HEAD:
                return self._begin_call()
            case JsonState.ARGUMENTS:
                return self._emit_certain()
            case JsonState.AFTER:
                return self._skip_to_next()
        return False

    def _begin_call(self) -> bool:
        if self._named is not None:
            found = (self._named, 0, 0) if _OBJECT.match(self._body) else None
        else:
            found = self._find_head()
        if found is None:
            return False
        call, start, self._at = found
        tool = self._tools.get(find_tool_name(call.name, self._tools))
        if tool is None:
            return False
        self._begun = replace(call, name=tool.name), start
        self._certain, self._held = CertainArguments(Shape.of_tool(tool)), ""
        self._state, self._inner = JsonState.ARGUMENTS, JsonReader()
        return True

    def _find_head(self) -> tuple[ToolCall, int, int] | None:
        """Return the call whose arguments begin, its index and the index of its arguments; None if none begins yet."""
        before = _BEFORE_ELEMENT.match(self._body, self._at)
        start = before.end() if before else self._at
        head = self._keys.head.match(self._body, start, start + MAX_HEAD_CHARS)
        call = self._keys.read(head[0] + "{}}") if head else None
        return (call, start, head.end()) if head and call else None

    def _emit_certain(self) -> bool:
        json_text, rest = self._inner.push(self._body[self._at :])
        self._at = len(self._body) - len(rest or "")
        self._held += self._certain.push(json_text)
        if self._emitted or self._held.strip("{ \n"):
            self._emit_arguments(self._held)
            self._held = ""
        if rest is None:
            return False
        self._state, self._inner = JsonState.AFTER, JsonReader()
        self._inner.push("{")
        return True

    def _emit_arguments(self, text: str) -> None:
        """Emit a part of the arguments; with the first one, the call begins."""
        assert self._begun is not None
        if not self._emitted:
            self._collector.begin_call(self._begun[0].name, self._begun[0].id)
        self._emitted += text
        self._collector.add_arguments(text)

    def _skip_to_next(self) -> bool:
        """Go on to the next element. Returns False if more text is needed."""
        if self._named is not None:
            return False
        _, rest = self._inner.push(self._body[self._at :])
        self._at = len(self._body) - len(rest or "")
        if rest is None:
            return False
        assert self._begun is not None
        is_ended = self._end_call(self._read_element(self._body[self._begun[1] : self._at]))
        self._state = JsonState.HEAD if is_ended else JsonState.CARELESS
        return is_ended

    def _end_call(self, call: ToolCall | None) -> bool:
        """Emit the rest of the call that was begun. Returns False if this call is another one."""
        assert self._begun is not None
        if call is None or not call.arguments.startswith(self._emitted) or call.name != self._begun[0].name:
            return False
        self._emit_arguments(call.arguments[len(self._emitted) :])
        self._collector.end_call()
        self._num_ended += 1
        self._begun, self._emitted = None, ""
        return True

    # ---- complete values
    def _emit_all(self, calls: list[ToolCall] | None) -> bool:
        """Emit the remaining calls of the whole value. Returns False if that is impossible."""
        if calls is None:
            return False
        calls = calls[self._num_ended :]
        if self._begun is not None and calls and self._end_call(calls[0]):
            calls = calls[1:]
        if self._emitted:
            self.problem = "its beginning was read in another way"
            return False
        self._collector.add_calls(calls)
        self.is_call, self.problem = True, ""
        return True

    def _add_text_after_calls(self) -> None:
        """Add the rest of an array as text: nothing after its calls is a call."""
        self.is_call = self._num_begun > 0
        if self._num_ended:
            self._collector.add_text(", ".join(_split_elements(self._body)[self._num_ended :]))

    def _read_body(self) -> list[ToolCall] | None:
        """Return the calls of a value that has ended; None if it is not a call."""
        if not is_json(self._body):
            return self._read_written()
        if self._named is not None:
            calls = [self._conform(replace(self._named, arguments=self._body))]
        else:
            calls = [self._read_element(element) for element in _split_elements(self._body)]
        every = [call for call in calls if call is not None]
        return every if calls and len(every) == len(calls) else self._read_written()

    def _read_element(self, text: str) -> ToolCall | None:
        call = self._keys.read(text)
        if call is None:
            return None
        shape = Shape.of_tool(self._tools.get(find_tool_name(call.name, self._tools)))
        outside = [key for key in read_members(text) or () if key in shape.properties and key not in _MEMBERS]
        if outside and self._keys is BY_KEYS:
            self.problem = "an argument stands outside of the others"
            return None
        return self._conform(call)

    def _conform(self, call: ToolCall) -> ToolCall | None:
        """Return the call with the tool's own names, and arguments of the types that its schema wants."""
        name = find_tool_name(call.name, self._tools)
        if self._is_bare and name not in self._tools:
            return None
        arguments = conform_arguments(call.arguments, self._tools.get(name))
        return None if arguments is None else replace(call, name=name, arguments=arguments)

    def _read_written(self) -> list[ToolCall] | None:
        try:
            return read_only_meaning(self._written.rstrip().removesuffix("```"), Style.JSON, self._parse)
        except UnreadableCall as error:
            self.problem = str(error)
            return None

    def _parse(self, reader: LenientText) -> list[ToolCall]:
        if self._named is not None:
            if not reader.text.startswith("{"):
                raise UnreadableCall("arguments are no object")
            text, at = reader.read_arguments(1, self._tools.get(self._named.name))
            reader.finish(at)
            return [replace(self._named, arguments=text)]
        text, at = reader.read_calls(self._keys.shape, self._find_shape)
        reader.finish(at)
        calls = [call for element in _split_elements(text) if (call := self._read_element(element)) is not None]
        if not calls or len(calls) < len(_split_elements(text)):
            raise UnreadableCall(self.problem or "it names no tool")
        if reader.num_missing and not all(map(self._has_required, calls, _split_elements(text))):
            raise UnreadableCall("an argument that is required is missing")
        return calls

    def _find_shape(self, key: str, found: Mapping[str, str]) -> Shape:
        """Return the shape of a member of a call: its arguments have the shape of the tool that it names."""
        name = read_string(found.get("name", found.get("tool_name", ""))) if self._keys is BY_KEYS else key
        tool = self._tools.get(find_tool_name(name, self._tools))
        if tool is None and not name and len(self._tools) == 1:
            (tool,) = self._tools.values()
        if self._keys is BY_KEYS and key not in WRAPPERS:
            return ANYTHING
        return Shape.of_tool(tool) if tool else ANYTHING

    def _has_required(self, call: ToolCall, element: str) -> bool:
        has_arguments = self._keys is BY_NAME or not (read_members(element) or {}).keys().isdisjoint(WRAPPERS)
        return has_arguments and has_required(self._tools.get(call.name), call.arguments)


def read_json_calls(text: str, tools: Mapping[str, Tool]) -> list[ToolCall] | None:
    """Return the calls of a complete text, without ids if they have none; None if it holds no calls."""
    collector = AnswerCollector(str)
    calls = JsonCalls(collector, tools)
    calls.push(text)
    calls.close(is_cut=False)
    is_whole = calls.is_call and not calls.problem and not calls.rest.strip("}] \t\r\n")
    return join_calls(collector.take_calls()) if is_whole else None


def conform_arguments(text: str, tool: Tool | None) -> str | None:
    """Return arguments with the names and types of the tool's schema; None if they cannot be read as JSON."""

    def parse(reader: LenientText) -> str:
        reader.is_json = is_exact
        arguments, at = reader.read_arguments(1, tool)
        reader.finish(at)
        return arguments

    is_exact = is_json(text)
    if not text.startswith("{"):
        return None
    try:
        return read_only_meaning(text, Style.JSON, parse)
    except UnreadableCall:
        return text if is_exact else None


def _split_elements(body: str) -> list[str]:
    """Return the parts that may be calls: the elements of an array, or the object itself."""
    return [body] if body.startswith("{") else read_elements(body) or []
