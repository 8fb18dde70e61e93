"""POST /v1/responses, translated into a chat completion. Earlier items and responses may be referred to by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from eaglelocal.server.http_call import AnswerBody, HttpCall, ResponseBody, Wire
from eaglelocal.server.http_errors import NOT_FOUND, Problem, unsupported
from eaglelocal.server.image_fallback import UNSEEN_IMAGE
from eaglelocal.server.openai.content import is_data
from eaglelocal.server.openai.reply_schema import STREAMED
from eaglelocal.server.openai.request_reader import EngineCall, chat_question, content_of, text_of, url_of
from eaglelocal.server.openai.routes import Owner, There, owner_of
from eaglelocal.server.openai.schema import ContentPart, SamplingGiven
from eaglelocal.server.openai.unsupported_fields import (
    NO_LOGPROBS,
    ONE_ANSWER,
    FieldNames,
    refuse,
    renamed,
    renamed_format,
)
from eaglelocal.server.responses.encoder import ResponsesEncoder
from eaglelocal.server.responses.schema import (
    Functions,
    FunctionTool,
    Item,
    ResponsesAllowedTool,
    ResponsesBody,
    ResponsesNamedTool,
    TextGiven,
    shown_name,
)
from eaglelocal.server.responses.stored_responses import MAX_BYTES, StoredResponses
from eaglelocal.server.routing import BodyRoute
from eaglelocal.server.translation import Names, as_chat

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute)

FIELDS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.schema": "text.format.schema",
    "response_format.json_schema": "text.format.json_schema",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.allowed_tools": "tool_choice.tools",
    "tool_choice.allowed_tools.tools": "tool_choice.tools",
    "chat_template_kwargs.reasoning_effort": "reasoning.effort",
}
WORDS = FieldNames(
    format="text.format (json_schema)",
    limit="max_output_tokens",
    foreign={
        **renamed("max_output_tokens", "max_tokens", "max_completion_tokens", "n_predict"),
        **renamed("stop", "stop_sequences"),
        **renamed_format("text.format", "text"),
        **dict.fromkeys(("logprobs", "top_logprobs"), NO_LOGPROBS),
        **renamed("reasoning.effort", "reasoning_effort"),
        "n": ONE_ANSWER,
    },
)
KEEPS_NOTHING = "this server keeps no conversations: send the whole of it as input"
LATEST = "only the latest are, in memory, and none with store: false"
UNREAD_FILE = "[a file, which this model cannot read]"
Placed = list[tuple[str, Item]]  # with their places in the body


def memory_of(request: Request) -> StoredResponses:
    """Return the memory of the request's owner."""
    found: StoredResponses = request.app.state.memories[owner_of(request)]
    return found


Known = Annotated[StoredResponses, Depends(memory_of)]


class ResponsesReply(BaseModel):
    id: str
    status: str
    output: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StoredBody:
    """A Talk whose input and output are stored in memory, even if it ends early."""

    talk: ResponseBody
    teller: ResponsesEncoder
    memory: StoredResponses
    previous: str | None
    asked: list[Item] | None  # None: too large to be stored, so it is not kept while the answer runs either

    async def answer(self, wire: Wire) -> None:
        try:
            await self.talk.answer(wire)
        finally:  # after a disconnect too, the output so far may be referred to
            if self.teller.is_told:
                asked = None if self.asked is None else [item.model_dump(exclude_none=True) for item in self.asked]
                self.memory.keep(self.teller.id, self.previous, asked, self.teller.items())

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        return self.talk.refusal(problem)

    def breaking(self, problem: Problem) -> str:
        return self.talk.breaking(problem)


