"""Ollama's POST /api/chat, /api/generate, /api/embed and /api/embeddings.

Requests are translated into chats and completions. `keep_alive` does not unload models: that is set when this server
is started.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from eaglelocal.core.events import Embeddings
from eaglelocal.core.request import ChatRequest
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.dependencies import ServerState
from eaglelocal.server.http_call import AnswerBody, HttpCall, JsonBody
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.ollama.encoder import NDJSON, OllamaEncoder, Shape, as_message, as_response, head, nanoseconds
from eaglelocal.server.ollama.model_routes import OLLAMA_ERRORS, model_of, name_of
from eaglelocal.server.ollama.schema import (
    EmbedBody,
    EmbedReply,
    GenerateBody,
    GenerateReply,
    OldEmbedBody,
    OldEmbedReply,
    OllamaAnswerFields,
    OllamaCall,
    OllamaChatBody,
    OllamaChatReply,
    OllamaMessage,
    OllamaTool,
    Options,
)
from eaglelocal.server.openai.content import Content, from_base64, from_url, is_data, joined
from eaglelocal.server.openai.embedding_routes import floats, vectors, vectors_of
from eaglelocal.server.openai.request_reader import (
    EngineCall,
    chat_question,
    completion_question,
    embed_request,
    new_id,
)
from eaglelocal.server.openai.routes import Owner, There
from eaglelocal.server.openai.schema import CompletionBody, SamplingGiven
from eaglelocal.server.openai.unsupported_fields import ONE_ANSWER, FieldNames, refuse, renamed, renamed_format
from eaglelocal.server.routing import JsonRoute
from eaglelocal.server.translation import Names, as_chat

router = APIRouter(tags=["Ollama"], route_class=JsonRoute, responses=OLLAMA_ERRORS)

FIELDS = {
    **{name: f"options.{name}" for name in SamplingGiven.model_fields},
    "max_tokens": "options.num_predict",
    "chat_template_kwargs": "think",
    "chat_template_kwargs.reasoning_effort": "think",
    "reasoning_effort": "think",
    "response_format": "format",
    "response_format.json_schema": "format",
    "response_format.json_schema.schema": "format",
}
WORDS = FieldNames(
    format="format",
    limit="options.num_predict",
    stops="options.stop",
    weights="options.logit_bias",
    foreign={
        **renamed("options.num_predict", "max_completion_tokens", "max_output_tokens", "n_predict"),
        **renamed("options.stop", "stop_sequences"),
        **renamed_format("format", "format"),
        "n": ONE_ANSWER,
    },
)
OUTSIDE = {**renamed("num_predict", "max_tokens"), "format": "format stands beside the options"}
IN_OPTIONS = replace(WORDS, foreign={**WORDS.foreign, **OUTSIDE})
PROMPT_FIELDS = FIELDS | {"messages": "prompt"}
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {NDJSON: {}}, "description": "lines of JSON, or one object"},
}
NO_IMAGES = "beside raw or a suffix no images can be read, for the template is what gives them a place"
NO_TEMPLATE = "this server uses the model's own chat template; raw: true goes on with the prompt as it stands"
NO_CONTEXT = "this server gives no context: /api/chat takes a whole conversation"
NO_SYSTEM = "beside raw or a suffix nothing but the prompt is said"
Values = dict[str, Any]
Placed = list[tuple[str, Values]]  # messages of a chat, with their places in the body


@router.post("/api/chat", response_model=OllamaChatReply, responses=STREAMED)
async def chat(body: OllamaChatBody, serving: There, owner: Owner) -> Response:
    """Answer a conversation in the shape of Ollama's chat."""
    if not body.messages:
        return unasked(body, serving, owner, as_message)
    tools = None if body.tools is None else [tool_of(tool) for tool in body.tools]
    question, names = chat_asked(body, placed_messages(body.messages), tools, serving, owner)
    return answered(body, serving, question, as_message, names)


