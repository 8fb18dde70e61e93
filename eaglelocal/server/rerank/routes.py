"""POST /v1/rerank: scores of documents for a query, from a reranker.

Replies have the format of Jina and Cohere, or of text-embeddings-inference if the request has that (`texts`).
"""

from __future__ import annotations

from starlette.responses import Response

from eaglelocal.server.answer_response import respond_once
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.openai.embedding_routes import to_floats
from eaglelocal.server.openai.embedding_schema import RankingBody
from eaglelocal.server.openai.reply_schema import ErrorReply, ReplyModel
from eaglelocal.server.openai.request_reader import read_ranking
from eaglelocal.server.openai.unsupported_fields import EMBEDDING, refuse
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.server_state import ServerState

routes = RouteTable("Rerank", ErrorReply)


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


@routes.post("/v1/rerank", RankingBody, reply=Reply)
@routes.post("/v2/rerank", RankingBody)  # Cohere's current clients
@routes.post("/rerank", RankingBody)
@routes.post("/v1/reranking", RankingBody)
@routes.post("/reranking", RankingBody)
async def rerank(body: RankingBody, server: ServerState, owner: str) -> Response:
    """Score how well each document answers the query, best first."""
    refuse(body, EMBEDDING)
    name, request = server.models.names.resolve(body.model), read_ranking(body, owner)
    return respond_once(server, name, request, lambda choice: rank_documents(choice, body, name, request.inputs))


def rank_documents(choice: AnswerState, body: RankingBody, model: str, documents: tuple[object, ...]) -> object:
    """Return the reply, the best first; equal scores keep their order. Raises Problem if the model is no reranker."""
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
    usage = {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens}
    return {"object": "list", "model": model, "results": results, "usage": usage}
