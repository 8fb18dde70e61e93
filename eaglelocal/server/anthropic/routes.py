"""POST /v1/messages and /v1/messages/count_tokens, translated into a chat completion."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from eaglelocal.server.anthropic.encoder import AnthropicEncoder
from eaglelocal.server.anthropic.schema import (
    AnthropicBlock,
    AnthropicSource,
    AnthropicTool,
    AnthropicToolChoice,
    AnthropicTurn,
    CountBody,
    MessagesBody,
    OutputConfig,
)
from eaglelocal.server.dependencies import ServerState
from eaglelocal.server.http_call import HttpCall, JsonBody, conversation
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.image_fallback import UNSEEN_IMAGE
from eaglelocal.server.json_values import as_json
from eaglelocal.server.openai.content import NOT_FETCHED, check_kind, from_base64, joined, no_image
from eaglelocal.server.openai.reply_schema import STREAMED
from eaglelocal.server.openai.request_reader import EngineCall, chat_question
from eaglelocal.server.openai.routes import Owner, There
from eaglelocal.server.openai.schema import SamplingGiven
from eaglelocal.server.openai.unsupported_fields import (
    NO_LOGPROBS,
    ONE_ANSWER,
    FieldNames,
    refuse,
    renamed,
    renamed_format,
)
from eaglelocal.server.routing import BodyRoute
from eaglelocal.server.translation import Names, as_chat

router = APIRouter(tags=["Anthropic"], route_class=BodyRoute)

FIELDS = {
    "stop": "stop_sequences",
    "chat_template_kwargs": "thinking",
    "parallel_tool_calls": "tool_choice",
    "reasoning_effort": "output_config.effort",
    "chat_template_kwargs.reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
}
WORDS = FieldNames(
    format="output_config.format (json_schema)",
    stops="stop_sequences",
    foreign={
        **renamed("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"),
        **renamed_format("output_config.format", "output_config", "output_format"),
        **dict.fromkeys(("logprobs", "top_logprobs"), NO_LOGPROBS),
        "chat_template_kwargs": "values of the template are set by thinking and output_config.effort here",
        **renamed("output_config.effort", "reasoning_effort"),
        **renamed("stop_sequences", "stop"),
        "n": ONE_ANSWER,
    },
)
SERVER_TOOLS = "only tools of the caller's can be called here"
BILLING = "x-anthropic-billing-header:"  # Claude Code's: differs in each request, so no prefix would be cached


class MessagesReply(BaseModel):
    id: str
    content: list[dict[str, Any]]
    stop_reason: str | None


class CountReply(BaseModel):
    input_tokens: int


@router.post("/v1/messages", response_model=MessagesReply, responses=STREAMED)
async def messages(body: MessagesBody, serving: There, owner: Owner) -> Response:
    """Answer a conversation in the shape of Anthropic's messages."""
    sampled = {
        **{name: getattr(body, name) for name in SamplingGiven.model_fields},
        "stream": body.stream,
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences or None,
        "continue_final_message": body.continue_final_message,
    }
    question, names = read(body, sampled, serving, owner)
    name = serving.models.name_of(question.model)
    teller = AnthropicEncoder(question.requests[0].id, name, tells_thoughts=tells_thoughts(body))
    return conversation(serving, question, teller, names)


@router.post("/v1/messages/count_tokens", response_model=CountReply)
async def count_tokens(body: CountBody, serving: There, owner: Owner) -> Response:
    """Count the tokens of a conversation, with the model's template and the tools; nothing is generated."""
    question, names = read(body, {}, serving, owner)
    request = dataclasses.replace(question.requests[0], is_counted=True)

    async def counted() -> dict[str, int]:
        async with serving.ask(question.model, [request]) as call:
            (choice,) = await call.complete()
            return {"input_tokens": choice.prompt_tokens}

    return HttpCall(JsonBody(counted, lambda problem: names.own(problem).anthropic_body()), serving.limits)


def read(body: CountBody, sampled: dict[str, Any], serving: ServerState, owner: str) -> tuple[EngineCall, Names]:
    """Return the body as a Question, with the Names to report errors in the body's own terms. Raises Problem."""
    refuse(body, WORDS)
    placed = placed_messages(body)
    names = Names(FIELDS, tuple(place for place, _ in placed))
    with names.told():
        chat = chat_of(body, [message for _, message in placed]) | sampled
        return chat_question(as_chat(chat), serving.defaults, owner), names


def thinks(body: CountBody) -> bool:
    return body.thinking is not None and body.thinking.type != "disabled"


def tells_thoughts(body: CountBody) -> bool:
    return thinks(body) and (body.thinking is None or body.thinking.display != "omitted")


