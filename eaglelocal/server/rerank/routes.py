"""POST /v1/rerank: scores of documents for a query, from a reranker.

Replies have the format of Jina and Cohere, or of text-embeddings-inference if the request has that (`texts`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from eaglelocal.core.request import EmbedRequest
from eaglelocal.server.answer_encoder import compact
from eaglelocal.server.dependencies import ServerState
from eaglelocal.server.http_call import HttpCall, JsonBody
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.openai.embedding_routes import floats
from eaglelocal.server.openai.embedding_schema import RankingBody
from eaglelocal.server.openai.request_reader import ranking_request
from eaglelocal.server.openai.routes import Owner, There
from eaglelocal.server.openai.unsupported_fields import refuse
from eaglelocal.server.routing import BodyRoute

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
    """A row in the shape of text-embeddings-inference."""

    index: int
    score: float
    text: str | None = None


Reply = RankingReply | list[RankedText]


@router.post("/v1/rerank", response_model=Reply)
@router.post("/v2/rerank", response_model=Reply, include_in_schema=False)  # Cohere's current clients
@router.post("/rerank", response_model=Reply, include_in_schema=False)
@router.post("/v1/reranking", response_model=Reply, include_in_schema=False)
@router.post("/reranking", response_model=Reply, include_in_schema=False)
async def rerank(body: RankingBody, serving: There, owner: Owner) -> Response:
    """Say how well each document answers the query, the best first."""
    refuse(body)
    name = serving.models.name_of(body.model)
    return HttpCall(JsonBody(ranked(serving, name, ranking_request(body, owner), body)), serving.limits)


def ranked(
    serving: ServerState, model: str, request: EmbedRequest, body: RankingBody
) -> Callable[[], Awaitable[bytes]]:
    async def made() -> bytes:
        async with serving.ask(model, [request]) as call:
            (choice,) = await call.complete()
            found = choice.embedded
            if found is None:
                raise Problem(400, f"{model} ranks no documents", parameter="model")
            rows = best_first(floats(found.vectors), body.top_n)
            usage = {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens}
            if body.texts:
                return compact([row_of_tei(*row, body.texts if body.return_text else None) for row in rows]).encode()
            documents = request.inputs if body.return_documents else None
            results = [row_of_jina(*row, documents) for row in rows]
            return compact({"object": "list", "model": model, "results": results, "usage": usage}).encode()

    return made


def best_first(scores: list[float], most: int | None) -> list[tuple[int, float]]:
    """Return (index, score) by falling score, at most `most`; equal scores keep their order."""
    return sorted(enumerate(scores), key=lambda row: -row[1])[:most]


def row_of_jina(index: int, score: float, documents: tuple[object, ...] | None) -> dict[str, object]:
    text = {} if documents is None else {"document": {"text": documents[index]}}
    return {"index": index, "relevance_score": score, **text}


def row_of_tei(index: int, score: float, texts: list[str] | None) -> dict[str, object]:
    return {"index": index, "score": score, **({} if texts is None else {"text": texts[index]})}
