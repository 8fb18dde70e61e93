"""How an answer is told: the seam between a call and the shapes of OpenAI's and Anthropic's endpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from eaglelocal.core.json_text import read_json
from eaglelocal.server.choice import Choice, Delta
from eaglelocal.server.errors import Problem

DONE = "data: [DONE]\n\n"
PING = ": ping\n\n"


class Teller(Protocol):
    """One call's answers in one shape: whole, or as server-sent events."""

    def whole(self, choices: Sequence[Choice]) -> object:
        """The JSON of answers that are complete."""

    def opening(self, choices: Sequence[Choice]) -> str:
        """The first events of a stream."""

    def delta(self, choice: Choice, new: Delta) -> str:
        """Something new."""

    def ending(self, choice: Choice) -> str:
        """A choice is complete; its last news have been told."""

    def closing(self, choices: Sequence[Choice]) -> str:
        """All are complete."""

    def ping(self) -> str:
        """There is nothing to tell yet."""

    def breaking(self, problem: Problem) -> str:
        """The stream cannot go on."""

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        """The JSON object of a call that failed before its first byte."""


def data(event: Mapping[str, object]) -> str:
    """A server-sent event without a name."""
    return f"data: {compact(event)}\n\n"


def named(event: Mapping[str, object]) -> str:
    """A server-sent event under the name that its `type` says."""
    return f"event: {event['type']}\ndata: {compact(event)}\n\n"


def is_object(arguments: str) -> bool:
    """Those of a call that was cut short within them are none."""
    try:
        return isinstance(read_json(arguments), dict)
    except ValueError:
        return False


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
