"""POST /v1/chat/completions, /v1/completions and GET /v1/models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from starlette.responses import Response

from eaglelocal.core.adapters import adapter_objects
from eaglelocal.core.model_task import ModelTask
from eaglelocal.server.answer_response import EVENT_STREAM, respond
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.openai.encoder import ChatEncoder, CompletionEncoder
from eaglelocal.server.request_reader import read_chat, read_completion
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.schema import ChatBody, CompletionBody, ErrorReply, ReplyModel
from eaglelocal.server.server_state import ServerState


class OpenAIReply(ReplyModel):
    id: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    speculation: dict[str, Any] | None = None


class ChatReply(OpenAIReply):
    object: Literal["chat.completion"]


class CompletionReply(OpenAIReply):
    object: Literal["text_completion"]


class ModelCard(ReplyModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "eaglelocal"
    loaded: bool = False  # and able to answer
    state: str = "unloaded"  # unloaded, loading, ready, restarting, failed
    max_model_len: int | None = None
    draft: str | None = None
    adapters: list[dict[str, Any]] = Field(
        default=[]
    )  # LoRA adapters: id, name, and the scale of requests that send no `lora`
    capabilities: list[str] = Field(default=[])


class ModelList(ReplyModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


routes = RouteTable("OpenAI", ErrorReply)


@routes.add("POST", "/v1/chat/completions", reply=ChatReply, stream=EVENT_STREAM)
async def chat_completions(body: ChatBody, server: ServerState, owner: str) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    call = read_chat(body, server.defaults, owner)
    name = server.models.names.resolve(call.model)
    custom_tools = {tool.custom.name for tool in body.tools or () if tool.custom}
    encoder = ChatEncoder(call, name, has_drafted_flags=bool(body.tell_drafted), custom_tools=custom_tools)
    return respond(server, call, encoder)


@routes.add("POST", "/v1/completions", reply=CompletionReply, stream=EVENT_STREAM)
async def completions(body: CompletionBody, server: ServerState, owner: str) -> Response:
    """Continue a text, without a chat template."""
    call = read_completion(body, server.defaults, owner)
    return respond(server, call, CompletionEncoder(call, server.models.names.resolve(call.model)))


@routes.add("HEAD", "/v1/models")
@routes.add("GET", "/v1/models/")  # otherwise it would match /v1/models/{name} with an empty name
@routes.add("GET", "/v1/models", reply=ModelList)
async def models(server: ServerState) -> ModelList:
    """List the available models, and which of them are loaded."""
    return ModelList(data=[model_card(server, name) for name in server.models.names.listed])


@routes.add("GET", "/v1/models/{name:path}", reply=ModelCard)
async def model(name: str, server: ServerState) -> ModelCard:
    return model_card(server, name if name in server.models.names.listed else server.models.names.resolve(name))


def model_card(server: ServerState, name: str) -> ModelCard:
    """Return the card of a model under one of its names. Raises Problem."""
    resolved = server.models.names.resolve(name)
    info, state = server.models.loaded_info(resolved), server.models.model_state(resolved)
    loaded = server.models.loaded_model(resolved)
    return ModelCard(
        id=name,
        created=int(server.started_at),
        loaded=state == "ready",
        state=state,
        max_model_len=None if info is None else info.n_ctx,
        draft=None if info is None else info.draft,
        adapters=adapter_objects(() if loaded is None else loaded.present_adapters),
        capabilities=list_capabilities(server.models, resolved, text=("completion",), vision="multimodal"),
    )


def list_capabilities(models: ModelManager, name: str, *, text: Sequence[str], vision: str) -> list[str]:
    """Return a model's capabilities in an API's terms; empty if not known.

    text    capabilities of every text model
    vision  capability of a model that reads images
    """
    task = models.task(name)
    if task is None:
        return []
    return [*text, *([vision] if models.sees_images(name) else [])] if task is ModelTask.TEXT else [task.value]
