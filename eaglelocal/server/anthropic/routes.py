"""POST /v1/messages and /v1/messages/count_tokens, translated into a chat completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from starlette.responses import Response

from eaglelocal.server.answer_encoder import ReplyEncoder
from eaglelocal.server.answer_response import EVENT_STREAM, respond
from eaglelocal.server.anthropic.encoder import AnthropicEncoder
from eaglelocal.server.content import NOT_FETCHED, UNSEEN_IMAGE, check_media_type, decode_base64, join_pieces, no_image
from eaglelocal.server.foreign_items import is_server_tool_block, translate_block
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.json_body import name_chat_fields, to_json
from eaglelocal.server.request_reader import EngineCall, PlacedMessages, read_translated_chat
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.schema import (
    CONTINUED,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOPS,
    MAX_TRANSLATED_TOOLS,
    STRICT,
    Body,
    Budget,
    CallId,
    Count,
    ErrorReply,
    Finite,
    MisplacedFormat,
    Name,
    ReplyModel,
    SamplingGiven,
    Stop,
    Text,
    ToolName,
    Word,
    refuse_misplaced_format,
)
from eaglelocal.server.server_state import ServerState
from eaglelocal.server.unsupported_fields import (
    NO_LOGPROBS,
    ONE_ANSWER,
    RefusedFields,
    name_refused,
    redirect,
    redirect_format,
)

FIELDS = {
    "stop": "stop_sequences",
    "chat_template_kwargs": "thinking",
    "parallel_tool_calls": "tool_choice",
    **name_chat_fields(effort="output_config.effort", format="output_config.format"),
    "response_format.json_schema": "output_config.format",
}
REFUSED = name_refused(
    {
        **redirect("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"),
        **redirect_format("output_config.format", "output_config", "output_format"),
        **dict.fromkeys(("logprobs", "top_logprobs"), NO_LOGPROBS),
        "chat_template_kwargs": "use thinking and output_config.effort to set the template's values",
        **redirect("output_config.effort", "reasoning_effort"),
        **redirect("stop_sequences", "stop"),
        "n": ONE_ANSWER,
    },
    format="output_config.format (json_schema)",
    stops="stop_sequences",
)
IN_PROMPTS = ("response_format", "reasoning_effort", "chat_template", "functions", "truncate_prompt_tokens")
REFUSED_IN_PROMPTS: RefusedFields = {name: REFUSED[name] for name in IN_PROMPTS}


# ---- schema: request bodies of /v1/messages and /v1/messages/count_tokens
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


class AnthropicThinking(Body):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    display: Literal["summarized", "omitted"] | None = None
    budget_tokens: Budget | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(MisplacedFormat):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountBody(Body):
    """POST /v1/messages/count_tokens: the fields that make the prompt."""

    refused = REFUSED_IN_PROMPTS
    model: Name = ""
    messages: Annotated[list[AnthropicTurn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Text | Annotated[list[AnthropicBlock], Field(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TRANSLATED_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Annotated[AnthropicThinking | None, Field(description="without it the model does not think")] = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # older clients put it here


class MessagesBody(CountBody, SamplingGiven):
    """POST /v1/messages. The sampling fields of chats (`seed`, `min_p`, penalties) are supported too."""

    refused = REFUSED
    max_tokens: Count
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Finite, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Finite, Field(ge=0, le=1)] | None = None
    continue_final_message: Annotated[bool | None, Field(description=CONTINUED)] = None


# ---- routes
routes = RouteTable("Anthropic", ErrorReply)

SERVER_TOOLS = "this server calls only tools of the client"
BILLING = "x-anthropic-billing-header:"  # Claude Code's: differs in each request, so no prefix would be cached


class MessagesReply(ReplyModel):
    id: str
    content: list[dict[str, Any]]
    stop_reason: str | None


class CountReply(ReplyModel):
    input_tokens: int


@routes.add("POST", "/v1/messages", reply=MessagesReply, stream=EVENT_STREAM)
async def messages(body: MessagesBody, server: ServerState, owner: str) -> Response:
    """Answer a conversation in the format of Anthropic's messages."""
    sampled = {
        **body.sampling_fields(),
        "stream": body.stream,
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences or None,
        "continue_final_message": body.continue_final_message,
    }
    call = read_body(body, sampled, server, owner)
    name = server.models.names.resolve(call.model)
    is_shown = body.thinking is not None and body.thinking.display != "omitted"
    encoder = AnthropicEncoder(call.requests[0].id, name, has_thinking=is_thinking_on(body) and is_shown)
    return respond(server, call, encoder)


@routes.add("POST", "/v1/messages/count_tokens", reply=CountReply)
async def count_tokens(body: CountBody, server: ServerState, owner: str) -> Response:
    """Count the tokens of a conversation, with the model's template and the tools; nothing is generated."""
    call = read_body(body, {}, server, owner)
    counted = dataclasses.replace(call, requests=(dataclasses.replace(call.requests[0], is_counted=True),))
    return respond(server, counted, ReplyEncoder(lambda choice: {"input_tokens": choice.prompt_tokens}))


def read_body(body: CountBody, sampled: dict[str, Any], server: ServerState, owner: str) -> EngineCall:
    body.refuse_unsupported()
    messages = translate_messages(body)
    return read_translated_chat(sampled | translate_body(body), messages, FIELDS, server.defaults, owner)


