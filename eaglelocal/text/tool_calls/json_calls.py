"""A reader of calls in JSON that emits them while they are written: an object, an array, or arguments after a name.

    {"name": "look_up", "arguments": {"wo      -> look_up begun, arguments {"wo so far

A call is emitted from the point where nothing but a call can follow: the name of an offered tool, and the beginning of
an object of arguments. Calls with another order of keys, or of tools not offered, are emitted when they are complete.
Markers around them are handled elsewhere (block_calls.py, call_parser.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum

from eaglelocal.core.json_text import read_json
from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.json_spans import JsonReader, read_elements, read_members
from eaglelocal.text.tool_calls.tool_schemas import has_required

MAX_HEAD_CHARS = 512
_TEXT = r'"(?:[^"\\]|\\.)*"'
_BEFORE_KEYS = re.compile(
    rf'\{{(?:\s*(?!"(?:arguments|parameters)"){_TEXT}\s*:\s*(?:{_TEXT}|[\w.+-]+)\s*,)+'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{\s*["}])'
)
_BEFORE_OBJECT = re.compile(rf'\{{\s*{_TEXT}\s*:\s*(?=\{{\s*["}}])')
_OBJECT = re.compile(r'\{\s*["}]')
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:')
_BEFORE_ELEMENT = re.compile(r"[\[,\s]*")


class JsonState(Enum):
    """The reader's position in the JSON value."""

    HEAD = "head"  # before a call, or before its arguments
    ARGUMENTS = "arguments"
    AFTER = "after"  # after the arguments, in the call's object


def read_call(text: str) -> ToolCall | None:
    """Read a call of the form {"name": "look_up", "arguments": {..}}; None if it is none."""
    members = read_members(text)
    if members is None:
        return None
    name = read_string(members.get("name", members.get("tool_name", "")))
    call_id = read_string(members.get("id", ""))
    arguments = normalize_arguments(members.get("arguments", members.get("parameters", "{}")))
    return ToolCall(call_id, name, arguments) if name and arguments is not None else None


def read_keyed_call(text: str) -> ToolCall | None:
    """Read a call of the form {"look_up": {..}}; None if it is none."""
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
    """Return arguments as the text of a JSON object; None if they are none.

    Some models write the object as a string once more, leave line breaks unescaped, or write null for no arguments.
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

    head       matches what precedes a call's arguments, once those have begun
    arguments  shows, in a call without its end, that it has arguments
    read       reads a complete call
    """

    head: re.Pattern[str]
    arguments: re.Pattern[str]
    read: Callable[[str], ToolCall | None]


BY_KEYS = JsonCallKeys(_BEFORE_KEYS, _ARGUMENTS, read_call)  # {"name": "look_up", "arguments": {..}}
BY_NAME = JsonCallKeys(_BEFORE_OBJECT, _BEFORE_OBJECT, read_keyed_call)  # {"look_up": {..}}


