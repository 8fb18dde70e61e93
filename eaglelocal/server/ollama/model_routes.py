"""Ollama's routes about models and the version. Models cannot be pulled, created or removed over HTTP, and no
files are read: what only a file states (the number of parameters; the family of a model that is not loaded) stays
empty.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from eaglelocal import __version__
from eaglelocal.core.events import EngineInfo
from eaglelocal.gguf.ggml_types import parse_quant
from eaglelocal.server.chat_page import asks_for_page, make_page_response
from eaglelocal.server.http_errors import PERMISSION, Problem
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.ollama.encoder import timestamp
from eaglelocal.server.openai.routes import list_capabilities
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.schema import (
    Body,
    Name,
    ReplyModel,
)
from eaglelocal.server.server_state import ServerState


class ShowBody(Body):
    """POST /api/show"""

    model: Name = ""
    name: Name = ""  # older clients' name for it


class OllamaError(ReplyModel):
    error: str


class VersionReply(ReplyModel):
    version: str
    eaglelocal: str


class Details(ReplyModel):
    """Details of a model; unknown ones are empty."""

    parent_model: str = ""
    format: str = "gguf"
    family: str = ""
    families: list[str] = Field(default=[])
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaCard(ReplyModel):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: list[str]


class TagsReply(ReplyModel):
    models: list[OllamaCard]


class Running(ReplyModel):
    name: str
    model: str
    size: int
    digest: str
    details: Details
    context_length: int


class PsReply(ReplyModel):
    models: list[Running]


class ShowReply(ReplyModel):
    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


API_VERSION = "0.14.2"  # of Ollama: some programs refuse older ones
LATEST = ":latest"
TEMPLATE = "the model's own: system, messages, tools"  # LiteLLM looks for the word tools in it
UNKNOWN = "unknown"  # the architecture, which is part of other keys


routes = RouteTable("Ollama", OllamaError)


@routes.add("HEAD", "/")
@routes.add("GET", "/", reply=str)
async def root(request: Request) -> Response:
    """Return the text by which programs recognize Ollama's API; browsers get the chat page."""
    response = make_page_response() if asks_for_page(request.scope) else PlainTextResponse("Ollama is running")
    response.headers["Vary"] = "Accept"
    return response


@routes.add("HEAD", "/api/version")
@routes.add("GET", "/api/version", reply=VersionReply)
async def version() -> VersionReply:
    """Return the version of Ollama's API, and ours."""
    return VersionReply(version=API_VERSION, eaglelocal=__version__)


@routes.add("HEAD", "/api/tags")
@routes.add("GET", "/api/tags", reply=TagsReply)
async def tags(server: ServerState) -> TagsReply:
    """List the available models."""
    return TagsReply(models=[model_card(server, name) for name in server.models.names.listed])


@routes.add("POST", "/api/show", reply=ShowReply)
async def show(body: ShowBody, server: ServerState) -> ShowReply:
    """Describe one model."""
    name = resolve_name(body.model or body.name, server)
    info, capabilities = server.models.loaded_info(name), model_capabilities(server.models, name)
    return ShowReply(
        template=TEMPLATE if "tools" in capabilities else "",
        details=model_details(name, info),
        model_info=model_info(name, info),
        capabilities=capabilities,
        modified_at=format_start_time(server),
    )


@routes.add("GET", "/api/ps", reply=PsReply)
async def ps(server: ServerState) -> PsReply:
    """List the models that are loaded and ready."""
    ready = [model for model in server.models.loaded if model.client.state == "ready"]
    cards = [(model.info, card_fields(model.name, model.name, model.info)) for model in ready]
    running = [Running(**card, size=info.total_bytes, context_length=info.n_ctx) for info, card in cards]
    return PsReply(models=running)


@routes.add("POST", "/api/pull")
@routes.add("POST", "/api/push")
@routes.add("POST", "/api/create")
@routes.add("POST", "/api/copy")
@routes.add("DELETE", "/api/delete")
@routes.add("HEAD", "/api/blobs/{digest}")
@routes.add("POST", "/api/blobs/{digest}")
async def no_change() -> Response:
    what = "models are managed on the server's machine, with `eaglelocal pull` and `eaglelocal rm`"
    raise Problem(403, what, PERMISSION)


def find_listed_name(requested: str, models: ModelManager) -> str:
    """Return the listed name that a request means: programs may add the tag `latest` or leave it out."""
    bare = requested.removesuffix(LATEST)
    return next((name for name in (requested, bare + LATEST) if name in models.names.listed), bare)


def resolve_name(requested: str, server: ServerState) -> str:
    return server.models.names.resolve(find_listed_name(requested, server.models))


def model_card(server: ServerState, listed: str) -> OllamaCard:
    name = server.models.names.resolve(listed)
    info = server.models.loaded_info(name)
    return OllamaCard(
        **card_fields(listed, name, info),
        modified_at=format_start_time(server),
        size=info.model_bytes if info else 0,
        capabilities=model_capabilities(server.models, name),
    )


def card_fields(listed: str, name: str, info: EngineInfo | None) -> dict[str, Any]:
    """Return the fields of both cards. The name has a tag, because Open WebUI looks for tagged names in the list.
    Programs identify models by the digest, or show its first characters: it is the SHA-256 of the name.
    """
    tag, digest = listed if ":" in listed else listed + LATEST, hashlib.sha256(name.encode()).hexdigest()
    return {"name": tag, "model": tag, "digest": digest, "details": model_details(name, info)}


def model_details(name: str, info: EngineInfo | None) -> Details:
    family = info.architecture if info is not None else ""
    return Details(family=family, families=[family] if family else [], quantization_level=parse_quant(name))


def model_capabilities(models: ModelManager, name: str) -> list[str]:
    """Return a model's capabilities in Ollama's terms, its chat template's included; empty if unknown."""
    features = models.template_features(name)
    words = (("completion", True), ("tools", features.takes_tools), ("thinking", features.thinks))
    return list_capabilities(models, name, text=[word for word, has in words if has], vision="vision")


def model_info(name: str, info: EngineInfo | None) -> dict[str, Any]:
    architecture = (info.architecture if info is not None else "") or UNKNOWN
    fields: dict[str, Any] = {"general.architecture": architecture, "general.basename": name}
    if info is not None:
        fields[f"{architecture}.context_length"] = info.n_ctx
    if info is not None and info.embedding_size:
        fields[f"{architecture}.embedding_length"] = info.embedding_size
    return fields


def format_start_time(server: ServerState) -> str:
    return timestamp(datetime.fromtimestamp(server.started_at, UTC))
