"""Request bodies of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from eaglelocal.server.foreign_items import is_server_tool_block, translate_block
from eaglelocal.server.openai.field_types import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOPS,
    MAX_TRANSLATED_TOOLS,
    Body,
    CallId,
    Count,
    Finite,
    Name,
    Stop,
    Text,
    ToolName,
    Word,
)
from eaglelocal.server.openai.schema import CONTINUED, STRICT, ElsewhereGiven, MisplacedFormat, SamplingGiven


class AnthropicSource(Body):
    """The source of an image (only base64 is supported) or of another file, which is not read."""

    type: Word
    media_type: Name | None = None
    data: Annotated[str | None, Field(repr=False)] = None


class AnthropicBlock(Body):
    """A block of a message. `type` decides which fields matter."""

    type: Word
    source: AnthropicSource | None = None
    text: Text | None = None
    thinking: Text | None = None
    id: CallId | None = None
    name: Name | None = None
    input: dict[str, Any] | None = None
    tool_use_id: CallId | None = None
    tool_name: Name | None = None
    content: Text | Annotated[list[AnthropicBlock], Field(max_length=MAX_PARTS)] | None = None
    is_error: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def read_foreign_blocks(cls, given: Any) -> Any:
        return translate_block(given) if isinstance(given, dict) and is_server_tool_block(given.get("type")) else given


class AnthropicTurn(Body):
    role: Literal["user", "assistant", "system"]
    content: Text | Annotated[list[AnthropicBlock], Field(max_length=MAX_PARTS)]


class AnthropicTool(Body):
    """A tool of the client; tools that Anthropic runs are refused by their type."""

    type: Word | None = None
    name: ToolName
    description: Text | None = None
    input_schema: dict[str, Any] | None = None
    strict: Annotated[bool | None, Field(description=STRICT)] = None


class AnthropicToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(MisplacedFormat):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountBody(Body):
    """POST /v1/messages/count_tokens: the fields that make the prompt."""

    model: Name = ""
    messages: Annotated[list[AnthropicTurn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Text | Annotated[list[AnthropicBlock], Field(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TRANSLATED_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Annotated[Thinking | None, Field(description="without it the model does not think")] = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # where older clients have it
    response_format: Any = None  # other APIs' names for fields of this one: refused, with the name in this one
    reasoning_effort: Any = None
    chat_template: Any = None
    functions: Any = None
    truncate_prompt_tokens: Any = None


class MessagesBody(CountBody, SamplingGiven, ElsewhereGiven):
    """POST /v1/messages. The sampling fields of chats (`seed`, `min_p`, penalties) are supported too."""

    max_tokens: Count
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Finite, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Finite, Field(ge=0, le=1)] | None = None
    stop: Any = None  # other APIs' names for fields of this one: refused, with the name in this one
    logprobs: Any = None
    top_logprobs: Any = None
    chat_template_kwargs: Any = None
    continue_final_message: Annotated[bool | None, Field(description=CONTINUED)] = None