@router.post("/api/generate", response_model=GenerateReply, responses=STREAMED)
async def generate(body: GenerateBody, serving: There, owner: Owner) -> Response:
    """Answer one question, or go on with a text (`raw`, `suffix`)."""
    goes_on = bool(body.raw or body.suffix)
    refuse_beside(body, goes_on=goes_on)
    if not (body.prompt or body.suffix or body.images):
        return unasked(body, serving, owner, as_response)
    if goes_on:
        question, names = completion_asked(body, serving, owner)
    else:
        system = [("system", {"role": "system", "content": body.system})] if body.system else []
        prompt = ("prompt", {"role": "user", "content": shown(body.images, "images", body.prompt)})
        question, names = chat_asked(body, [*system, prompt], None, serving, owner)
    return answered(body, serving, question, as_response, names)


@router.post("/api/embed", response_model=EmbedReply)
async def embed(body: EmbedBody, serving: There, owner: Owner) -> Response:
    """Make a vector of length 1 of each text."""

    def told(made: Embeddings, choice: AnswerState) -> Values:
        return {
            "model": body.model or model,
            "embeddings": [floats(vector) for vector in vectors_of(made)],
            "total_duration": nanoseconds(choice.ended_at - choice.asked_at),
            "prompt_eval_count": choice.prompt_tokens,
        }

    model = name_of(body.model, serving)
    if not any(body.input):
        return JSONResponse({"model": body.model or model, "embeddings": []})
    made = vectors(serving, model, embed_request(body.input, owner), told, body.dimensions)
    return HttpCall(JsonBody(made, Problem.ollama_body), serving.limits)


@router.post("/api/embeddings", response_model=OldEmbedReply)
async def embed_one(body: OldEmbedBody, serving: There, owner: Owner) -> Response:
    """Make a vector of length 1 of one text, in the shape that older programs know."""

    def told(made: Embeddings, _: AnswerState) -> Values:
        return {"embedding": floats(made.vectors)}

    model = name_of(body.model, serving)
    if not body.prompt:
        return JSONResponse({"embedding": []})
    made = vectors(serving, model, embed_request(body.prompt, owner), told)
    return HttpCall(JsonBody(made, Problem.ollama_body), serving.limits)


def unasked(body: OllamaAnswerFields, serving: ServerState, owner: str, shape: Shape) -> Response:
    """Load the model for a request without a prompt. With keep_alive 0 nothing happens: others may use the model."""
    model = name_of(body.model, serving)
    told = head(body.model or model) | shape("", "", ()) | {"done": True}
    if body.is_farewell:
        return JSONResponse(told | {"done_reason": "unload"})

    async def loaded() -> Values:
        async with serving.hold(model, [ChatRequest(id=new_id(), owner=owner, is_counted=True)]):
            return told | {"done_reason": "load"}

    return HttpCall(JsonBody(loaded, Problem.ollama_body), serving.limits)


def answered(
    body: OllamaAnswerFields, serving: ServerState, question: EngineCall, shape: Shape, names: Names
) -> Response:
    name = serving.models.name_of(question.model)
    teller = OllamaEncoder(body.model or name, shape, tells_thoughts=body.think is not False)
    return HttpCall(AnswerBody(serving, question, teller, names, stream_type=NDJSON), serving.limits)


def chat_asked(
    body: OllamaAnswerFields, placed: Placed, tools: list[Values] | None, serving: ServerState, owner: str
) -> tuple[EngineCall, Names]:
    """Return the body as a chat Question, with the Names to report errors in the body's own terms. Raises Problem."""
    fields = PROMPT_FIELDS if isinstance(body, GenerateBody) else FIELDS
    names = Names(fields, tuple(place for place, _ in placed))
    chat = asked_of(body, model_of(body.model, serving.models)) | {
        "messages": [message for _, message in placed],
        "tools": tools,
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs if body.logprobs else None,
        **thinking_of(body.think),
    }
    with names.told():
        return chat_question(as_chat(chat), serving.defaults, owner), names