class JsonCalls:
    """A reader of one JSON value, as it is written.

    raw      the text before the value, as written
    tools    those offered, by name
    is_bare  only these can be called; else a complete call may have any name
    named    a call whose name and id preceded the value, which is then its arguments
    keys     the form of calls, unless `named`
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
        self.rest, self.is_complete = "", False  # text after the value; its end was read
        self._collector, self._tools, self._is_bare, self._named = collector, tools, is_bare, named
        self._keys = keys
        self._body, self._value = "", JsonReader()
        self._state, self._at = JsonState.HEAD, 0  # up to this index everything was emitted or skipped
        self._inner = JsonReader()  # reads the arguments, then the object around them
        self._num_emitted = 0

    @property
    def in_string(self) -> bool:
        return self._value.in_string

    def push(self, text: str) -> bool:
        """Add text. Returns True when the value is complete."""
        if self.is_complete:
            self.rest += text
            return True
        json_text, rest = self._value.push(text)
        self.rest, self.is_complete = rest or "", rest is not None
        self.raw += text[: len(text) - len(self.rest)]
        self._body += json_text
        while self._emit_step():
            pass
        return self.is_complete

    def emit_rest(self) -> bool:
        """Emit the rest of a complete value. Returns False if it is no call."""
        if self._num_emitted:
            remaining = _split_elements(self._body)[self._num_emitted :]
            if not self._emit_elements(remaining):
                self._collector.add_text(", ".join(remaining))
            return True
        if self._named is not None:
            return self._emit_named(self._named)
        return self._emit_elements(_split_elements(self._body))

    def close(self, *, is_cut: bool) -> bool:
        """End a value that was left unfinished. Returns False if it is no call.

        Closing brackets may be missing, unless the answer was cut off.
        """
        if is_cut or self.in_string or not self._is_repairable():
            return bool(self._num_emitted)
        raw = self.raw
        self.push(self._value.closing)
        self.raw = raw
        return self.emit_rest()

    def _is_repairable(self) -> bool:
        """Return whether each unfinished call, with the missing brackets added, has its required arguments."""
        body = self._body + self._value.closing
        if self._named is not None:
            return self._has_required(ToolCall("", self._named.name, normalize_arguments(body) or ""))
        if not self._keys.arguments.search(body):
            return False
        first = self._num_emitted - (self._state is JsonState.ARGUMENTS)
        return all(map(self._has_required, map(self._keys.read, _split_elements(body)[first:])))

    def _has_required(self, call: ToolCall | None) -> bool:
        return call is not None and call.arguments != "" and has_required(self._tools.get(call.name), call.arguments)

    # ---- while it is written
    def _emit_step(self) -> bool:
        """Emit one step. Returns False if more text is needed."""
        match self._state:
            case JsonState.HEAD:
                return self._begin_call()
            case JsonState.ARGUMENTS:
                return self._emit_arguments()
        return self._skip_to_next()

    def _begin_call(self) -> bool:
        found = self._find_named_call() if self._named else self._find_head()
        if found is None or found[0].name not in self._tools:
            return False
        call, self._at = found
        self._collector.begin_call(call.name, call.id)
        self._num_emitted += 1
        self._state, self._inner = JsonState.ARGUMENTS, JsonReader()
        return True

    def _find_named_call(self) -> tuple[ToolCall, int] | None:
        return (self._named, 0) if self._named and _OBJECT.match(self._body) else None

    def _find_head(self) -> tuple[ToolCall, int] | None:
        """Return the call whose arguments begin, and the index where they do; None if none does yet."""
        before = _BEFORE_ELEMENT.match(self._body, self._at)
        start = before.end() if before else self._at
        head = self._keys.head.match(self._body, start, start + MAX_HEAD_CHARS)
        call = self._keys.read(head[0] + "{}}") if head else None
        return (call, head.end()) if head and call else None

    def _emit_arguments(self) -> bool:
        json_text, rest = self._inner.push(self._body[self._at :])
        self._at = len(self._body) - len(rest or "")
        self._collector.add_arguments(json_text)
        if rest is None:
            return False
        self._collector.end_call()
        self._state, self._inner = JsonState.AFTER, JsonReader()
        self._inner.push("{")
        return True

    def _skip_to_next(self) -> bool:
        """Go on to the next element. Returns False if more text is needed."""
        _, rest = self._inner.push(self._body[self._at :])
        self._at = len(self._body) - len(rest or "")
        if rest is None or self._named is not None:
            return False
        self._state = JsonState.HEAD
        return True

    # ---- complete values
    def _emit_elements(self, texts: list[str]) -> bool:
        """Emit all elements as calls, or none. Returns False if any is no call."""
        calls = [call for call in map(self._keys.read, texts) if call is not None]
        is_known = not self._is_bare or all(call.name in self._tools for call in calls)
        if not texts or len(calls) < len(texts) or not is_known:
            return False
        self._collector.add_calls(calls)
        return True

    def _emit_named(self, named: ToolCall) -> bool:
        arguments = normalize_arguments(self._body)
        if arguments is None:
            return False
        self._collector.add_calls([replace(named, arguments=arguments)])
        return True


def _split_elements(body: str) -> list[str]:
    """Return what may be calls: the elements of an array, or the object itself."""
    return [body] if body.startswith("{") else read_elements(body) or []
