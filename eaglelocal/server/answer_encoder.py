"""The base of the encoders, which format answers for one API each, and what they share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from eaglelocal.core.json_text import read_json
from eaglelocal.server.answer_state import AnswerState, Delta
from eaglelocal.server.http_errors import Problem

DONE = "data: [DONE]\n\n"


class AnswerEncoder(ABC):
    """Formats the answers to one call: as a whole, or as a stream of server-sent events.

    What most APIs have in common is defined here. `stream_end`: sent after the last event, also after a failure.
    """

    stream_end: ClassVar[str] = ""

    @abstractmethod
    def encode_whole(self, choices: Sequence[AnswerState]) -> object:
        """Return the JSON of complete answers."""

    def encode_start(self, choices: Sequence[AnswerState]) -> str:
        """Return the first events of a stream."""
        return ""

    @abstractmethod
    def encode_delta(self, choice: AnswerState, delta: Delta) -> str:
        """Return the events for the new parts of a choice."""

    @abstractmethod
    def encode_choice_end(self, choice: AnswerState) -> str:
        """Return the events for the end of a choice, after its last delta."""

    def encode_end(self, choices: Sequence[AnswerState]) -> str:
        """Return the events for the end of the stream, after all choices."""
        return self.stream_end

    def encode_ping(self) -> str:
        """Return an event that keeps an idle stream open."""
        return ": ping\n\n"

    def encode_failure(self, problem: Problem) -> str:
        """Return the events for a failure after the first byte."""
        return encode_event(problem.openai_body()) + self.stream_end

    def encode_refusal(self, problem: Problem) -> Mapping[str, object]:
        """Return the JSON object for a failure before the first byte."""
        return problem.openai_body()


def encode_event(event: Mapping[str, object]) -> str:
    """Return a server-sent event without a name."""
    return f"data: {dump_json(event)}\n\n"


def encode_named_event(event: Mapping[str, object]) -> str:
    """Return a server-sent event named by its `type`."""
    return f"event: {event['type']}\ndata: {dump_json(event)}\n\n"


def is_json_object(arguments: str) -> bool:
    """Return whether a call's arguments are a JSON object; arguments that were cut off are not."""
    try:
        return isinstance(read_json(arguments), dict)
    except ValueError:
        return False


def dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
