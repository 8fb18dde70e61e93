"""POST /v1/messages, as a translation of a chat completion."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from eaglelocal.server.api.anthropic_schema import AnthropicToolChoice, Block, MessagesBody, Turn
from eaglelocal.server.api.anthropic_teller import AnthropicTeller
from eaglelocal.server.api.exchange import conversation
from eaglelocal.server.api.openai_routes import Owner, There
from eaglelocal.server.api.reading import as_json, chat_question
from eaglelocal.server.api.replies import STREAMED
from eaglelocal.server.api.translation import Names, as_chat
from eaglelocal.server.errors import Problem, unsupported

router = APIRouter(tags=["Anthropic"])

FIELDS = {"stop": "stop_sequences", "chat_template_kwargs": "thinking", "parallel_tool_calls": "tool_choice"}


class MessagesReply(BaseModel):
    id: str
    content: list[dict[str, Any]]
    stop_reason: str | None


@router.post("/v1/messages", response_model=MessagesReply, responses=STREAMED)
async def messages(body: MessagesBody, serving: There, owner: Owner) -> Response:
    """Answer a conversation in the shape of Anthropic's messages."""
    placed = placed_messages(body)
    names = Names(FIELDS, tuple(place for place, _ in placed))
    with names.told():
        question = chat_question(as_chat(chat_of(body, [message for _, message in placed])), serving.defaults, owner)
    name = serving.models.name_of(question.model)
    return conversation(serving, question, AnthropicTeller(question.requests[0].id, name), names)


def chat_of(body: MessagesBody, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The same as a body of /v1/chat/completions."""
    chat: dict[str, Any] = {
        "model": body.model,
        "stream": body.stream,
        "messages": messages,
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences or None,
    }
    if body.tools is not None:
        chat["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in body.tools
        ]
    if body.thinking is not None:
        chat["chat_template_kwargs"] = {"enable_thinking": body.thinking.type != "disabled"}
    return chat | choice_of(body.tool_choice)


def placed_messages(body: MessagesBody) -> list[tuple[str, dict[str, Any]]]:
    """The system's message and the turns, with their places in the body."""
    placed: list[tuple[str, dict[str, Any]]] = []
    if body.system:
        system = body.system if isinstance(body.system, str) else text_in(body.system, "system")
        placed.append(("system", {"role": "system", "content": system}))
    for i, turn in enumerate(body.messages):
        place = f"messages.{i}"
        placed += [(place, message) for message in messages_of(turn, place)]
    return placed


def choice_of(given: AnthropicToolChoice | None) -> dict[str, Any]:
    if given is None:
        return {}
    chat: dict[str, Any] = {"parallel_tool_calls": not given.disable_parallel_tool_use}
    if given.type != "tool":
        return chat | {"tool_choice": {"any": "required"}.get(given.type, given.type)}
    if given.name is None:
        raise Problem(400, "a tool_choice of type tool needs a name", parameter="tool_choice.name")
    return chat | {"tool_choice": {"type": "function", "function": {"name": given.name}}}


def messages_of(turn: Turn, place: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, before what the person says beside them."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results, calls, said, thought = [], [], [], []
    for i, block in enumerate(turn.content):
        at = f"{place}.content.{i}"
        match block.type:
            case "tool_result":
                content = block.content or ""
                text = content if isinstance(content, str) else text_in(content, at)
                results.append({"role": "tool", "tool_call_id": block.tool_use_id or "", "content": text})
            case "tool_use":
                function = {"name": block.name or "", "arguments": as_json(block.input or {}, at)}
                calls.append({"id": block.id or "", "type": "function", "function": function})
            case "thinking" | "redacted_thinking":
                thought.append(block.thinking or "")
            case _:
                said.append(text_in([block], at))
    message: dict[str, Any] = {"role": turn.role, "content": "".join(said)}
    if calls:
        message["tool_calls"] = calls
    if any(thought):
        message["reasoning_content"] = "".join(thought)
    return [*results, message] if said or calls or not results else results


def text_in(blocks: list[Block], place: str) -> str:
    for block in blocks:
        if block.type != "text" or block.text is None:
            raise unsupported(place, f"only text can be read here, not blocks of type {block.type!r}")
    return "".join(block.text or "" for block in blocks)
