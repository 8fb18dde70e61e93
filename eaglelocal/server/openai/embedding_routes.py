"""POST /v1/embeddings: vectors of texts, from an embedding model."""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from eaglelocal.core.events import Embeddings
from eaglelocal.core.request import EmbedRequest
from eaglelocal.server.answer_encoder import compact
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.dependencies import ServerState
from eaglelocal.server.http_call import HttpCall, JsonBody
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.openai.embedding_schema import EmbeddingBody
from eaglelocal.server.openai.request_reader import embed_request
from eaglelocal.server.openai.routes import Owner, There
from eaglelocal.server.openai.unsupported_fields import refuse
from eaglelocal.server.routing import BodyRoute

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute)

Told = Callable[[Embeddings, AnswerState], Mapping[str, object]]


class EmbeddingReply(BaseModel):
    object: str
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, int]


@router.post("/v1/embeddings", response_model=EmbeddingReply)
async def embeddings(body: EmbeddingBody, serving: There, owner: Owner) -> Response:
    """Make a vector of length 1 of each text."""
    refuse(body)
    name = serving.models.name_of(body.model)
    told = partial(as_list, model=name, as_text=body.encoding_format == "base64")
    made = vectors(serving, name, embed_request(body.input, owner), told, body.dimensions)
    return HttpCall(JsonBody(made), serving.limits)


def vectors(
    serving: ServerState, model: str, request: EmbedRequest, told: Told, dimensions: int | None = None
) -> Callable[[], Awaitable[bytes]]:
    """Return a coroutine function that requests the vectors and returns the reply as JSON bytes; `told` builds it."""

    async def made() -> bytes:
        async with serving.ask(model, [request]) as call:
            (choice,) = await call.complete()
            found = embedded(choice, model, dimensions)
            return await asyncio.to_thread(lambda: compact(told(found, choice)).encode())  # millions of numbers

    return made


def as_list(made: Embeddings, _: AnswerState, *, model: str, as_text: bool) -> Mapping[str, object]:
    data = [
        {"object": "embedding", "index": i, "embedding": encoded(vector) if as_text else floats(vector)}
        for i, vector in enumerate(vectors_of(made))
    ]
    usage = {"prompt_tokens": made.prompt_tokens, "total_tokens": made.prompt_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def embedded(choice: AnswerState, model: str, dimensions: int | None) -> Embeddings:
    """Return the vectors. Raises Problem if the model makes none, or `dimensions` is not their size."""
    made = choice.embedded
    if made is None:
        raise Problem(400, f"{model} makes no embeddings", parameter="model")
    if dimensions not in (None, made.size):
        what = f"the vectors of {model} have {made.size} dimensions, not {dimensions}"
        raise Problem(400, what, parameter="dimensions")
    return made


def vectors_of(made: Embeddings) -> list[bytes]:
    return [made.vectors[i : i + 4 * made.size] for i in range(0, len(made.vectors), 4 * made.size)]


def floats(vector: bytes) -> list[float]:
    return array("f", vector).tolist()


def encoded(vector: bytes) -> str:
    """Return little-endian float32 as base64, which OpenAI's client requests by default."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
