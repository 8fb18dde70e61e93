"""Reply models for the OpenAPI document; the replies themselves are plain dicts, for speed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class ReplyModel(BaseModel):
    """The base of reply models. Each is built on its first use, because a server starts faster without them."""

    model_config = ConfigDict(defer_build=True)


class ErrorDetail(ReplyModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(ReplyModel):
    error: ErrorDetail


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
    adapters: list[dict[str, Any]] = []  # LoRA adapters: id, name, and the scale of requests that send no `lora`
    capabilities: list[str] = []


class ModelList(ReplyModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(ReplyModel):
    status: str
    model: str | None = None
    detail: str = ""


class CancelReply(ReplyModel):
    id: str
    cancelled: bool = True


class SwitchReply(ReplyModel):
    spec: str
