"""What an answer's parser has found since it was asked: text, thought, and calls with their ids.

White space between text and a call, or around a thought, belongs to the markers: it is held back until it is
known what follows. A call needs a name and an object of arguments; anything else was no call. What is told of a call
before its end stays told, whatever follows.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field

from eaglelocal.core.json_text import read_json
from eaglelocal.core.surrogates import join_surrogates
from eaglelocal.core.tools import CallPart, ToolCall
from eaglelocal.text.json_spans import JsonReader, members

NewId = Callable[[], str]


@dataclass(slots=True)
class Trimmed:
    """A text whose ends may have to go."""

    said: str = ""  # since it was last taken
    held: list[str] = field(default_factory=list)  # white space, held back
    is_open: bool = True  # white space at this point counts
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
        """Here white space ends, before and behind."""
        self.held, self.is_open = [], False

    def release(self) -> None:
        """Nothing follows, so it was text."""
        self.said, self.held = self.said + "".join(self.held), []

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
    calls: list[CallPart] = field(default_factory=list)  # since they were last taken
    _num_calls: int = 0
    _behind: str = ""  # text behind a part of a call that is not taken yet: a piece has its text before its calls

    @property
    def has_text(self) -> bool:
        """Something was said but white space."""
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
        """Parts of calls that were not taken yet. The text so far must have been taken."""
        calls, self.calls = tuple(self.calls), []
        behind, self._behind = self._behind, ""
        self.text.add(behind)
        return calls

    # ---- calls
    def call(self, name: str, arguments: str, call_id: str = "") -> None:
        """A whole one."""
        self.begin_call(name, call_id)
        self.argue(arguments)
        self.end_call()

    def begin_call(self, name: str, call_id: str = "") -> None:
        """What is told of it, stays told."""
        if self.is_over:
            return
        self._trim_text()
        self.calls.append(
            CallPart(self._num_calls, "", join_surrogates(call_id) or self.new_id(), join_surrogates(name))
        )
        self._num_calls += 1

    def argue(self, arguments: str) -> None:
        """More arguments of the newest call."""
        if arguments and not self.is_over:
            self.calls.append(CallPart(self._num_calls - 1, join_surrogates(arguments)))

    def end_call(self) -> None:
        self.is_over = self.is_over or not self.parallel

    def _trim_text(self) -> None:
        """All of it, also what stands behind a call."""
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
    """{"look_up": {..}}"""
    found = members(text)
    if found is None or len(found) != 1:
        return None
    ((name, value),) = found.items()
    arguments = as_object(value) if name else None
    return None if arguments is None else ToolCall("", name, arguments)


def plain_text(value: str) -> str:
    """Of a JSON string; empty for anything else, also for one that was cut short."""
    try:
        read = read_json(value)
    except ValueError:
        return ""
    return read if isinstance(read, str) else ""


def as_object(value: str) -> str | None:
    """Arguments as an object: some models write it as a text once more, leave lines unescaped, or say null for none."""
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
    """Mistral's templates refuse any other length."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
