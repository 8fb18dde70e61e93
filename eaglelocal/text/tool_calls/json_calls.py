"""A reader of calls in JSON that emits them while they are written: an object, an array, or arguments after a name.

    {"name": "look_up", "arguments": {"wo      -> look_up begun, arguments {"wo so far

A call is emitted from the point where nothing but a call can follow: the name of an offered tool, and the beginning of
an object of arguments. Calls with another order of keys, or of tools not offered, are emitted when they are complete.
Markers around them are handled elsewhere (block_calls.py, call_parser.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector, as_object, read_call, read_keyed_call
from eaglelocal.text.tool_calls.json_spans import JsonReader, elements
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
    BEHIND = "behind"  # after the arguments, in the call's object


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

    raw     the text before the value, as written
    tools   those offered, by name
    is_bare  only these can be called; else a complete call may have any name
    named   name and id that preceded the value, which then is the arguments
    keys    the form of calls, unless `named`
    """

    def __init__(
        self,
        found: AnswerCollector,
        tools: Mapping[str, Tool],
        *,
        raw: str = "",
        is_bare: bool = False,
        named: ToolCall | None = None,
        keys: JsonCallKeys = BY_KEYS,
    ) -> None:
        self.raw = raw  # the whole text, as written
        self.rest, self.is_whole = "", False  # text after the value; its end was read
        self._found, self._tools, self._is_bare, self._named = found, tools, is_bare, named
        self._keys = keys
        self._body, self._value = "", JsonReader()
        self._place, self._at = JsonState.HEAD, 0  # up to this index everything was emitted or skipped
        self._inner = JsonReader()  # reads the arguments, then the object around them
        self._num_told = 0

    @property
    def in_string(self) -> bool:
        return self._value.in_string

    def push(self, text: str) -> bool:
        """Add text. Returns True when the value is complete."""
        if self.is_whole:
            self.rest += text
            return True
        written, rest = self._value.push(text)
        self.rest, self.is_whole = rest or "", rest is not None
        self.raw += text[: len(text) - len(self.rest)]
        self._body += written
        while self._tell():
            pass
        return self.is_whole

    def tell_rest(self) -> bool:
        """Emit what was not emitted of a complete value. Returns False if it is no call."""
        if self._num_told:
            untold = _elements(self._body)[self._num_told :]
            if not self._tell_elements(untold):
                self._found.say(", ".join(untold))
            return True
        if self._named is not None:
            return self._tell_named(self._named)
        return self._tell_elements(_elements(self._body))

    def close(self, *, is_cut: bool) -> bool:
        """End a value whose end does not come. Returns False if it is no call.

        Closing brackets may be missing, unless the answer was cut off.
        """
        if is_cut or self.in_string or not self._is_mendable():
            return bool(self._num_told)
        raw = self.raw
        self.push(self._value.closing)
        self.raw = raw
        return self.tell_rest()

    def _is_mendable(self) -> bool:
        """Return whether each unfinished call, with the missing brackets added, has its required arguments."""
        body = self._body + self._value.closing
        if self._named is not None:
            return self._may_be(ToolCall("", self._named.name, as_object(body) or ""))
        if not self._keys.arguments.search(body):
            return False
        first = self._num_told - (self._place is JsonState.ARGUMENTS)
        return all(map(self._may_be, map(self._keys.read, _elements(body)[first:])))

    def _may_be(self, call: ToolCall | None) -> bool:
        return call is not None and call.arguments != "" and has_required(self._tools.get(call.name), call.arguments)

    # ---- while it is written
    def _tell(self) -> bool:
        """Emit one step. Returns False if more text is needed."""
        match self._place:
            case JsonState.HEAD:
                return self._begin()
            case JsonState.ARGUMENTS:
                return self._argue()
        return self._leave()

    def _begin(self) -> bool:
        found = self._named_begun() if self._named else self._head_begun()
        if found is None or found[0].name not in self._tools:
            return False
        call, self._at = found
        self._found.begin_call(call.name, call.id)
        self._num_told += 1
        self._place, self._inner = JsonState.ARGUMENTS, JsonReader()
        return True

    def _named_begun(self) -> tuple[ToolCall, int] | None:
        return (self._named, 0) if self._named and _OBJECT.match(self._body) else None

    def _head_begun(self) -> tuple[ToolCall, int] | None:
        """Return the call whose arguments begin, and the index where they do; None if none does yet."""
        before = _BEFORE_ELEMENT.match(self._body, self._at)
        start = before.end() if before else self._at
        head = self._keys.head.match(self._body, start, start + MAX_HEAD_CHARS)
        call = self._keys.read(head[0] + "{}}") if head else None
        return (call, head.end()) if head and call else None

    def _argue(self) -> bool:
        written, rest = self._inner.push(self._body[self._at :])
        self._at = len(self._body) - len(rest or "")
        self._found.argue(written)
        if rest is None:
            return False
        self._found.end_call()
        self._place, self._inner = JsonState.BEHIND, JsonReader()
        self._inner.push("{")
        return True

    def _leave(self) -> bool:
        """Go on to the next element. Returns False if more text is needed."""
        _, rest = self._inner.push(self._body[self._at :])
        self._at = len(self._body) - len(rest or "")
        if rest is None or self._named is not None:
            return False
        self._place = JsonState.HEAD
        return True

    # ---- complete values
    def _tell_elements(self, texts: list[str]) -> bool:
        """Emit all elements as calls, or none. Returns False if any is no call."""
        calls = [call for call in map(self._keys.read, texts) if call is not None]
        is_known = not self._is_bare or all(call.name in self._tools for call in calls)
        if not texts or len(calls) < len(texts) or not is_known:
            return False
        for call in calls:
            self._found.call(call.name, call.arguments, call.id)
        return True

    def _tell_named(self, named: ToolCall) -> bool:
        arguments = as_object(self._body)
        if arguments is None:
            return False
        self._found.call(named.name, arguments, named.id)
        return True


def _elements(body: str) -> list[str]:
    """Return what may be calls: the elements of an array, or the object itself."""
    return [body] if body.startswith("{") else elements(body) or []
