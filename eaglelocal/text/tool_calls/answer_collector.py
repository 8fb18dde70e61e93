"""A collector for what an answer's parser finds: text, reasoning, and calls with their ids.

White space between text and a call, or around reasoning, belongs to the markers: it is held back until it is
known what follows. A call needs a name and an object of arguments; anything else is no call. What was emitted of a
call before its end is never withdrawn.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field

from eaglelocal.core.json_text import read_json
from eaglelocal.core.surrogates import join_surrogates
from eaglelocal.core.tools import CallPart, ToolCall
from eaglelocal.text.tool_calls.json_spans import JsonReader, members

NewId = Callable[[], str]


@dataclass(slots=True)
class Trimmed:
    """A text without white space at its ends, as far as these are known."""

    said: str = ""  # since the last `take`
    held: list[str] = field(default_factory=list)  # white space, held back
    is_open: bool = True  # white space at this point is kept
    has_text: bool = False

    def add(self, text: str) -> None:
        text = text if self.is_open else text.lstrip()
        body = text.rstrip()
        if body:
            self.said += "".join(self.held) + body
            self.held = []
            self.is_open = self.has_text = True
        if len(text) > len(body):
            self.held.append(text[len(body) :])

    def trim(self) -> None:
        """Drop white space before and after this point."""
        self.held, self.is_open = [], False

    def release(self) -> None:
        """Add the white space held back: nothing follows, so it was text."""
        self.said, self.held = self.said + "".join(self.held), []

    def take(self) -> str:
        said, self.said = self.said, ""
        return said


@dataclass(slots=True)
class AnswerCollector:
    """A collector of one answer's output. `new_id` makes the id of a call that has none."""

    new_id: NewId
    parallel: bool = True  # else everything after the first call is ignored
    is_over: bool = False
    text: Trimmed = field(default_factory=Trimmed)
    thought: Trimmed = field(default_factory=lambda: Trimmed(is_open=False))
    calls: list[CallPart] = field(default_factory=list)  # since the last `take_calls`
    _num_calls: int = 0
    _behind: str = ""  # text after a call that is not taken yet: a piece has its text before its calls

    @property
    def has_text(self) -> bool:
        """True if any text but white space was added."""
        return self.text.has_text or bool(self._behind.strip())

    def say(self, text: str) -> None:
        if self.is_over:
            return
        if self.calls:
            self._behind += text
        else:
            self.text.add(text)

    def think(self, text: str) -> None:
        if not self.is_over:
            self.thought.add(text)

    def end_thought(self) -> None:
        self.thought.trim()
        self._trim_text()

    def take_calls(self) -> tuple[CallPart, ...]:
        """Return the parts of calls that were not taken yet. The text so far must have been taken."""
        calls, self.calls = tuple(self.calls), []
        behind, self._behind = self._behind, ""
        self.text.add(behind)
        return calls

    # ---- calls
    def call(self, name: str, arguments: str, call_id: str = "") -> None:
        """Add a complete call."""
        self.begin_call(name, call_id)
        self.argue(arguments)
        self.end_call()

    def begin_call(self, name: str, call_id: str = "") -> None:
        """Begin a call, which cannot be withdrawn."""
        if self.is_over:
            return
        self._trim_text()
        self.calls.append(
            CallPart(self._num_calls, "", join_surrogates(call_id) or self.new_id(), join_surrogates(name))
        )
        self._num_calls += 1

    def argue(self, arguments: str) -> None:
        """Add text to the arguments of the newest call."""
        if arguments and not self.is_over:
            self.calls.append(CallPart(self._num_calls - 1, join_surrogates(arguments)))

    def end_call(self) -> None:
        self.is_over = self.is_over or not self.parallel

    def _trim_text(self) -> None:
        """Trim all text, including what follows a call."""
        behind, self._behind = self._behind, ""
        self.text.add(behind)
        self.text.trim()


def read_call(text: str) -> ToolCall | None:
    found = members(text)
    if found is None:
        return None
    name = plain_text(found.get("name", found.get("tool_name", "")))
    call_id = plain_text(found.get("id", ""))
    arguments = as_object(found.get("arguments", found.get("parameters", "{}")))
    return ToolCall(call_id, name, arguments) if name and arguments is not None else None


def read_keyed_call(text: str) -> ToolCall | None:
    """Read a call of the form {"look_up": {..}}; None if it is none."""
    found = members(text)
    if found is None or len(found) != 1:
        return None
    ((name, value),) = found.items()
    arguments = as_object(value) if name else None
    return None if arguments is None else ToolCall("", name, arguments)


def plain_text(value: str) -> str:
    """Return the value of a JSON string; empty for anything else, also for an incomplete one."""
    try:
        read = read_json(value)
    except ValueError:
        return ""
    return read if isinstance(read, str) else ""


def as_object(value: str) -> str | None:
    """Return arguments as a JSON object; None if they are none.

    Some models write it as a string once more, leave line breaks unescaped, or write null for no arguments.
    """
    if value.startswith('"'):
        value = plain_text(value) or value
    if value in ("", '""', "null"):
        return "{}"
    if value.startswith("{"):
        value, behind = JsonReader().push(value)
        return value if not (behind or "").strip() and members(value) is not None else None
    return None


def hex_id() -> str:
    return "call_" + secrets.token_hex(12)


def short_id() -> str:
    """Return an id of nine letters and digits: Mistral's templates refuse any other length."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
