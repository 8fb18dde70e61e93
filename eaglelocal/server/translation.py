"""Validate a translated body as a chat, and report errors with the field names of the original body."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from eaglelocal.server.http_errors import Problem, to_problem
from eaglelocal.server.json_body import deepest_problem
from eaglelocal.server.schema import MAX_TRANSLATED_TOOLS, ChatBody, ToolGiven


class TranslatedBody(ChatBody):
    """A chat with more tools than OpenAI's limit."""

    tools: Annotated[list[ToolGiven], Field(max_length=MAX_TRANSLATED_TOOLS)] | None = None


@dataclass(frozen=True, slots=True)
class FieldTranslation:
    """The original names of the fields of a translated body, for errors about it.

    fields    a field of the chat, or a path to it -> its original name; the longest match counts
    messages  original place of each message
    """

    fields: Mapping[str, str]
    messages: tuple[str, ...] = ()

    def translate_back(self, problem: Problem) -> Problem:
        """Return the problem with the original field names."""
        if problem.parameter is None:
            return problem
        parameter = self._original(problem.parameter)
        message = problem.message
        if message.startswith(f"{problem.parameter}: "):
            message = parameter + message.removeprefix(problem.parameter)
        return Problem(
            problem.status, message, problem.type, parameter=parameter, code=problem.code, headers=problem.headers
        )

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Convert errors raised within the block to Problems with the original names."""
        try:
            yield
        except (Problem, EagleLocalError) as error:
            raise self.translate_back(to_problem(error)) from error

    def _original(self, parameter: str) -> str:
        parts = parameter.split(".")
        if parts[0] == "messages" and len(parts) > 1 and parts[1].isdecimal() and int(parts[1]) < len(self.messages):
            inside = parts[2:] if "tool_calls" not in parts else []  # originally a call is an item of its own
            return ".".join([self.messages[int(parts[1])], *inside])
        for length in range(len(parts), 0, -1):
            known = self.fields.get(".".join(parts[:length]))
            if known is not None:
                return ".".join([known, *parts[length:]])
        return parameter


NOT_TRANSLATED = FieldTranslation({})


def name_chat_fields(*, effort: str, format: str) -> dict[str, str]:
    """Return the `fields` of a FieldTranslation for an API whose reasoning effort and answer format have
    these names.
    """
    return {"reasoning_effort": effort, "chat_template_kwargs.reasoning_effort": effort, "response_format": format}


def validate_chat(values: dict[str, Any]) -> ChatBody:
    """Validate a translated chat. Raises Problem if it breaks a rule that the original format does not have."""
    try:
        return TranslatedBody.model_validate(values)
    except ValidationError as error:
        raise deepest_problem(error.errors(), values) from None
