"""POST /v1/embeddings, and /v1/rerank: scores of documents for a query, from a reranker.

Replies to /v1/rerank have the format of Jina and Cohere, or of text-embeddings-inference if the request has (`texts`).
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.responses import Response

from eaglelocal.core.events import Embeddings
from eaglelocal.core.request import EmbedRequest, Ranking
from eaglelocal.server.answer_response import respond_once
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.request_reader import check_size, new_id, select_texts, split_prompts
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.schema import (
    MAX_INPUTS,
    Body,
    Count,
    ErrorReply,
    Name,
    ReplyModel,
    Text,
    Tokens,
)
from eaglelocal.server.server_state import ServerState
from eaglelocal.server.unsupported_fields import EMBEDDING


class JinaDocument(Body):
    """A document in Jina's format."""

    text: Text


class RankingBody(Body):
    """POST /v1/rerank, with the fields of Jina and Cohere, or of text-embeddings-inference (`texts`)."""

    refused = EMBEDDING
    model: Name = ""
    query: Annotated[Text, Field(min_length=1)]
    documents: Annotated[list[Text | JinaDocument], Field(max_length=MAX_INPUTS)] | None = None
    texts: Annotated[list[Text], Field(max_length=MAX_INPUTS)] | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    truncate: Annotated[bool | None, Field(description="A document that does not fit loses its end.")] = None
    max_tokens_per_doc: Annotated[
        Count | None, Field(description="A document with more tokens loses its end (Cohere's); unset, none does.")
    ] = None
    truncation_direction: Literal["right", "Right"] | None = None  # text-embeddings-inference also allows left
    raw_scores: Annotated[bool | None, Field(description="The model's own scores, not probabilities.")] = None
    user: Any = None


class EmbeddingBody(Body):
    """POST /v1/embeddings"""

    refused = EMBEDDING
    model: Name = ""
    input: (
        Text
        | Annotated[list[Text], Field(max_length=MAX_INPUTS)]
        | Tokens
        | Annotated[list[Tokens], Field(max_length=MAX_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: Any = None


routes, rank_routes = RouteTable("OpenAI", ErrorReply), RouteTable("Rerank", ErrorReply)

MakeReply = Callable[[Embeddings, AnswerState], Mapping[str, object]]


class EmbeddingReply(ReplyModel):
    object: str
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, int]


@routes.add("POST", "/v1/embeddings", reply=EmbeddingReply)
async def embeddings(body: EmbeddingBody, server: ServerState, owner: str) -> Response:
    """Return an embedding of each text, a vector of length 1."""
    body.refuse_unsupported()
    name = server.models.names.resolve(body.model)
    encode = encode_base64 if body.encoding_format == "base64" else to_floats

    def make_reply(embeddings: Embeddings, _: AnswerState) -> Mapping[str, object]:
        vectors = enumerate(split_vectors(embeddings))
        data = [{"object": "embedding", "index": i, "embedding": encode(vector)} for i, vector in vectors]
        return {"object": "list", "data": data, "model": name, "usage": encode_usage(embeddings)}

    return respond_with_embeddings(server, name, read_embedding(body.input, owner), make_reply, body.dimensions)


def encode_usage(embeddings: Embeddings) -> dict[str, int]:
    return {"prompt_tokens": embeddings.prompt_tokens, "total_tokens": embeddings.prompt_tokens}


def respond_with_embeddings(
    server: ServerState, model: str, request: EmbedRequest, make_reply: MakeReply, dimensions: int | None = None
) -> Response:
    """Return the response with the embeddings; an error if the model makes none, or `dimensions` is not their size."""

    def reply(choice: AnswerState) -> Mapping[str, object]:
        found = choice.embeddings
        if found is None:
            raise Problem(400, f"{model} makes no embeddings", parameter="model")
        if dimensions not in (None, found.size):
            what = f"the vectors of {model} have {found.size} dimensions, not {dimensions}"
            raise Problem(400, what, parameter="dimensions")
        return make_reply(found, choice)

    return respond_once(server, model, request, reply)


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


def read_embedding(given: str | list[Any], owner: str, *, truncates: bool = False) -> EmbedRequest:
    inputs = split_prompts(given, "input")
    check_size(select_texts(inputs), "input")
    return EmbedRequest(id=new_id(), inputs=tuple(inputs), owner=owner, truncates=truncates)


def read_ranking(body: RankingBody, owner: str) -> EmbedRequest:
    """Return a request that scores each document together with the query. Raises Problem."""
    field = "documents" if body.texts is None or body.documents else "texts"
    if body.documents and body.texts:
        raise Problem(400, "documents and texts mean the same: send only one of them", parameter="texts")
    documents = [one if isinstance(one, str) else one.text for one in body.texts or body.documents or ()]
    if not documents:
        raise Problem(400, "there are no documents", parameter=field)
    check_size([*documents, *[body.query] * len(documents)], field)
    ranking = Ranking(
        query=body.query,
        truncates=bool(body.truncate),
        max_document_tokens=body.max_tokens_per_doc,
        is_raw=bool(body.raw_scores),
        parameter=field,
    )
    return EmbedRequest(id=new_id(), inputs=tuple(documents), ranking=ranking, owner=owner)


class RankedDocument(ReplyModel):
    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RankingReply(ReplyModel):
    object: str
    model: str
    results: list[RankedDocument]
    usage: dict[str, int]


class RankedText(ReplyModel):
    """A row in the format of text-embeddings-inference."""

    index: int
    score: float
    text: str | None = None


Reply = RankingReply | list[RankedText]


@rank_routes.add("POST", "/v1/rerank", reply=Reply)
@rank_routes.add("POST", "/v2/rerank")  # Cohere's current clients
@rank_routes.add("POST", "/rerank")
@rank_routes.add("POST", "/v1/reranking")
@rank_routes.add("POST", "/reranking")
async def rerank(body: RankingBody, server: ServerState, owner: str) -> Response:
    """Score how well each document answers the query, best first."""
    body.refuse_unsupported()
    name, request = server.models.names.resolve(body.model), read_ranking(body, owner)
    return respond_once(server, name, request, lambda choice: rank_documents(choice, body, name, request.inputs))


def rank_documents(choice: AnswerState, body: RankingBody, model: str, documents: tuple[object, ...]) -> object:
    """Return the reply, best document first; ties keep their order. Raises Problem if no reranker made it."""
    found = choice.embeddings
    if found is None:
        raise Problem(400, f"{model} is no reranker", parameter="model")
    ranked = sorted(enumerate(to_floats(found.vectors)), key=lambda row: -row[1])[: body.top_n]
    if body.texts:
        texts = body.texts if body.return_text else None
        return [{"index": i, "score": score, **({"text": texts[i]} if texts else {})} for i, score in ranked]
    shown = documents if body.return_documents else None
    results = [
        {"index": i, "relevance_score": score, **({"document": {"text": shown[i]}} if shown else {})}
        for i, score in ranked
    ]
    return {"object": "list", "model": model, "results": results, "usage": encode_usage(found)}
