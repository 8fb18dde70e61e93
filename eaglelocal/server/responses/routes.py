"""POST /v1/responses, translated into a chat completion. Earlier items and responses may be referred to by id."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from eaglelocal.server.access_log import current_record
from eaglelocal.server.answer_response import EVENT_STREAM, respond
from eaglelocal.server.content import UNSEEN_IMAGE, is_data_url
from eaglelocal.server.http_errors import NOT_FOUND, Problem, unsupported
from eaglelocal.server.json_body import name_chat_fields
from eaglelocal.server.request_reader import PlacedMessages, image_url, read_content, read_text, read_translated_chat
from eaglelocal.server.responses.encoder import ResponsesEncoder
from eaglelocal.server.responses.schema import (
    CallableTool,
    Functions,
    Item,
    ResponsesAllowedTool,
    ResponsesBody,
    ResponsesNamedTool,
    TextGiven,
    full_name,
)
from eaglelocal.server.responses.stored_responses import MAX_BYTES, StoredResponses
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.schema import ContentPart, ErrorReply, ReplyModel, refuse_misplaced_format
from eaglelocal.server.server_state import ServerState

routes = RouteTable("OpenAI", ErrorReply)

FIELDS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    **name_chat_fields(effort="reasoning.effort", format="text.format"),
    "tool_choice.allowed_tools": "tool_choice.tools",
    "tool_choice.allowed_tools.tools": "tool_choice.tools",
}
NO_CONVERSATIONS = "this server stores no conversations: send the whole conversation as input"
WHAT_IS_STORED = "only recent ones are, in RAM, and none with store: false"
UNREAD_FILE = "[a file, which this model cannot read]"
MAX_NAMED = 8  # types of tools in a warning
TOOL_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,40}")  # characters that a header may contain
ToolNames = Mapping[tuple[str, str], str]  # by type and name, in the client's spelling
PlacedItems = list[tuple[str, Item]]  # with their places in the body


class ResponsesReply(ReplyModel):
    id: str
    status: str
    output: list[dict[str, Any]]


@routes.add("POST", "/v1/responses", reply=ResponsesReply, stream=EVENT_STREAM)
async def responses(body: ResponsesBody, server: ServerState, owner: str) -> Response:
    """Answer a conversation in the format of OpenAI's responses."""
    stored = server.stored[owner]
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise unsupported(name, NO_CONVERSATIONS)
    body.refuse_unsupported()
    if body.background:
        raise unsupported("background", "this server answers at once, not in the background")
    check_left_out(body)
    earlier = find_earlier_items(body.previous_response_id, stored)
    if isinstance(body.input, str):
        items: PlacedItems = [("input", Item(role="user", content=body.input))]
    else:
        items = [(f"input.{i}", resolve_reference(item, f"input.{i}", stored)) for i, item in enumerate(body.input)]
    messages = translate_items(body.instructions, [*earlier, *items])
    call = read_translated_chat(translate_body(body), messages, FIELDS, server.defaults, owner)
    echoed = body.model_copy(update={"input": ""})  # the input is not part of the reply, and may contain images
    encoder = ResponsesEncoder(call.requests[0].id, server.models.names.resolve(call.model), echoed)
    image_bytes = sum(len(image.data) for message in call.requests[0].messages for image in message.images)
    input = [item for _, item in items] if body.is_stored and image_bytes < MAX_BYTES else None
    store = partial(store_response, encoder, stored, body.previous_response_id, input)
    return respond(server, call, encoder, on_end=store if body.is_stored else lambda: None)


def check_left_out(body: ResponsesBody) -> None:
    """Warn of tools that this server would have to run. Raises Problem if one of them must be called."""
    types = [kind if TOOL_TYPE.fullmatch(kind) else "..." for kind in body.unsupported_types[:MAX_NAMED]]
    if not types:
        return
    what = f"this server runs no tools: those of type {', '.join(types)} are left out"
    if body.tool_choice == "required" and not body.functions_by_name:
        raise Problem(400, f"tool_choice is required, but {what}, and there are no others", parameter="tool_choice")
    current_record().warnings.append(what)


def store_response(
    encoder: ResponsesEncoder, stored: StoredResponses, previous: str | None, input: list[Item] | None
) -> None:
    """Store the input and the output so far, so that later requests can refer to them, even after a disconnect.

    input  None: too large to be stored, so it was not kept while the answer ran
    """
    if encoder.is_sent:
        items = None if input is None else [item.model_dump(exclude_none=True) for item in input]
        stored.store(encoder.id, previous, items, encoder.items())


def translate_body(body: ResponsesBody) -> dict[str, Any]:
    """Return the body as one of /v1/chat/completions, without messages. Raises Problem."""
    chat: dict[str, Any] = {
        **body.sampling_fields(),
        "model": body.model,
        "stream": body.stream,
        "store": body.store,
        "max_completion_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        "tool_choice": body.tool_choice,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_format": translate_format(body.text),
        "chat_template_kwargs": body.chat_template_kwargs,
        "continue_final_message": body.continue_final_message,
    }
    functions = body.functions_by_name
    if isinstance(body.tool_choice, ResponsesNamedTool):
        chat["tool_choice"] = translate_tool_choice(body.tool_choice, function_names(functions))
    if body.tools is not None:
        chat["tools"] = [translate_tool(name, tool) for name, (_, tool) in functions.items()]
    return chat