def completion_asked(body: GenerateBody, serving: ServerState, owner: str) -> tuple[EngineCall, Names]:
    """Return the body as a text completion, likewise."""
    names = Names(FIELDS)
    values = asked_of(body, model_of(body.model, serving.models)) | {
        "prompt": body.prompt or "",
        "suffix": body.suffix,
        "logprobs": body.top_logprobs or 0 if body.logprobs else None,
    }
    with names.told():
        return completion_question(CompletionBody.model_validate(values), serving.defaults, owner), names


def asked_of(body: OllamaAnswerFields, model: str) -> Values:
    """Return the fields shared by chats and completions, in OpenAI's terms. Raises Problem for unsupported ones."""
    refuse(body, WORDS)
    options = body.options or Options()
    refuse(options, IN_OPTIONS, within="options.")
    return {
        **{name: getattr(options, name) for name in SamplingGiven.model_fields},
        "model": model,
        "stream": body.stream is not False,
        "max_tokens": limit_of(body.max_tokens if options.num_predict is None else options.num_predict),
        "response_format": format_of(body.format),
    }


def limit_of(num_predict: int | None) -> int | None:
    return None if num_predict is None else num_predict if num_predict > 0 else -1


def format_of(given: str | Values | None) -> Values | None:
    if isinstance(given, dict):
        return {"type": "json_schema", "json_schema": {"schema": given}}
    return {"type": "json_object"} if given else None


def thinking_of(given: bool | str | None) -> Values:
    if given is None:
        return {}
    effort = {"reasoning_effort": given} if isinstance(given, str) else {}
    return {**effort, "chat_template_kwargs": {"enable_thinking": bool(given)}}


def refuse_beside(body: GenerateBody, *, goes_on: bool) -> None:
    """Raise Problem for fields that would change the answer but are not supported."""
    refused = {"template": NO_TEMPLATE, "context": NO_CONTEXT}
    for name, why in (refused | ({"system": NO_SYSTEM, "images": NO_IMAGES} if goes_on else {})).items():
        if getattr(body, name):
            raise unsupported(name, why)


def tool_of(tool: OllamaTool) -> Values:
    return {"type": tool.type or "function", "function": tool.function.model_dump()}


def placed_messages(given: Iterable[OllamaMessage]) -> Placed:
    """Return chat messages with their places. Most programs give calls no ids and list results in the order of the
    calls: here each call gets an id.
    """
    placed: Placed = []
    waiting: list[Values] = []  # calls of the latest message with calls, still without a result
    for i, message in enumerate(given):
        content = shown(message.images, f"messages.{i}.images", message.content)
        calls = [call_of(call, f"call_{i}_{j}") for j, call in enumerate(message.tool_calls or ())]
        values: Values = {"role": message.role, "content": content, "reasoning_content": message.thinking}
        if calls:
            values["tool_calls"], waiting = calls, list(calls)
        if message.role == "tool":
            values |= result_of(message, waiting)
        placed.append((f"messages.{i}", values))
    return placed


def shown(images: list[str] | None, place: str, text: str | None) -> Content:
    """Return images followed by the text, as Ollama's own server orders them."""
    files = [
        (from_url if is_data(image) else from_base64)(image, f"{place}.{i}") for i, image in enumerate(images or ())
    ]
    return joined([*files, text or ""])


def call_of(call: OllamaCall, id: str) -> Values:
    return {"id": call.id or id, "type": "function", "function": call.function.model_dump()}


def result_of(message: OllamaMessage, waiting: list[Values]) -> Values:
    """Return the ids of the call that a result belongs to: the first unanswered one that matches its id and name."""
    for call in waiting:
        id, name = call["id"], call["function"]["name"]
        if (message.tool_call_id or id) == id and (message.tool_name or name) == name:
            waiting.remove(call)
            return {"tool_call_id": id, "name": name}
    return {"tool_call_id": message.tool_call_id, "name": message.tool_name}
