"""What an answer's parser has found since it was asked: text, thought, and calls with their ids.

White space between text and a call, or around a thought, belongs to the markers: it is held back until it is
known what follows. A call needs a name and an object of arguments; anything else was no call.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field

from eaglelocal.core.tools import ToolCall
from eaglelocal.text.json_spans import members

NewId = Callable[[], str]


@dataclass(slots=True)
class Trimmed:
    """A text whose ends may have to go."""

    said: str = ""  # since it was last taken
    space: str = ""  # held back
    is_open: bool = True  # white space at this point counts
    has_text: bool = False

    def add(self, text: str) -> None:
        text = self.space + text
        if not self.is_open:
            text = text.lstrip()
        body = text.rstrip()
        self.space = text[len(body) :]
        if body:
            self.is_open = self.has_text = True
            self.said += body

    def trim(self) -> None:
        """Here white space ends, before and behind."""
        self.space, self.is_open = "", False

    def release(self) -> None:
        """Nothing follows, so it was text."""
        self.said, self.space = self.said + self.space, ""

    def take(self) -> str:
        said, self.said = self.said, ""
        return said


@dataclass(slots=True)
class Gathering:
    """One answer's findings. `new_id` makes the id of a call that brings none."""

    new_id: NewId
    parallel: bool = True  # else nothing counts behind the first call
    is_over: bool = False
    text: Trimmed = field(default_factory=Trimmed)
    thought: Trimmed = field(default_factory=lambda: Trimmed(is_open=False))
    calls: list[ToolCall] = field(default_factory=list)

    def say(self, text: str) -> None:
        if not self.is_over:
            self.text.add(text)

    def think(self, text: str) -> None:
        if not self.is_over:
            self.thought.add(text)

    def end_thought(self) -> None:
        self.thought.trim()
        self.text.trim()

    def call(self, name: str, arguments: str, call_id: str = "") -> None:
        if self.is_over:
            return
        self.is_over = not self.parallel
        self.text.trim()
        self.calls.append(ToolCall(call_id or self.new_id(), name, arguments))

    def try_call(self, text: str, names: frozenset[str] | None = None) -> bool:
        """A call if this is {"name", "arguments" or "parameters"}, of one of the names if they are given."""
        found = read_call(text)
        if found is None or (names is not None and found.name not in names):
            return False
        self.call(found.name, found.arguments, found.id)
        return True


def read_call(text: str) -> ToolCall | None:
    found = members(text)
    if found is None:
        return None
    name = plain_text(found.get("name", found.get("tool_name", "")))
    call_id = plain_text(found.get("id", ""))
    arguments = as_object(found.get("arguments", found.get("parameters", "{}")))
    return ToolCall(call_id, name, arguments) if name and arguments is not None else None


def plain_text(value: str) -> str:
    """Of a JSON string; empty for anything else."""
    read = json.loads(value) if value else ""
    return read if isinstance(read, str) else ""


def as_object(value: str) -> str | None:
    """Arguments as an object: some models write it as a text once more."""
    if value.startswith('"'):
        value = plain_text(value)
    return value if members(value) is not None else None


def hex_id() -> str:
    return "call_" + secrets.token_hex(12)


def short_id() -> str:
    """Mistral's templates refuse any other length."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