def translate_tool_choice(given: ResponsesNamedTool, names: ToolNames) -> dict[str, Any]:
    named = translate_named_tool(given, names)
    if given.tools is not None:
        allowed = [translate_named_tool(tool, names) for tool in given.tools]
        return named | {"allowed_tools": {"mode": given.mode or "auto", "tools": allowed}}
    return named


def translate_named_tool(given: ResponsesAllowedTool, names: ToolNames) -> dict[str, Any]:
    if not given.name or given.type not in ("function", "custom"):
        return {"type": given.type}
    name = full_name(given.namespace, given.name)
    return {"type": given.type, given.type: {"name": names.get((given.type, name), name)}}


def function_names(functions: Functions) -> ToolNames:
    """Return full names by type and full name, and by type and bare name where that is unique over all namespaces."""
    count = Counter((tool.type, tool.name) for _, tool in functions.values())
    names: dict[tuple[str, str], str] = {}
    for name, (_, tool) in functions.items():
        if count[tool.type, tool.name] == 1:
            names[tool.type, tool.name] = name
    return names | {(tool.type, name): name for name, (_, tool) in functions.items()}


def translate_tool(name: str, tool: CallableTool) -> dict[str, Any]:
    return {"type": tool.type, tool.type: tool.model_dump(exclude={"type"}) | {"name": name}}


def find_earlier_items(id: str | None, stored: StoredResponses) -> PlacedItems:
    """Return all items up to the end of a response, without its instructions. Raises Problem if it is not stored."""
    found, place = stored.find_conversation(id), "previous_response_id"
    if found is None:
        why = f"this response is not stored ({WHAT_IS_STORED}): send the whole conversation as input instead"
        raise Problem(400, why, parameter=place, code="previous_response_not_found")
    return [(place, read_stored_item(values, place)) for values in found]


def resolve_reference(item: Item, place: str, stored: StoredResponses) -> Item:
    """Return the item, looked up if it is a reference. Raises Problem (404) if it is not stored."""
    if item.type != "item_reference":
        return item
    found = stored.items.find(item.id or "")
    if found is None:
        why = f"this item is not stored ({WHAT_IS_STORED}): send the item itself, as clients do with store: false"
        raise Problem(404, why, NOT_FOUND, parameter=f"{place}.id", code="item_not_found")
    return read_stored_item(found, place)


def read_stored_item(values: dict[str, Any], place: str) -> Item:
    """Return a stored item. Raises Problem for one that violates the limits of requests (such as a very long name)."""
    try:
        return Item.model_validate(values)
    except ValidationError:
        raise Problem(400, "what the model wrote there is not valid as input: leave it out", parameter=place) from None


def translate_items(instructions: str | None, items: PlacedItems) -> PlacedMessages:
    """Translate instructions and items to chat messages with their places. Consecutive calls form one message, and
    reasoning joins the assistant's next text or call. Instructions alone get an empty user message. Raises Problem.
    """
    messages: PlacedMessages = []
    if instructions:
        messages.append(("instructions", {"role": "system", "content": instructions}))
    reasoning = ""
    for place, item in items:
        if item.type == "reasoning":
            reasoning += reasoning_text(item, place)
            continue
        message = translate_item(item, place)
        last = messages[-1][1] if messages else {}
        if item.type == "function_call" and last.get("role") == "assistant":
            last["tool_calls"] = [*last.get("tool_calls", []), *message["tool_calls"]]
            message = last
        else:
            messages.append((place, message))
        if reasoning and message["role"] == "assistant":
            message["reasoning_content"] = message.get("reasoning_content", "") + reasoning
        reasoning = ""
    if not messages:
        why = "there is nothing to answer: input has no message, and there are no instructions"
        raise Problem(400, why, parameter="input")
    if instructions and len(messages) == 1:  # many templates require a user's turn
        messages.append(("input", {"role": "user", "content": ""}))
    return messages


def reasoning_text(item: Item, place: str) -> str:
    """Return the reasoning text; without one, its summary."""
    return read_text(item.content, f"{place}.content") or read_text(item.summary, f"{place}.summary")


def translate_item(item: Item, place: str) -> dict[str, Any]:
    match item.type:
        case "message":
            if item.role is None:
                raise Problem(400, "a message needs a role", parameter=f"{place}.role")
            if item.content is None:
                raise Problem(400, "a message needs content", parameter=f"{place}.content")
            return {"role": item.role, "content": read_content(item.content, f"{place}.content")}
        case "function_call":
            function = {"name": full_name(item.namespace, item.name or ""), "arguments": item.arguments or "{}"}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":  # with unreadable parts, a refusal would end the session
            readable = list(map(replace_unreadable, item.output)) if isinstance(item.output, list) else item.output
            return {
                "role": "tool",
                "tool_call_id": item.call_id or "",
                "content": read_content(readable, f"{place}.output"),
            }
    raise unsupported(f"{place}.type", f"items of type {item.type!r} are not supported")


def replace_unreadable(part: ContentPart) -> ContentPart:
    if part.type == "input_file":
        return ContentPart(type="input_text", text=UNREAD_FILE)
    if part.type == "input_image" and not is_data_url(image_url(part)):
        return ContentPart(type="input_text", text=UNSEEN_IMAGE)
    return part


def translate_format(given: TextGiven | None) -> dict[str, Any] | None:
    if given is None:
        return None
    refuse_misplaced_format(given, "text")
    format = given.format
    if format is None:
        return None
    if format.type == "json_schema" and format.schema_ is None and format.json_schema is None:
        raise Problem(400, "text.format of type json_schema needs a schema", parameter="text.format.schema")
    return format.model_dump(by_alias=True, exclude_none=True, exclude={"name"})
