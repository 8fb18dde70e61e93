"""Request body of /v1/responses, without the fields that need storage on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_serializer, model_validator

from eaglelocal.server.foreign_items import is_foreign_item, translate_item
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.schema import (
    CONTINUED,
    MAX_ALLOWED_TOOLS,
    MAX_MESSAGES,
    MAX_TOOLS,
    STRICT_FORMAT,
    Body,
    CallId,
    CustomGiven,
    Effort,
    FunctionGiven,
    JsonSchema,
    MisplacedFormat,
    Name,
    Parts,
    SamplingGiven,
    Text,
    ToolName,
    Word,
)
from eaglelocal.server.unsupported_fields import NO_LOGPROBS, ONE_ANSWER, name_refused, redirect, redirect_format

MAX_NAMESPACE_TOOLS = 1024
TYPES_BY_FIELD = {  # types of items that give none, by the first field that only one type has
    "role": "message",
    "arguments": "function_call",
    "input": "custom_tool_call",
    "output": "function_call_output",
    "summary": "reasoning",
}
REFUSED = name_refused(
    {
        **redirect("max_output_tokens", "max_tokens", "max_completion_tokens", "n_predict"),
        **redirect("stop", "stop_sequences"),
        **redirect_format("text.format", "text"),
        **dict.fromkeys(("logprobs", "top_logprobs"), NO_LOGPROBS),
        **redirect("reasoning.effort", "reasoning_effort"),
        "n": ONE_ANSWER,
    },
    format="text.format (json_schema)",
    limit="max_output_tokens",
)


class Item(Body):
    """A message, reasoning, a call, a call's result, or a reference to an earlier item, depending on `type` (default:
    message). Items of tools that only other servers have are read as the most similar of these.
    """

    type: Word = "message"
    id: CallId | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | Parts | None = None
    summary: Parts | None = None  # of reasoning
    call_id: CallId | None = None
    name: Name | None = None
    namespace: Name | None = None  # of the called function
    arguments: Text | None = None
    output: Text | Parts | None = None

    @model_validator(mode="before")
    @classmethod
    def read_type(cls, given: Any) -> Any:
        """Give an item without a type its type by its fields. Translate items of other servers' tools."""
        if not isinstance(given, dict):
            return given
        if given.get("type") is None:
            given = {**given, "type": infer_type(given)}
        return translate_item(given) if is_foreign_item(given["type"]) else given


def infer_type(item: Mapping[str, Any]) -> str:
    """Infer the type of an item without one: an id alone is a reference, and a message is the default."""
    named = {name for name, value in item.items() if value is not None}
    default = "item_reference" if named == {"id"} else "message"
    return next((type for field, type in TYPES_BY_FIELD.items() if field in named), default)


class FunctionTool(FunctionGiven):
    """A function of the client."""

    type: Literal["function"]


class CustomTool(CustomGiven):
    """A tool of the client that takes a text."""

    type: Literal["custom"]


class OtherTool(Body):
    """A tool that this server would have to run, or does not know. It is left out, and its fields are not read."""

    type: Word


def tool_kind(tool: object, kinds: tuple[str, ...] = ("function", "custom", "namespace")) -> str:
    """Return the variant to validate a tool as, so that errors are only about that variant."""
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", "")
    return kind if kind in kinds else "other"


def select_supported_tools(tools: Iterable[Any]) -> list[Any]:
    return [tool for tool in tools if not isinstance(tool, OtherTool)]


# a namespace cannot contain another one
Function = Annotated[FunctionTool, Tag("function")]
Custom = Annotated[CustomTool, Tag("custom")]
Other = Annotated[OtherTool, Tag("other")]
NamespaceTool = Annotated[
    Function | Custom | Other, Discriminator(lambda tool: tool_kind(tool, ("function", "custom")))
]
CallableTool = FunctionTool | CustomTool


class Namespace(Body):
    """Functions that belong together, such as an MCP server's; calls name the namespace and the function."""

    type: Literal["namespace"]
    name: ToolName
    description: Text | None = None
    tools: Annotated[list[NamespaceTool], Field(max_length=MAX_NAMESPACE_TOOLS)]

    @field_serializer("tools")
    def serialize_tools(self, tools: list[NamespaceTool]) -> list[Any]:
        return select_supported_tools(tools)


def describe_tools(namespace: Namespace) -> Iterator[CallableTool | OtherTool]:
    """Yield a namespace's tools. Templates have no namespaces, so the first function also gets its description."""
    description = f"{namespace.name}: {namespace.description}" if namespace.description else ""
    for tool in namespace.tools:
        if description and isinstance(tool, CallableTool):
            texts = filter(None, (description, tool.description))
            tool, description = tool.model_copy(update={"description": "\n\n".join(texts)}), ""
        yield tool


Functions = dict[str, tuple[str, CallableTool]]
Given = Annotated[Function | Custom | Annotated[Namespace, Tag("namespace")] | Other, Discriminator(tool_kind)]


def full_name(namespace: str | None, name: str) -> str:
    return f"{namespace.rstrip('_')}__{name}" if namespace else name


class ResponsesAllowedTool(Body):
    type: Word
    name: Name | None = None
    namespace: Name | None = None


class ResponsesNamedTool(ResponsesAllowedTool):
    """The tool to call, or several of which any may be called (`allowed_tools`)."""

    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[ResponsesAllowedTool], Field(max_length=MAX_ALLOWED_TOOLS)] | None = None


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: Annotated[bool | None, Field(description=STRICT_FORMAT)] = None
    json_schema: JsonSchema | None = None  # as in chats


class TextGiven(MisplacedFormat):
    format: TextFormat | None = None


class Reasoning(Body):
    effort: Effort | None = None


class ResponsesBody(SamplingGiven):
    """POST /v1/responses"""

    refused = REFUSED
    model: Name = ""
    input: Text | Annotated[list[Item], Field(max_length=MAX_MESSAGES)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None  # echoed unchanged
    stream: bool | None = None
    tools: Annotated[list[Given], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesNamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextGiven | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[Name, Any] | None = None  # as in chats
    continue_final_message: Annotated[bool | None, Field(description=CONTINUED)] = None
    previous_response_id: Name | None = None
    store: bool | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    metadata: dict[Name, Text] | None = None  # echoed unchanged, so it must be valid JSON

    @property
    def functions_by_name(self) -> Functions:
        """Return the callable functions, each with its namespace, by their names for the model.

        Raises Problem if two different ones have the same name.
        """
        found: Functions = {}
        for place, namespace, tool in self._functions():
            name = full_name(namespace, tool.name)
            if found.setdefault(name, (namespace, tool)) != (namespace, tool):
                raise Problem(400, f"another tool has the name {name!r} too", parameter=f"{place}.name")
        return found

    @property
    def unsupported_types(self) -> list[str]:
        """Return the types of the tools that are left out, each once."""
        given = [one for tool in self.tools or () for one in (tool.tools if isinstance(tool, Namespace) else (tool,))]
        return list(dict.fromkeys(tool.type for tool in given if isinstance(tool, OtherTool)))

    def _functions(self) -> Iterator[tuple[str, str, CallableTool]]:
        for i, tool in enumerate(self.tools or ()):
            if isinstance(tool, CallableTool):
                yield f"tools.{i}", "", tool
            elif isinstance(tool, Namespace):
                for j, one in enumerate(describe_tools(tool)):
                    if isinstance(one, CallableTool):
                        yield f"tools.{i}.tools.{j}", tool.name, one

    @property
    def is_stored(self) -> bool:
        return self.store is not False
