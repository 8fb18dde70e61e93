"""Ollama's routes about models and the version. Models cannot be pulled, created or removed over HTTP. Sizes, numbers
of parameters and quantizations are read from the headers of the files, once for each version of a file.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from eaglelocal import __version__
from eaglelocal.core.events import EngineInfo
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.ggml_types import parse_quant, read_quantization
from eaglelocal.gguf.reader import read_header
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
    file = find_model_file(server.models, name)
    return ShowReply(
        template=TEMPLATE if "tools" in capabilities else "",
        details=model_details(name, info, file),
        model_info=model_info(name, info, file),
        capabilities=capabilities,
        modified_at=format_start_time(server),
    )


@routes.add("GET", "/api/ps", reply=PsReply)
async def ps(server: ServerState) -> PsReply:
    """List the models that are loaded and ready."""
    ready = [model for model in server.models.loaded if model.client.state == "ready"]
    cards = [(model.info, card_fields(server.models, model.name, model.name)) for model in ready]
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
    info, file = server.models.loaded_info(name), find_model_file(server.models, name)
    return OllamaCard(
        **card_fields(server.models, listed, name),
        modified_at=format_start_time(server),
        size=file.size_bytes if file else info.model_bytes if info else 0,
        capabilities=model_capabilities(server.models, name),
    )


def card_fields(models: ModelManager, listed: str, name: str) -> dict[str, Any]:
    """Return the fields of both cards. The name has a tag, because Open WebUI looks for tagged names in the list.
    Programs identify models by the digest, or show its first characters: it is the SHA-256 of the name.
    """
    tag, digest = listed if ":" in listed else listed + LATEST, hashlib.sha256(name.encode()).hexdigest()
    details = model_details(name, models.loaded_info(name), find_model_file(models, name))
    return {"name": tag, "model": tag, "digest": digest, "details": details}


def model_details(name: str, info: EngineInfo | None, file: ModelFile | None) -> Details:
    family = info.architecture if info is not None else file.architecture if file is not None else ""
    return Details(
        family=family,
        families=[family] if family else [],
        parameter_size=format_parameters(file.num_parameters) if file is not None else "",
        quantization_level=parse_quant(name) or (file.quantization if file is not None else ""),
    )


def model_capabilities(models: ModelManager, name: str) -> list[str]:
    """Return a model's capabilities in Ollama's terms, its chat template's included; empty if unknown."""
    features = models.template_features(name)
    words = (("completion", True), ("tools", features.takes_tools), ("thinking", features.thinks))
    return list_capabilities(models, name, text=[word for word, has in words if has], vision="vision")


def model_info(name: str, info: EngineInfo | None, file: ModelFile | None) -> dict[str, Any]:
    architecture = model_details(name, info, file).family or UNKNOWN
    fields: dict[str, Any] = {"general.architecture": architecture, "general.basename": name}
    if file is not None:
        fields["general.parameter_count"] = file.num_parameters
    if info is not None:
        fields[f"{architecture}.context_length"] = info.n_ctx
    if info is not None and info.embedding_size:
        fields[f"{architecture}.embedding_length"] = info.embedding_size
    return fields


def format_start_time(server: ServerState) -> str:
    return timestamp(datetime.fromtimestamp(server.started_at, UTC))


# ---- the header of a model's file
NAMED_KEYS = ("general.architecture", "general.file_type")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The figures in the header of a model's file, over all its parts."""

    architecture: str
    quantization: str
    num_parameters: int
    size_bytes: int


def find_model_file(models: ModelManager, name: str) -> ModelFile | None:
    """Return the file of a model, loaded or not; None if it is not known, or cannot be read."""
    plan = models.plan(name)
    try:
        return None if plan is None else _read_model_file(plan.target, plan.target.stat().st_mtime_ns)
    except (OSError, EagleLocalError):
        return None


@lru_cache(maxsize=256)
def _read_model_file(path: Path, modified_ns: int) -> ModelFile:
    header = read_header(path, keys=NAMED_KEYS)
    return ModelFile(
        header.architecture,
        read_quantization(header),
        sum(tensor.num_elements for tensor in header.tensors.values()),
        sum(shard.path.stat().st_size for shard in header.shards),
    )


def format_parameters(count: int) -> str:
    """Return a number of parameters as Ollama writes it.

    >>> format_parameters(8_190_735_360), format_parameters(134_515_008)
    ('8.2B', '134.52M')
    """
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"