@router.post("/v1/responses", response_model=ResponsesReply, responses=STREAMED)
async def responses(body: ResponsesBody, serving: There, owner: Owner, memory: Known) -> Response:
    """Answer a conversation in the shape of OpenAI's responses."""
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise unsupported(name, KEEPS_NOTHING)
    refuse(body, WORDS)
    if body.background:
        raise unsupported("background", "answers are given at once, not in the background")
    before, asked = items_before(body.previous_response_id, memory), items_of(body, memory)
    placed = messages_of(body.instructions, [*before, *asked])
    names = Names(FIELDS, tuple(place for place, _ in placed))
    with names.told():
        chat = as_chat(chat_of(body, [message for _, message in placed]))
        question = chat_question(chat, serving.defaults, owner)
    told_of = body.model_copy(update={"input": ""})  # the input is not part of the reply, and may contain images
    teller = ResponsesEncoder(question.requests[0].id, serving.models.name_of(question.model), told_of)
    talk: ResponseBody = AnswerBody(serving, question, teller, names)
    if body.is_kept:
        kept = [item for _, item in asked] if fits(question) else None
        talk = StoredBody(talk, teller, memory, body.previous_response_id, kept)
    return HttpCall(talk, serving.limits)


def fits(question: EngineCall) -> bool:
    """Return whether the images of a request fit into the memory."""
    return sum(len(image.data) for message in question.requests[0].messages for image in message.images) < MAX_BYTES


