"""What may be asked of /v1/responses: the part of it that needs no memory on our side."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from eaglelocal.server.api.schema import (
    MAX_MESSAGES,
    MAX_TOOLS,
    STRICT,
    Body,
    Count,
    Effort,
    Name,
    Parts,
    SamplingGiven,
    Text,
    Word,
)


class Item(Body):
    """A message, a thought, a call, or what a call gave; which of them is said by `type`, and messages need none."""

    type: Word = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | Parts | None = None
    summary: Parts | None = None  # of a thought
    call_id: Name | None = None
    name: Name | None = None
    arguments: Text | None = None
    output: Text | Parts | None = None


class FunctionTool(Body):
    """Only functions can be called; other types are refused by their name."""

    type: Word
    name: Annotated[Name, Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[bool | None, Field(description=STRICT)] = None


class NamedTool(Body):
    type: Word
    name: Name | None = None


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class TextGiven(Body):
    format: TextFormat | None = None


class Reasoning(Body):
    effort: Effort | None = None


class ResponsesBody(SamplingGiven):
    """POST /v1/responses"""

    model: Name = ""
    input: Text | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: Text | None = None
    max_output_tokens: Count | None = None
    stream: bool | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextGiven | None = None
    reasoning: Reasoning | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    metadata: dict[Name, Text] | None = None  # told again as it came, so it must be what JSON can spell