def chat_of(body: CountBody, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the body as one of /v1/chat/completions, without sampling parameters. Raises Problem."""
    chat: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "chat_template_kwargs": {"enable_thinking": thinks(body)},
    }
    if body.tools is not None:
        chat["tools"] = [tool_of(tool, i) for i, tool in enumerate(body.tools)]
    config = body.output_config or OutputConfig()
    chat["reasoning_effort"] = config.effort
    misplaced = {"type": config.type, "schema": config.schema_, "json_schema": config.json_schema}
    for name, value in misplaced.items():
        if value is not None:
            what = "what binds the answer stands in output_config.format"
            raise Problem(400, what, parameter=f"output_config.{name}")
    if wanted := config.format or body.output_format:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted.schema_}}
    return chat | choice_of(body.tool_choice)


def tool_of(tool: AnthropicTool, index: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise unsupported(f"tools.{index}.type", f"{SERVER_TOOLS}, not tools of type {tool.type!r}")
    if tool.input_schema is None:
        raise Problem(400, "a tool needs an input_schema", parameter=f"tools.{index}.input_schema")
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def placed_messages(body: CountBody) -> list[tuple[str, dict[str, Any]]]:
    """Return the system message and the turns as chat messages, each with its place in the body."""
    placed: list[tuple[str, dict[str, Any]]] = []
    if system := system_of(body.system or ""):
        placed.append(("system", {"role": "system", "content": joined(pieces_of(system, "system"))}))
    for i, turn in enumerate(body.messages):
        place = f"messages.{i}"
        placed += [(place, message) for message in messages_of(turn, place)]
    return placed


def system_of(given: str | list[AnthropicBlock]) -> str | list[AnthropicBlock]:
    if isinstance(given, str):
        return given
    return [block for block in given if not (block.text or "").startswith(BILLING)]


def choice_of(given: AnthropicToolChoice | None) -> dict[str, Any]:
    if given is None:
        return {}
    chat: dict[str, Any] = {"parallel_tool_calls": not given.disable_parallel_tool_use}
    if given.type != "tool":
        return chat | {"tool_choice": {"any": "required"}.get(given.type, given.type)}
    if given.name is None:
        raise Problem(400, "a tool_choice of type tool needs a name", parameter="tool_choice.name")
    return chat | {"tool_choice": {"type": "function", "function": {"name": given.name}}}


def messages_of(turn: AnthropicTurn, place: str) -> list[dict[str, Any]]:
    """Return a turn as chat messages: one for each tool result, then one for the rest."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results, calls, said, thought = [], [], list[str | bytes](), []
    for i, block in enumerate(turn.content):
        at = f"{place}.content.{i}"
        match block.type:
            case "tool_result":
                failure = "Error: " if block.is_error else ""  # templates have no other way to mark an error
                content = joined([failure, *pieces_of(readable(block.content or ""), f"{at}.content")])
                results.append({"role": "tool", "tool_call_id": block.tool_use_id or "", "content": content})
            case "tool_use":
                function = {"name": block.name or "", "arguments": as_json(block.input or {}, at)}
                calls.append({"id": block.id or "", "type": "function", "function": function})
            case "thinking" | "redacted_thinking":
                thought.append(block.thinking or "")
            case _:
                said.append(piece_of(block, at))
    message: dict[str, Any] = {"role": turn.role, "content": joined(said)}
    if calls:
        message["tool_calls"] = calls
    if any(thought):
        message["reasoning_content"] = "".join(thought)
    return [*results, message] if said or calls or not results else results


def pieces_of(content: str | list[AnthropicBlock], place: str) -> list[str | bytes]:
    if isinstance(content, str):
        return [content]
    return [piece_of(block, f"{place}.{i}") for i, block in enumerate(content)]


def piece_of(block: AnthropicBlock, place: str) -> str | bytes:
    if block.type == "image":
        return image_in(block.source, f"{place}.source")
    if block.type != "text" or block.text is None:
        raise unsupported(place, f"only texts and images can be read here, not blocks of type {block.type!r}")
    return block.text


def image_in(source: AnthropicSource | None, place: str) -> bytes:
    if source is None:
        raise no_image(place)
    if source.type != "base64":
        raise unsupported(place, NOT_FETCHED)
    check_kind(source.media_type or "image/", place)
    return from_base64(source.data or "", f"{place}.data")


def readable(content: str | list[AnthropicBlock]) -> str | list[AnthropicBlock]:
    """Replace blocks of a tool result that cannot be read by a text: they stay in the conversation, so a refusal
    would end the session.
    """
    return content if isinstance(content, str) else [stand_in(block) for block in content]


def stand_in(block: AnthropicBlock) -> AnthropicBlock:
    match block.type:
        case "image" if block.source is None or block.source.type != "base64":
            text = UNSEEN_IMAGE
        case "document":
            text = "[a document, which this model cannot read]"
        case "tool_reference":
            text = f"[the tool {block.tool_name or ''}]"
        case _:
            return block
    return AnthropicBlock(type="text", text=text)
