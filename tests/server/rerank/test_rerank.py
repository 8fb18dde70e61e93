"""POST /v1/rerank: the formats of Jina and of text-embeddings-inference, over a real reranker with random weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from doubles.embedding_models import write_bert
from doubles.running_server import Server, Setup, served

from eaglelocal.cli.load_model import EMBEDDER
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.run_options import RunOptions
from eaglelocal.preparation.decision import resolve

ASKED = {"query": "word0", "documents": ["word1", "word2 word3", "word4", "word1"]}


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = write_bert(tmp_path_factory.mktemp("rank") / "rank.gguf", pooling=4, classifies=True)
    plan = resolve(RunOptions(target=str(path)), on_progress=lambda fraction, what: None)
    assert plan.task is ModelTask.RANK
    with served(Setup(plans={"rank": plan}, builder=EMBEDDER)) as server:
        yield server


def rerank(server: Server, path: str = "/v1/rerank", **body: object) -> object:
    answer = server.http.post(path, json={"model": "rank", **ASKED, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"])
def test_the_best_come_first(ranker: Server, path: str) -> None:
    said = rerank(ranker, path)
    assert isinstance(said, dict)
    scores = {row["index"]: row["relevance_score"] for row in said["results"]}
    assert [row["index"] for row in said["results"]] == sorted(range(4), key=lambda i: (-scores[i], i))
    assert scores[0] == pytest.approx(scores[3], abs=1e-6) and scores[0] != pytest.approx(scores[1], abs=1e-3)
    assert all(0 <= score <= 1 for score in scores.values())
    assert (said["object"], said["model"], set(said["results"][0])) == ("list", "rank", {"index", "relevance_score"})
    assert said["usage"] == {"prompt_tokens": 21, "total_tokens": 21}


def test_as_many_as_were_asked_for_with_their_texts(ranker: Server) -> None:
    whole, some = rerank(ranker), rerank(ranker, top_n=2, return_documents=True)
    assert isinstance(whole, dict) and isinstance(some, dict)
    assert [row["index"] for row in some["results"]] == [row["index"] for row in whole["results"]][:2]
    assert [row["document"]["text"] for row in some["results"]] == [
        ASKED["documents"][row["index"]] for row in some["results"]
    ]
    unsaid = dict.fromkeys(
        ("texts", "top_n", "return_documents", "return_text", "truncate", "truncation_direction", "raw_scores")
    )
    assert rerank(ranker, **unsaid) == rerank(ranker, texts=[], return_text=True) == whole
    objects = rerank(ranker, documents=[{"text": text} for text in ASKED["documents"]])
    assert objects == whole


def test_in_the_shape_of_text_embeddings_inference(ranker: Server) -> None:
    whole = rerank(ranker)
    assert isinstance(whole, dict)
    rows = rerank(ranker, "/rerank", documents=None, texts=ASKED["documents"], return_text=True)
    assert isinstance(rows, list)
    assert [(row["index"], row["score"]) for row in rows] == [
        (row["index"], row["relevance_score"]) for row in whole["results"]
    ]
    assert [row["text"] for row in rows] == [ASKED["documents"][row["index"]] for row in rows]
    raw = rerank(ranker, "/rerank", documents=[], texts=ASKED["documents"], raw_scores=True)
    assert isinstance(raw, list)
    assert [row["index"] for row in raw] == [row["index"] for row in rows]
    assert set(raw[0]) == {"index", "score"} and raw[0]["score"] != rows[0]["score"]


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"documents": []}, "documents"),
        ({"documents": None}, "documents"),
        ({"documents": [], "texts": []}, "texts"),
        ({"texts": ["word1"]}, "texts"),
        ({"texts": [{"text": "word1"}]}, "texts"),
        ({"truncation_direction": "Left"}, "truncation_direction"),
        ({"query": ""}, "query"),
        ({"query": 7}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"documents": ["word1 " * 90]}, "documents"),
        ({"documents": None, "texts": ["word1 " * 90]}, "texts"),
        ({"documents": ["word1 " * 90], "max_tokens_per_doc": 80}, "documents"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"query": "x" * 2**21, "documents": ["word1"] * 3}, "documents"),
    ],
)
def test_what_is_refused_names_the_parameter(ranker: Server, body: dict[str, object], parameter: str) -> None:
    answer = ranker.http.post("/v1/rerank", json={"model": "rank", **ASKED, **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].partition(".")[0] == parameter


def test_a_long_document_may_lose_its_end(ranker: Server) -> None:
    said = rerank(ranker, documents=["word1 " * 90], truncate=True)
    assert isinstance(said, dict)
    assert said["usage"]["prompt_tokens"] == 64


def test_a_document_may_be_limited_in_tokens(ranker: Server) -> None:
    """As Cohere's clients say it."""
    limited = rerank(ranker, "/v2/rerank", documents=["word1 word2 word3 word4", "word2"], max_tokens_per_doc=2)
    assert limited == rerank(ranker, "/v2/rerank", documents=["word1 word2", "word2"])
    assert rerank(ranker, "/v2/rerank", max_tokens_per_doc=None) == rerank(ranker, "/v2/rerank")
    fields = ranker.http.get("/openapi.json").json()["components"]["schemas"]["RankingBody"]["properties"]
    assert "loses its end" in fields["max_tokens_per_doc"]["description"]


def test_it_ranks_and_does_nothing_else(ranker: Server, typist: Server) -> None:
    for path, body in (
        ("/v1/embeddings", {"input": "word1"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ):
        answer = ranker.http.post(path, json=body)
        assert answer.status_code == 400 and "ranks documents and nothing else" in answer.json()["error"]["message"]
    answer = typist.http.post("/v1/rerank", json=ASKED)
    assert answer.status_code == 400 and "is no reranker" in answer.json()["error"]["message"]
    assert ranker.http.get("/v1/models").json()["data"][0]["capabilities"] == ["rerank"]
    assert ranker.http.post("/api/show", json={"model": "rank"}).json()["capabilities"] == ["rerank"]
    assert ranker.http.get("/v1/snapshot").json()["model"]["task"] == "rerank"


def test_each_text_keeps_its_own_score(actor: Server) -> None:
    body = {"model": "actor", "query": "q", "texts": ["four", "seven77", "a"], "return_text": True}
    rows = actor.http.post("/rerank", json=body).json()
    assert rows == [
        {"index": 1, "score": 7.0, "text": "seven77"},
        {"index": 0, "score": 4.0, "text": "four"},
        {"index": 2, "score": 1.0, "text": "a"},
    ]
