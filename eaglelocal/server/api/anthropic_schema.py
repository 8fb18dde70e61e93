"""What may be asked of /v1/messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from eaglelocal.server.api.schema import MAX_MESSAGES, MAX_PARTS, MAX_STOPS, MAX_TOOLS, Body, Count, Name, Stop, Text


class Block(Body):
    """A piece of a message. `type` decides which of the fields count."""

    type: Annotated[str, Field(max_length=64)]
    text: Text | None = None
    thinking: Text | None = None
    id: Name | None = None
    name: Name | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Name | None = None
    content: Text | Annotated[list[Block], Field(max_length=MAX_PARTS)] | None = None


class Turn(Body):
    role: Literal["user", "assistant", "system"]
    content: Text | Annotated[list[Block], Field(max_length=MAX_PARTS)]


class AnthropicTool(Body):
    type: Literal["custom"] | None = None
    name: Annotated[Name, Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")]
    description: Text | None = None
    input_schema: dict[str, Any]


class AnthropicToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive"]


class MessagesBody(Body):
    """POST /v1/messages"""

    model: Name = ""
    max_tokens: Count
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Text | Annotated[list[Block], Field(max_length=MAX_PARTS)] | None = None
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
