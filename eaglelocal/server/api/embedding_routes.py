"""POST /v1/embeddings: texts in, vectors out, where the model makes any."""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from eaglelocal.core.events import Embedded
from eaglelocal.core.request import EmbedRequest
from eaglelocal.server.api.exchange import Exchange, Wire
from eaglelocal.server.api.openai_routes import Owner, There
from eaglelocal.server.api.reading import new_id, prompts_of
from eaglelocal.server.api.schema import EmbeddingBody
from eaglelocal.server.api.tellers import compact
from eaglelocal.server.choice import Choice
from eaglelocal.server.errors import Problem
from eaglelocal.server.serving import Serving

router = APIRouter(tags=["OpenAI"])


class EmbeddingReply(BaseModel):
    object: str
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, int]


@router.post("/v1/embeddings", response_model=EmbeddingReply)
async def embeddings(body: EmbeddingBody, serving: There, owner: Owner) -> Response:
    """Make a vector of length 1 of each text."""
    request = EmbedRequest(id=new_id(), inputs=tuple(prompts_of(body.input, "input")), owner=owner)
    name = serving.models.name_of(body.model)
    return Exchange(Embedding(serving, name, request, body), serving.limits)


class Embedding:
    """Texts and their vectors. Implements Talk."""

    def __init__(self, serving: Serving, model: str, request: EmbedRequest, body: EmbeddingBody) -> None:
        self._serving, self._model, self._request, self._body = serving, model, request, body

    async def answer(self, wire: Wire) -> None:
        async with self._serving.ask(self._model, [self._request]) as call:
            (choice,) = await call.complete()
            made = embedded(choice, self._model, self._body.dimensions)
            await wire.json(200, await asyncio.to_thread(self._written, made))  # millions of numbers, it may be

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        return problem.body()

    def breaking(self, problem: Problem) -> str:
        return ""  # nothing is streamed

    def _written(self, made: Embedded) -> bytes:
        return compact(self._told(made)).encode()

    def _told(self, made: Embedded) -> Mapping[str, object]:
        as_text = self._body.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": encoded(vector) if as_text else floats(vector)}
            for i, vector in enumerate(vectors_of(made))
        ]
        usage = {"prompt_tokens": made.prompt_tokens, "total_tokens": made.prompt_tokens}
        return {"object": "list", "data": data, "model": self._model, "usage": usage}


def embedded(choice: Choice, model: str, dimensions: int | None) -> Embedded:
    """Raises Problem where the model makes none, or of another size than is wanted."""
    made = choice.embedded
    if made is None:
        raise Problem(400, f"{model} makes no embeddings", parameter="model")
    if dimensions not in (None, made.size):
        what = f"the vectors of {model} have {made.size} dimensions, not {dimensions}"
        raise Problem(400, what, parameter="dimensions")
    return made


def vectors_of(made: Embedded) -> list[bytes]:
    return [made.vectors[i : i + 4 * made.size] for i in range(0, len(made.vectors), 4 * made.size)]


def floats(vector: bytes) -> list[float]:
    return array("f", vector).tolist()


def encoded(vector: bytes) -> str:
    """Little-endian float32 in base64, which OpenAI's client asks for by itself."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
