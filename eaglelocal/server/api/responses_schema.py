"""What may be asked of /v1/responses: the part of it that needs nothing kept on disk."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from eaglelocal.server.api.schema import (
    MAX_MESSAGES,
    MAX_TOOLS,
    STRICT,
    STRICT_FORMAT,
    Body,
    CallId,
    Count,
    Effort,
    Name,
    Parts,
    SamplingGiven,
    Text,
    ToolName,
    Word,
)


class Item(Body):
    """A message, a thought, a call, what a call gave, or the id of an item that was told; which of them is said by
    `type`, and messages need none."""

    type: Word = "message"
    id: CallId | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | Parts | None = None
    summary: Parts | None = None  # of a thought
    call_id: CallId | None = None
    name: Name | None = None
    arguments: Text | None = None
    output: Text | Parts | None = None


class FunctionTool(Body):
    """Only functions of the caller's can be called."""

    type: Literal["function"]
    name: ToolName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[bool | None, Field(description=STRICT)] = None


def no_function(type: str) -> str:
    if type == "function":
        raise ValueError("a function is a tool that can be called")
    return type


class OtherTool(Body):
    """A tool that this server would have to run itself, or does not know. It is left out, so nothing in it is read."""

    type: Annotated[Word, AfterValidator(no_function)]


class NamedTool(Body):
    type: Word
    name: Name | None = None


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: Annotated[bool | None, Field(description=STRICT_FORMAT)] = None


class TextGiven(Body):
    format: TextFormat | None = None


class Reasoning(Body):
    effort: Effort | None = None


class ResponsesBody(SamplingGiven):
    """POST /v1/responses"""

    model: Name = ""
    input: Text | Annotated[list[Item], Field(max_length=MAX_MESSAGES)]
    instructions: Text | None = None
    max_output_tokens: Count | None = None
    stream: bool | None = None
    tools: Annotated[list[FunctionTool | OtherTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextGiven | None = None
    reasoning: Reasoning | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    metadata: dict[Name, Text] | None = None  # told again as it came, so it must be what JSON can spell

    @property
    def functions(self) -> list[FunctionTool]:
        """The tools that can be called."""
        return [tool for tool in self.tools or () if isinstance(tool, FunctionTool)]

    @property
    def is_kept(self) -> bool:
        """May it be named later? Yes, unless it must not."""
        return self.store is not False
