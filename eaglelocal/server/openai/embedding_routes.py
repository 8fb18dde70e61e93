"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

from eaglelocal.core.events import Embeddings
from eaglelocal.core.request import EmbedRequest
from eaglelocal.server.answer_response import respond_once
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.openai.embedding_schema import EmbeddingBody
from eaglelocal.server.openai.reply_schema import ErrorReply, ReplyModel
from eaglelocal.server.openai.request_reader import read_embedding
from eaglelocal.server.openai.unsupported_fields import EMBEDDING, refuse
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.server_state import ServerState

routes = RouteTable("OpenAI", ErrorReply)

MakeReply = Callable[[Embeddings, AnswerState], Mapping[str, object]]


class EmbeddingReply(ReplyModel):
    object: str
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, int]


@routes.post("/v1/embeddings", EmbeddingBody, reply=EmbeddingReply)
async def embeddings(body: EmbeddingBody, server: ServerState, owner: str) -> Response:
    """Return an embedding of each text, a vector of length 1."""
    refuse(body, EMBEDDING)
    name = server.models.names.resolve(body.model)
    make_reply = partial(openai_reply, model=name, as_base64=body.encoding_format == "base64")
    return respond_with_embeddings(server, name, read_embedding(body.input, owner), make_reply, body.dimensions)


def respond_with_embeddings(
    server: ServerState,
    model: str,
    request: EmbedRequest,
    make_reply: MakeReply,
    dimensions: int | None = None,
    encode_problem: Callable[[Problem], Mapping[str, object]] = Problem.openai_body,
) -> Response:
    def reply(choice: AnswerState) -> Mapping[str, object]:
        return make_reply(find_embeddings(choice, model, dimensions), choice)

    return respond_once(server, model, request, reply, encode_problem)


def openai_reply(embeddings: Embeddings, _: AnswerState, *, model: str, as_base64: bool) -> Mapping[str, object]:
    data = [
        {"object": "embedding", "index": i, "embedding": encode_base64(vector) if as_base64 else to_floats(vector)}
        for i, vector in enumerate(split_vectors(embeddings))
    ]
    usage = {"prompt_tokens": embeddings.prompt_tokens, "total_tokens": embeddings.prompt_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def find_embeddings(choice: AnswerState, model: str, dimensions: int | None) -> Embeddings:
    """Return the embeddings. Raises Problem if the model makes none, or `dimensions` is not their size."""
    found = choice.embeddings
    if found is None:
        raise Problem(400, f"{model} makes no embeddings", parameter="model")
    if dimensions not in (None, found.size):
        what = f"the vectors of {model} have {found.size} dimensions, not {dimensions}"
        raise Problem(400, what, parameter="dimensions")
    return found


def split_vectors(embeddings: Embeddings) -> list[bytes]:
    num_bytes = 4 * embeddings.size
    return [embeddings.vectors[i : i + num_bytes] for i in range(0, len(embeddings.vectors), num_bytes)]


def to_floats(vector: bytes) -> list[float]:
    return array("f", vector).tolist()


def encode_base64(vector: bytes) -> str:
    """Return little-endian float32 as base64, which OpenAI's client requests by default."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
