"""A translated body, checked like one that came so; what is wrong with it is told in the names of the original."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationError

from eaglelocal.errors import EagleLocalError
from eaglelocal.server.api.schema import MAX_TRANSLATED_TOOLS, ChatBody, ToolGiven
from eaglelocal.server.errors import Problem, problem_of
from eaglelocal.server.invalid import told


class TranslatedBody(ChatBody):
    """A chat with more tools than OpenAI's limit."""

    tools: Annotated[list[ToolGiven], Field(max_length=MAX_TRANSLATED_TOOLS)] | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """Where the fields of a translated body come from.

    fields    a field of the chat, or a path to it, and what that is called in the original; the longest counts
    messages  place in the original of each message
    """

    fields: Mapping[str, str]
    messages: tuple[str, ...] = ()

    def own(self, problem: Problem) -> Problem:
        """The problem in the names of the original."""
        if problem.parameter is None:
            return problem
        parameter = self._own(problem.parameter)
        message = problem.message
        if message.startswith(f"{problem.parameter}: "):
            message = parameter + message.removeprefix(problem.parameter)
        return Problem(
            problem.status, message, problem.type, parameter=parameter, code=problem.code, headers=problem.headers
        )

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Failures within, in the names of the original. Raises Problem."""
        try:
            yield
        except (Problem, EagleLocalError) as error:
            raise self.own(problem_of(error)) from error

    def _own(self, parameter: str) -> str:
        parts = parameter.split(".")
        if parts[0] == "messages" and len(parts) > 1 and parts[1].isdigit() and int(parts[1]) < len(self.messages):
            inside = parts[2:] if "tool_calls" not in parts else []  # a call is an item or a block of its own there
            return ".".join([self.messages[int(parts[1])], *inside])
        for length in range(len(parts), 0, -1):
            known = self.fields.get(".".join(parts[:length]))
            if known is not None:
                return ".".join([known, *parts[length:]])
        return parameter


def as_chat(values: dict[str, Any]) -> ChatBody:
    """Raises Problem where the translation breaks a rule that the original shape does not have."""
    try:
        return TranslatedBody.model_validate(values)
    except ValidationError as error:
        raise told(error.errors(), values) from None