def chat_of(body: ResponsesBody, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the body as one of /v1/chat/completions. Raises Problem."""
    chat: dict[str, Any] = {name: getattr(body, name) for name in SamplingGiven.model_fields}
    chat |= {
        "model": body.model,
        "stream": body.stream,
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        "tool_choice": body.tool_choice,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_format": format_of(body.text),
        "chat_template_kwargs": body.chat_template_kwargs,
        "continue_final_message": body.continue_final_message,
    }
    functions = body.functions_by_name
    if isinstance(body.tool_choice, ResponsesNamedTool):
        chat["tool_choice"] = choice_of(body.tool_choice, meant_names(functions))
    if body.tools is not None:
        chat["tools"] = [tool_of(name, tool) for name, (_, tool) in functions.items()]
    return chat


def choice_of(given: ResponsesNamedTool, meant: Mapping[str, str]) -> dict[str, Any]:
    named = named_tool(given, meant)
    if given.tools is not None:
        allowed = [named_tool(tool, meant) for tool in given.tools]
        return named | {"allowed_tools": {"mode": given.mode or "auto", "tools": allowed}}
    return named


def named_tool(given: ResponsesAllowedTool | ResponsesNamedTool, meant: Mapping[str, str]) -> dict[str, Any]:
    if not given.name or given.type != "function":
        return {"type": given.type, "function": None}
    name = shown_name(given.namespace, given.name)
    return {"type": given.type, "function": {"name": meant.get(name, name)}}


def meant_names(functions: Functions) -> dict[str, str]:
    """Return full function names by full name, and by bare name where that is unique over all namespaces."""
    count = Counter(tool.name for _, tool in functions.values())
    bare = {tool.name: name for name, (_, tool) in functions.items() if count[tool.name] == 1}
    return bare | {name: name for name in functions}


def tool_of(name: str, tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude={"type"}) | {"name": name}}


def items_before(id: str | None, memory: StoredResponses) -> Placed:
    """Return all items up to the end of a response, without its instructions. Raises Problem if it is not stored."""
    found, place = memory.conversation(id), "previous_response_id"
    if found is None:
        why = f"this response is not remembered ({LATEST}): send the whole conversation as input instead"
        raise Problem(400, why, parameter=place, code="previous_response_not_found")
    return [(place, item_of(values, place)) for values in found]


def items_of(body: ResponsesBody, memory: StoredResponses) -> Placed:
    if isinstance(body.input, str):
        return [("input", Item(role="user", content=body.input))]
    return [(f"input.{i}", recalled(item, f"input.{i}", memory)) for i, item in enumerate(body.input)]


def recalled(item: Item, place: str, memory: StoredResponses) -> Item:
    """Return the item, looked up if it is a reference. Raises Problem (404) if it is not stored."""
    if item.type != "item_reference":
        return item
    found = memory.items.find(item.id or "")
    if found is None:
        why = f"this item is not remembered ({LATEST}): send the item itself, as clients do with store: false"
        raise Problem(404, why, NOT_FOUND, parameter=f"{place}.id", code="item_not_found")
    return item_of(found, place)


def item_of(values: dict[str, Any], place: str) -> Item:
    """Return a stored item. Raises Problem for one that violates the limits of requests (such as a very long name)."""
    try:
        return Item.model_validate(values)
    except ValidationError:
        raise Problem(400, "what the model told there cannot be read again: leave it out", parameter=place) from None


def messages_of(instructions: str | None, items: Placed) -> list[tuple[str, dict[str, Any]]]:
    """Return instructions and items as chat messages with their places. Consecutive calls form one message, and
    reasoning joins the assistant's next text or call. Instructions alone get an empty user message. Raises Problem.
    """
    messages: list[tuple[str, dict[str, Any]]] = []
    if instructions:
        messages.append(("instructions", {"role": "system", "content": instructions}))
    thought = ""
    for place, item in items:
        if item.type == "reasoning":
            thought += thought_of(item, place)
            continue
        message = message_of(item, place)
        last = messages[-1][1] if messages else {}
        if item.type == "function_call" and last.get("role") == "assistant":
            last["tool_calls"] = [*last.get("tool_calls", []), *message["tool_calls"]]
            message = last
        else:
            messages.append((place, message))
        if thought and message["role"] == "assistant":
            message["reasoning_content"] = message.get("reasoning_content", "") + thought
        thought = ""
    if not messages:
        raise Problem(400, "there is nothing to answer: no message in input, and no instructions", parameter="input")
    if instructions and len(messages) == 1:  # many templates require a user's turn
        messages.append(("input", {"role": "user", "content": ""}))
    return messages


def thought_of(item: Item, place: str) -> str:
    """Return the reasoning text; without one, its summary."""
    return text_of(item.content, f"{place}.content") or text_of(item.summary, f"{place}.summary")


def message_of(item: Item, place: str) -> dict[str, Any]:
    match item.type:
        case "message":
            if item.role is None:
                raise Problem(400, "a message needs a role", parameter=f"{place}.role")
            if item.content is None:
                raise Problem(400, "a message needs content", parameter=f"{place}.content")
            return {"role": item.role, "content": content_of(item.content, f"{place}.content")}
        case "function_call":
            function = {"name": shown_name(item.namespace, item.name or ""), "arguments": item.arguments or "{}"}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            return {
                "role": "tool",
                "tool_call_id": item.call_id or "",
                "content": content_of(readable(item.output), f"{place}.output"),
            }
    raise unsupported(f"{place}.type", f"items of type {item.type!r} cannot be read here")


def readable(output: str | list[ContentPart] | None) -> str | list[ContentPart] | None:
    """Replace parts of a call's result that cannot be read by a text: a refusal would end the session."""
    return [stand_in(part) for part in output] if isinstance(output, list) else output


def stand_in(part: ContentPart) -> ContentPart:
    if part.type == "input_file":
        return ContentPart(type="input_text", text=UNREAD_FILE)
    if part.type == "input_image" and not is_data(url_of(part)):
        return ContentPart(type="input_text", text=UNSEEN_IMAGE)
    return part


def format_of(given: TextGiven | None) -> dict[str, Any] | None:
    if given is None:
        return None
    misplaced = {"type": given.type, "schema": given.schema_, "json_schema": given.json_schema}
    for name, value in misplaced.items():
        if value is not None:
            raise Problem(400, "what binds the answer stands in text.format", parameter=f"text.{name}")
    wanted = given.format
    if wanted is None:
        return None
    if wanted.type == "json_schema" and wanted.schema_ is None and wanted.json_schema is None:
        raise Problem(400, "text.format of type json_schema needs a schema", parameter="text.format.schema")
    return wanted.model_dump(by_alias=True, exclude_none=True, exclude={"name"})
