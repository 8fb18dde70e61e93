"""Ollama's POST /api/chat, /api/generate, /api/embed and /api/embeddings.

Requests are translated into chats and completions. Fields about memory and hardware (num_ctx, num_gpu, keep_alive) are
fixed when this server starts: they are ignored like unknown ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.responses import JSONResponse, Response

from eaglelocal.core.events import Embeddings
from eaglelocal.core.request import ChatRequest
from eaglelocal.server.answer_encoder import ReplyEncoder
from eaglelocal.server.answer_response import AnswerResponse, ResponseWriter, respond
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.content import Content, decode_base64, decode_data_url, is_data_url, join_pieces
from eaglelocal.server.embedding_routes import read_embedding, respond_with_embeddings, split_vectors, to_floats
from eaglelocal.server.http_errors import unsupported
from eaglelocal.server.json_body import FieldTranslation, name_chat_fields
from eaglelocal.server.ollama.encoder import (
    NDJSON,
    OllamaEncoder,
    ReplyFields,
    head,
    message_fields,
    nanoseconds,
    response_fields,
)
from eaglelocal.server.ollama.model_routes import OllamaError, find_listed_name, resolve_name
from eaglelocal.server.request_reader import EngineCall, PlacedMessages, new_id, read_completion, read_translated_chat
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.schema import (
    MAX_INPUTS,
    MAX_LIMIT,
    MAX_MESSAGES,
    MAX_TOOLS,
    MAX_TRANSLATED_TOOLS,
    Body,
    CallId,
    CompletionBody,
    FunctionGiven,
    Limit,
    Name,
    ReplyModel,
    SamplingGiven,
    Text,
    Word,
    clip_to,
)
from eaglelocal.server.server_state import ServerState
from eaglelocal.server.unsupported_fields import ONE_ANSWER, name_refused, redirect, redirect_format

Images = Annotated[list[str] | None, Field(repr=False, description="as base64")]
ZERO_DURATIONS = (0, "0", "0s", "0m")

REFUSED = name_refused(
    {
        **redirect("options.num_predict", "max_completion_tokens", "max_output_tokens", "n_predict"),
        **redirect("options.stop", "stop_sequences"),
        **redirect_format("format", "format"),
        "n": ONE_ANSWER,
    },
    format="format",
    limit="options.num_predict",
    stops="options.stop",
    weights="options.logit_bias",
)
REFUSED_OPTIONS = {
    **REFUSED,
    **redirect("num_predict", "max_tokens"),
    "format": "format belongs beside the options, not in them",
}


class Options(SamplingGiven):
    refused = REFUSED_OPTIONS
    num_predict: Annotated[int, clip_to(MAX_LIMIT)] | None = None  # -1, -2: until the context is full


class Called(Body):
    name: Name
    arguments: dict[str, Any] | Text | None = None


class OllamaCall(Body):
    id: CallId | None = None
    function: Called


class OllamaMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    thinking: Text | None = None
    images: Images = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_name: Name | None = None
    tool_call_id: CallId | None = None


class OllamaTool(Body):
    type: Word | None = None
    function: FunctionGiven


class OllamaAnswerFields(Body):
    """The fields shared by chats and generated texts."""

    refused = REFUSED
    model: Name = ""
    stream: Annotated[bool | None, Field(description="unless false, the answer comes as lines of JSON")] = None
    options: Options | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: Annotated[
        bool | Literal["low", "medium", "high", "max"] | None, Field(description="without it, as the model does")
    ] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_tokens: Limit | None = None  # OpenAI's; used if the options set no limit
    keep_alive: Any = None


class OllamaChatBody(OllamaAnswerFields):
    """POST /api/chat"""

    messages: Annotated[
        list[OllamaMessage] | None, Field(max_length=MAX_MESSAGES, description="none: load the model")
    ] = None
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TRANSLATED_TOOLS)] | None = None


class GenerateBody(OllamaAnswerFields):
    """POST /api/generate"""

    prompt: Annotated[Text | None, Field(description="none: load the model")] = None
    suffix: Text | None = None
    system: Text | None = None
    raw: bool | None = None
    template: Text | None = None
    context: list[Any] | None = None
    images: Images = None


class EmbedBody(Body):
    """POST /api/embed"""

    model: Name = ""
    input: Text | Annotated[list[Text], Field(max_length=MAX_INPUTS)] = ""
    truncate: Annotated[bool | None, Field(description="A text that does not fit loses its end, unless false.")] = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


class OldEmbedBody(Body):
    """POST /api/embeddings"""

    model: Name = ""
    prompt: Text = ""


class AnswerReply(ReplyModel):
    model: str
    created_at: str
    done: bool
    done_reason: str


class OllamaChatReply(AnswerReply):
    message: dict[str, Any]


class GenerateReply(AnswerReply):
    response: str
    thinking: str | None = None


class EmbedReply(ReplyModel):
    model: str
    embeddings: list[list[float]]


class OldEmbedReply(ReplyModel):
    embedding: list[float]


routes = RouteTable("Ollama", OllamaError)

FIELDS = {
    **{name: f"options.{name}" for name in SamplingGiven.model_fields},
    "max_tokens": "options.num_predict",
    "chat_template_kwargs": "think",
    **name_chat_fields(effort="think", format="format"),
    "response_format.json_schema": "format",
    "response_format.json_schema.schema": "format",
}
PROMPT_FIELDS = FIELDS | {"messages": "prompt"}
NO_IMAGES = "images cannot be combined with raw or suffix: without the chat template they have no place"
NO_TEMPLATE = "this server uses the model's own chat template; raw: true continues the prompt without one"
NO_CONTEXT = "this server returns no context: send the whole conversation to /api/chat"
NO_SYSTEM = "system cannot be combined with raw or suffix"
Values = dict[str, Any]


@routes.add("POST", "/api/chat", reply=OllamaChatReply, stream=NDJSON)
async def chat(body: OllamaChatBody, server: ServerState, owner: str) -> Response:
    """Answer a conversation in the format of Ollama's chat."""
    if not body.messages:
        return load_only(body, server, owner, message_fields)
    tools = None if body.tools is None else [translate_tool(tool) for tool in body.tools]
    call = read_chat_body(body, translate_messages(body.messages), tools, server, owner)
    return respond_to(body, server, call, message_fields)