def is_thinking_on(body: CountBody) -> bool:
    return body.thinking is not None and body.thinking.type != "disabled"


def translate_body(body: CountBody) -> dict[str, Any]:
    """Return the body as one of /v1/chat/completions, without messages and sampling parameters. Raises Problem."""
    chat: dict[str, Any] = {"model": body.model, "chat_template_kwargs": {"enable_thinking": is_thinking_on(body)}}
    if body.tools is not None:
        chat["tools"] = [translate_tool(tool, i) for i, tool in enumerate(body.tools)]
    config = body.output_config or OutputConfig()
    chat["reasoning_effort"] = config.effort
    if body.thinking is not None and body.thinking.type == "disabled":
        chat["thinking_budget"] = 0
    elif body.thinking is not None and body.thinking.budget_tokens is not None:
        chat["thinking_budget"] = body.thinking.budget_tokens
    refuse_misplaced_format(config, "output_config")
    if format := config.format or body.output_format:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": format.schema_}}
    return chat | translate_tool_choice(body.tool_choice)


def translate_tool(tool: AnthropicTool, index: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise unsupported(f"tools.{index}.type", f"{SERVER_TOOLS}, not tools of type {tool.type!r}")
    if tool.input_schema is None:
        raise Problem(400, "a tool needs an input_schema", parameter=f"tools.{index}.input_schema")
    function = tool.model_dump(include={"name", "description", "strict"}) | {"parameters": tool.input_schema}
    return {"type": "function", "function": function}


def translate_messages(body: CountBody) -> PlacedMessages:
    """Return the system message and the turns as chat messages, each with its place in the body."""
    placed: PlacedMessages = []
    system = body.system or ""
    if not isinstance(system, str):
        system = [block for block in system if not (block.text or "").startswith(BILLING)]
    if system:
        placed.append(("system", {"role": "system", "content": join_pieces(read_pieces(system, "system"))}))
    for i, turn in enumerate(body.messages):
        place = f"messages.{i}"
        placed += [(place, message) for message in translate_turn(turn, place)]
    return placed


def translate_tool_choice(given: AnthropicToolChoice | None) -> dict[str, Any]:
    if given is None:
        return {}
    chat: dict[str, Any] = {"parallel_tool_calls": not given.disable_parallel_tool_use}
    if given.type != "tool":
        return chat | {"tool_choice": {"any": "required"}.get(given.type, given.type)}
    if given.name is None:
        raise Problem(400, "a tool_choice of type tool needs a name", parameter="tool_choice.name")
    return chat | {"tool_choice": {"type": "function", "function": {"name": given.name}}}


def translate_turn(turn: AnthropicTurn, place: str) -> list[dict[str, Any]]:
    """Return a turn as chat messages: one for each tool result, then one for the rest."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results, calls, pieces, thinking = [], [], list[str | bytes](), []
    for i, block in enumerate(turn.content):
        at = f"{place}.content.{i}"
        match block.type:
            case "tool_result":
                failure = "Error: " if block.is_error else ""  # templates have no other way to mark an error
                content = join_pieces([failure, *read_pieces(block.content or "", f"{at}.content", read_result_piece)])
                results.append({"role": "tool", "tool_call_id": block.tool_use_id or "", "content": content})
            case "tool_use":
                function = {"name": block.name or "", "arguments": to_json(block.input or {}, at)}
                calls.append({"id": block.id or "", "type": "function", "function": function})
            case "thinking" | "redacted_thinking":
                thinking.append(block.thinking or "")
            case _:
                pieces.append(read_piece(block, at))
    message: dict[str, Any] = {"role": turn.role, "content": join_pieces(pieces)}
    if calls:
        message["tool_calls"] = calls
    if any(thinking):
        message["reasoning_content"] = "".join(thinking)
    return [*results, message] if pieces or calls or not results else results


def read_piece(block: AnthropicBlock, place: str) -> str | bytes:
    if block.type == "image":
        return read_image(block.source, f"{place}.source")
    if block.type != "text" or block.text is None:
        raise unsupported(place, f"only texts and images are supported, not blocks of type {block.type!r}")
    return block.text


def read_result_piece(block: AnthropicBlock, place: str) -> str | bytes:
    """Return a piece of a tool result; an unreadable piece as text, as refusing it would end the session."""
    match block.type:
        case "image" if block.source is None or block.source.type != "base64":
            return UNSEEN_IMAGE
        case "document":
            return "[a document, which this model cannot read]"
        case "tool_reference":
            return f"[the tool {block.tool_name or ''}]"
    return read_piece(block, place)


def read_pieces(
    content: str | list[AnthropicBlock],
    place: str,
    read: Callable[[AnthropicBlock, str], str | bytes] = read_piece,
) -> list[str | bytes]:
    if isinstance(content, str):
        return [content]
    return [read(block, f"{place}.{i}") for i, block in enumerate(content)]


def read_image(source: AnthropicSource | None, place: str) -> bytes:
    if source is None:
        raise no_image(place)
    if source.type != "base64":
        raise unsupported(place, NOT_FETCHED)
    check_media_type(source.media_type or "image/", place)
    return decode_base64(source.data or "", f"{place}.data")
