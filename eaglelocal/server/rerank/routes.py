"""POST /v1/rerank: scores of documents for a query, from a reranker.

Replies have the format of Jina and Cohere, or of text-embeddings-inference if the request has that (`texts`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from eaglelocal.core.request import EmbedRequest
from eaglelocal.server.answer_encoder import dump_json
from eaglelocal.server.answer_response import AnswerResponse, JsonBody
from eaglelocal.server.dependencies import Owner, Server
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.openai.embedding_routes import to_floats
from eaglelocal.server.openai.embedding_schema import RankingBody
from eaglelocal.server.openai.request_reader import read_ranking
from eaglelocal.server.openai.unsupported_fields import refuse
from eaglelocal.server.routing import BodyRoute
from eaglelocal.server.server_state import ServerState

router = APIRouter(tags=["Rerank"], route_class=BodyRoute)


class RankedDocument(BaseModel):
    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RankingReply(BaseModel):
    object: str
    model: str
    results: list[RankedDocument]
    usage: dict[str, int]


class RankedText(BaseModel):
    """A row in the format of text-embeddings-inference."""

    index: int
    score: float
    text: str | None = None


Reply = RankingReply | list[RankedText]


@router.post("/v1/rerank", response_model=Reply)
@router.post("/v2/rerank", response_model=Reply, include_in_schema=False)  # Cohere's current clients
@router.post("/rerank", response_model=Reply, include_in_schema=False)
@router.post("/v1/reranking", response_model=Reply, include_in_schema=False)
@router.post("/reranking", response_model=Reply, include_in_schema=False)
async def rerank(body: RankingBody, server: Server, owner: Owner) -> Response:
    """Score how well each document answers the query, best first."""
    refuse(body)
    name = server.models.names.resolve(body.model)
    return AnswerResponse(JsonBody(rank_documents(server, name, read_ranking(body, owner), body)), server.limits)


def rank_documents(
    server: ServerState, model: str, request: EmbedRequest, body: RankingBody
) -> Callable[[], Awaitable[bytes]]:
    async def rank() -> bytes:
        async with server.submit(model, [request]) as call:
            (choice,) = await call.complete()
            found = choice.embeddings
            if found is None:
                raise Problem(400, f"{model} is no reranker", parameter="model")
            rows = sort_best_first(to_floats(found.vectors), body.top_n)
            usage = {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens}
            if body.texts:
                return dump_json([tei_row(*row, body.texts if body.return_text else None) for row in rows]).encode()
            documents = request.inputs if body.return_documents else None
            results = [jina_row(*row, documents) for row in rows]
            return dump_json({"object": "list", "model": model, "results": results, "usage": usage}).encode()

    return rank


def sort_best_first(scores: list[float], max_rows: int | None) -> list[tuple[int, float]]:
    """Return (index, score) by falling score, at most `max_rows`; equal scores keep their order."""
    return sorted(enumerate(scores), key=lambda row: -row[1])[:max_rows]


def jina_row(index: int, score: float, documents: tuple[object, ...] | None) -> dict[str, object]:
    text = {} if documents is None else {"document": {"text": documents[index]}}
    return {"index": index, "relevance_score": score, **text}


def tei_row(index: int, score: float, texts: list[str] | None) -> dict[str, object]:
    return {"index": index, "score": score, **({} if texts is None else {"text": texts[index]})}