@routes.add("POST", "/api/generate", reply=GenerateReply, stream=NDJSON)
async def generate(body: GenerateBody, server: ServerState, owner: str) -> Response:
    """Answer one question, or continue a text (`raw`, `suffix`)."""
    is_continuation = bool(body.raw or body.suffix)
    refuse_unsupported(body, is_continuation=is_continuation)
    if not (body.prompt or body.suffix or body.images):
        return load_only(body, server, owner, response_fields)
    if is_continuation:
        call = read_completion_body(body, server, owner)
    else:
        system = [("system", {"role": "system", "content": body.system})] if body.system else []
        prompt = ("prompt", {"role": "user", "content": image_content(body.images, "images", body.prompt)})
        call = read_chat_body(body, [*system, prompt], None, server, owner)
    return respond_to(body, server, call, response_fields)


@routes.add("POST", "/api/embed", reply=EmbedReply)
async def embed(body: EmbedBody, server: ServerState, owner: str) -> Response:
    """Return an embedding of each text, a vector of length 1."""

    def make_reply(embeddings: Embeddings, choice: AnswerState) -> Values:
        return {
            "model": body.model or model,
            "embeddings": [to_floats(vector) for vector in split_vectors(embeddings)],
            "total_duration": nanoseconds(choice.ended_at - choice.requested_at),
            "prompt_eval_count": choice.prompt_tokens,
        }

    model = resolve_name(body.model, server)
    if not any(body.input):
        return JSONResponse({"model": body.model or model, "embeddings": []})
    request = read_embedding(body.input, owner, truncates=body.truncate is not False)
    return respond_with_embeddings(server, model, request, make_reply, body.dimensions)


@routes.add("POST", "/api/embeddings", reply=OldEmbedReply)
async def embed_one(body: OldEmbedBody, server: ServerState, owner: str) -> Response:
    """Return the embedding of one text, in the format for older programs."""

    def make_reply(embeddings: Embeddings, _: AnswerState) -> Values:
        return {"embedding": to_floats(embeddings.vectors)}

    model = resolve_name(body.model, server)
    if not body.prompt:
        return JSONResponse({"embedding": []})
    return respond_with_embeddings(server, model, read_embedding(body.prompt, owner), make_reply)


def load_only(body: OllamaAnswerFields, server: ServerState, owner: str, reply_fields: ReplyFields) -> Response:
    """Load the model for a request without a prompt. With keep_alive 0 nothing happens: others may use the model."""
    model = resolve_name(body.model, server)
    reply = head(body.model or model) | reply_fields("", "", ()) | {"done": True}
    if body.keep_alive in ZERO_DURATIONS:  # the client no longer needs the model
        return JSONResponse(reply | {"done_reason": "unload"})
    request = ChatRequest(id=new_id(), owner=owner, is_counted=True)
    return LoadResponse(server, model, [request], ReplyEncoder(lambda _: reply | {"done_reason": "load"}))


class LoadResponse(AnswerResponse):
    """The response to a request without a prompt: its model is loaded, and nothing is submitted."""

    async def answer(self, writer: ResponseWriter) -> None:
        async with self.server.reserve(self.model, self.requests) as (call, _):
            await self.send_whole(call.choices, writer)


