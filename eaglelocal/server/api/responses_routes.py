"""POST /v1/responses, as a translation of a chat completion. A conversation is sent whole each time."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from eaglelocal.server.api.exchange import conversation
from eaglelocal.server.api.openai_routes import Owner, There
from eaglelocal.server.api.reading import ONLY_FUNCTIONS, chat_question, text_of
from eaglelocal.server.api.replies import STREAMED
from eaglelocal.server.api.responses_schema import FunctionTool, Item, NamedTool, ResponsesBody, TextFormat
from eaglelocal.server.api.responses_teller import ResponsesTeller
from eaglelocal.server.api.schema import SamplingGiven
from eaglelocal.server.api.translation import Names, as_chat
from eaglelocal.server.errors import Problem, unsupported

router = APIRouter(tags=["OpenAI"])

FIELDS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "chat_template_kwargs.reasoning_effort": "reasoning.effort",
}
KEEPS_NOTHING = "this server keeps no conversations: send the whole of it as input"


class ResponsesReply(BaseModel):
    id: str
    status: str
    output: list[dict[str, Any]]


@router.post("/v1/responses", response_model=ResponsesReply, responses=STREAMED)
async def responses(body: ResponsesBody, serving: There, owner: Owner) -> Response:
    """Answer a conversation in the shape of OpenAI's responses."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(body, name) is not None:
            raise unsupported(name, KEEPS_NOTHING)
    if body.background:
        raise unsupported("background", "answers are given at once, not in the background")
    placed = messages_of(body)
    names = Names(FIELDS, tuple(place for place, _ in placed))
    with names.told():
        question = chat_question(as_chat(chat_of(body, [message for _, message in placed])), serving.defaults, owner)
    name = serving.models.name_of(question.model)
    return conversation(serving, question, ResponsesTeller(question.requests[0].id, name, body), names)


def chat_of(body: ResponsesBody, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The same as a body of /v1/chat/completions."""
    chat: dict[str, Any] = {name: getattr(body, name) for name in SamplingGiven.model_fields}
    chat |= {
        "model": body.model,
        "stream": body.stream,
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        "tool_choice": body.tool_choice,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_format": format_of(body.text.format if body.text else None),
    }
    if isinstance(body.tool_choice, NamedTool):
        function = {"name": body.tool_choice.name} if body.tool_choice.name else None
        chat["tool_choice"] = {"type": body.tool_choice.type, "function": function}
    if body.tools is not None:
        chat["tools"] = [tool_of(tool, i) for i, tool in enumerate(body.tools)]
    return chat


def tool_of(tool: FunctionTool, index: int) -> dict[str, Any]:
    if tool.type != "function":
        raise unsupported(f"tools.{index}.type", f"{ONLY_FUNCTIONS}, not tools of type {tool.type!r}")
    if tool.name is None:
        raise Problem(400, "a function needs a name", parameter=f"tools.{index}.name")
    return {"type": "function", "function": tool.model_dump(exclude={"type"})}


def messages_of(body: ResponsesBody) -> list[tuple[str, dict[str, Any]]]:
    """Instructions, then the items, with their places; calls that follow each other belong to one message, and a
    thought to what the assistant says or calls next."""
    messages: list[tuple[str, dict[str, Any]]] = []
    if body.instructions:
        messages.append(("instructions", {"role": "system", "content": body.instructions}))
    if isinstance(body.input, str):
        return [*messages, ("input", {"role": "user", "content": body.input})]
    thought = ""
    for i, item in enumerate(body.input):
        if item.type == "reasoning":
            thought += thought_of(item, f"input.{i}")
            continue
        message = message_of(item, f"input.{i}")
        last = messages[-1][1] if messages else {}
        if item.type == "function_call" and last.get("role") == "assistant":
            last["tool_calls"] = [*last.get("tool_calls", []), *message["tool_calls"]]
            message = last
        else:
            messages.append((f"input.{i}", message))
        if thought and message["role"] == "assistant":
            message["reasoning_content"] = message.get("reasoning_content", "") + thought
        thought = ""
    return messages


def thought_of(item: Item, place: str) -> str:
    """The thought itself, where it is there; else its summary."""
    return text_of(item.content, f"{place}.content") or text_of(item.summary, f"{place}.summary")


def message_of(item: Item, place: str) -> dict[str, Any]:
    match item.type:
        case "message":
            if item.role is None:
                raise Problem(400, "a message needs a role", parameter=f"{place}.role")
            if item.content is None:
                raise Problem(400, "a message needs content", parameter=f"{place}.content")
            return {"role": item.role, "content": text_of(item.content, f"{place}.content")}
        case "function_call":
            function = {"name": item.name or "", "arguments": item.arguments or "{}"}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            return {
                "role": "tool",
                "tool_call_id": item.call_id or "",
                "content": text_of(item.output, f"{place}.output"),
            }
    if item.type == "item_reference":
        raise unsupported(f"{place}.type", KEEPS_NOTHING)
    raise unsupported(f"{place}.type", f"items of type {item.type!r} cannot be read here")


def format_of(given: TextFormat | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if given.type != "json_schema":
        return {"type": given.type}
    if given.schema_ is None:
        raise Problem(400, "text.format of type json_schema needs a schema", parameter="text.format.schema")
    return {"type": "json_schema", "json_schema": {"name": given.name or "", "schema": given.schema_}}
