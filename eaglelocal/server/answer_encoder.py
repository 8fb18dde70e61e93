"""The interface between a call and the answer formats of the APIs (Teller)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from eaglelocal.core.json_text import read_json
from eaglelocal.server.answer_state import AnswerState, Delta
from eaglelocal.server.http_errors import Problem

DONE = "data: [DONE]\n\n"
PING = ": ping\n\n"


class AnswerEncoder(Protocol):
    """Formats one call's answers: as a whole, or as a stream of server-sent events."""

    def whole(self, choices: Sequence[AnswerState]) -> object:
        """Return the JSON of complete answers."""

    def opening(self, choices: Sequence[AnswerState]) -> str:
        """Return the first events of a stream."""

    def delta(self, choice: AnswerState, new: Delta) -> str:
        """Return the events for new parts of a choice."""

    def ending(self, choice: AnswerState) -> str:
        """Return the events for the end of a choice, after its last delta."""

    def closing(self, choices: Sequence[AnswerState]) -> str:
        """Return the events for the end of the stream, after all choices."""

    def ping(self) -> str:
        """Return an event that keeps an idle stream open."""

    def breaking(self, problem: Problem) -> str:
        """Return the events for a failure within the stream."""

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        """Return the JSON object of a call that failed before its first byte."""


def data(event: Mapping[str, object]) -> str:
    """Return a server-sent event without a name."""
    return f"data: {compact(event)}\n\n"


def named(event: Mapping[str, object]) -> str:
    """Return a server-sent event named by its `type`."""
    return f"event: {event['type']}\ndata: {compact(event)}\n\n"


def is_object(arguments: str) -> bool:
    """Return whether a call's arguments are a JSON object; arguments that were cut off are not."""
    try:
        return isinstance(read_json(arguments), dict)
    except ValueError:
        return False


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