def respond_to(body: OllamaAnswerFields, server: ServerState, call: EngineCall, reply_fields: ReplyFields) -> Response:
    name = server.models.names.resolve(call.model)
    encoder = OllamaEncoder(body.model or name, reply_fields, has_thinking=body.think is not False)
    return respond(server, call, encoder, media_type=NDJSON)


def read_chat_body(
    body: OllamaAnswerFields, placed: PlacedMessages, tools: list[Values] | None, server: ServerState, owner: str
) -> EngineCall:
    names = PROMPT_FIELDS if isinstance(body, GenerateBody) else FIELDS
    chat = read_common_fields(body, find_listed_name(body.model, server.models)) | {
        "tools": tools,
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs if body.logprobs else None,
        **translate_thinking(body.think),
    }
    return read_translated_chat(chat, placed, names, server.defaults, owner)


def read_completion_body(body: GenerateBody, server: ServerState, owner: str) -> EngineCall:
    fields = FieldTranslation(FIELDS)
    values = read_common_fields(body, find_listed_name(body.model, server.models)) | {
        "prompt": body.prompt or "",
        "suffix": body.suffix,
        "logprobs": body.top_logprobs or 0 if body.logprobs else None,
    }
    with fields.translate_errors():
        call = read_completion(CompletionBody.model_validate(values), server.defaults, owner)
    return replace(call, fields=fields)


def read_common_fields(body: OllamaAnswerFields, model: str) -> Values:
    """Return the fields shared by chats and completions, in OpenAI's terms. Raises Problem for unsupported ones."""
    body.refuse_unsupported()
    options = body.options or Options()
    options.refuse_unsupported(path="options.")
    limit = body.max_tokens if options.num_predict is None else options.num_predict
    return {
        **options.sampling_fields(),
        "model": model,
        "stream": body.stream is not False,
        "max_tokens": -1 if limit is not None and limit <= 0 else limit,
        "response_format": translate_format(body.format),
    }


def translate_format(given: str | Values | None) -> Values | None:
    if isinstance(given, dict):
        return {"type": "json_schema", "json_schema": {"schema": given}}
    return {"type": "json_object"} if given else None


def translate_thinking(given: bool | str | None) -> Values:
    if given is None:
        return {}
    if isinstance(given, str):
        return {"reasoning_effort": given}
    return {"chat_template_kwargs": {"enable_thinking": True}} if given else {"thinking_budget": 0}


def refuse_unsupported(body: GenerateBody, *, is_continuation: bool) -> None:
    """Raise Problem for fields that would change the answer but are not supported."""
    refused = {"template": NO_TEMPLATE, "context": NO_CONTEXT}
    for name, why in (refused | ({"system": NO_SYSTEM, "images": NO_IMAGES} if is_continuation else {})).items():
        if getattr(body, name):
            raise unsupported(name, why)


def translate_tool(tool: OllamaTool) -> Values:
    return {"type": tool.type or "function", "function": tool.function.model_dump()}


def translate_messages(given: Iterable[OllamaMessage]) -> PlacedMessages:
    """Return chat messages with their places. Most programs send calls without ids and list results in the order of the
    calls, so each call gets an id here.
    """
    placed: PlacedMessages = []
    unanswered: list[Values] = []  # calls of the latest message with calls that still lack a result
    for i, message in enumerate(given):
        content = image_content(message.images, f"messages.{i}.images", message.content)
        calls = [
            {"id": call.id or f"call_{i}_{j}", "type": "function", "function": call.function.model_dump()}
            for j, call in enumerate(message.tool_calls or ())
        ]
        values: Values = {"role": message.role, "content": content, "reasoning_content": message.thinking}
        if calls:
            values["tool_calls"], unanswered = calls, list(calls)
        if message.role == "tool":
            values |= match_result(message, unanswered)
        placed.append((f"messages.{i}", values))
    return placed


def image_content(images: list[str] | None, place: str, text: str | None) -> Content:
    """Return images followed by the text, as Ollama's own server orders them."""
    files = [
        (decode_data_url if is_data_url(image) else decode_base64)(image, f"{place}.{i}")
        for i, image in enumerate(images or ())
    ]
    return join_pieces([*files, text or ""])


def match_result(message: OllamaMessage, unanswered: list[Values]) -> Values:
    """Return the ids of the call that a result answers: the first unanswered one that matches its id and name."""
    for call in unanswered:
        id, name = call["id"], call["function"]["name"]
        if (message.tool_call_id or id) == id and (message.tool_name or name) == name:
            unanswered.remove(call)
            return {"tool_call_id": id, "name": name}
    return {"tool_call_id": message.tool_call_id, "name": message.tool_name}
