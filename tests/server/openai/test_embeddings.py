"""POST /v1/embeddings, through OpenAI's client: scripted vectors, and a real embedding model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openai
import pytest
from doubles.embedding_models import write_bert
from doubles.running_server import Server, Setup, served

from eaglelocal.cli.load_model import EMBEDDER
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.run_options import RunOptions
from eaglelocal.preparation.decision import resolve


def test_a_vector_of_each_text_in_their_order(actor: Server) -> None:
    """The client asks for base64 by itself, and gives floats."""
    made = actor.openai().embeddings.create(model="actor", input=["four", "sixsix"])
    assert [(one.index, one.embedding) for one in made.data] == [(0, [4.0, 0.5]), (1, [6.0, 0.5])]
    assert (made.model, made.usage.prompt_tokens, made.usage.total_tokens) == ("actor", 10, 10)


@pytest.mark.parametrize("given", ["four", ["four"], [1, 2, 3, 4], [[1, 2, 3, 4]]])
def test_every_form_of_input(actor: Server, given: object) -> None:
    answer = actor.http.post("/v1/embeddings", json={"input": given, "encoding_format": "float"})
    assert answer.json()["data"] == [{"object": "embedding", "index": 0, "embedding": [4.0, 0.5]}]


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"input": []}, "input"),
        ({"input": "refuse"}, "input"),
        ({"input": "x", "dimensions": 3}, "dimensions"),
        ({"input": [[-1]]}, "input"),
        ({"input": "x", "encoding_format": "poem"}, "encoding_format"),
        ({}, "input"),
    ],
)
def test_what_is_refused_names_the_parameter(actor: Server, body: dict[str, object], parameter: str) -> None:
    answer = actor.http.post("/v1/embeddings", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].partition(".")[0] == parameter


def test_a_model_that_talks_makes_none(typist: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="no embedding model"):
        typist.openai().embeddings.create(model="typist", input="x")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real BERT with random weights."""
    path = write_bert(tmp_path_factory.mktemp("bert") / "bert.gguf")
    plan = resolve(RunOptions(target=str(path)), on_progress=lambda fraction, what: None)
    assert plan.task is ModelTask.EMBEDDING
    with served(Setup(plans={"bert": plan}, builder=EMBEDDER)) as server:
        yield server


def test_a_real_embedding_model(encoder: Server) -> None:
    made = encoder.openai().embeddings.create(model="bert", input=["word1 word2", "word3", "word1 word2"])
    vectors = np.array([one.embedding for one in made.data])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert np.allclose(vectors[0], vectors[2], atol=1e-5)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-2)
    assert made.usage.prompt_tokens > 6


@pytest.mark.parametrize(
    ("path", "body", "is_cut"),
    [
        ("/api/embed", {}, True),  # Ollama's default
        ("/api/embed", {"truncate": None}, True),
        ("/api/embed", {"truncate": True}, True),
        ("/api/embed", {"truncate": False}, False),
        ("/api/embeddings", {}, False),
        ("/v1/embeddings", {}, False),
    ],
)
def test_texts_that_are_too_long_are_cut_on_request(
    encoder: Server, path: str, body: dict[str, object], is_cut: bool
) -> None:
    field = "prompt" if path == "/api/embeddings" else "input"
    reply = encoder.http.post(path, json={"model": "bert", field: "word1 " * 70, **body})
    if not is_cut:
        assert reply.status_code == 400 and "an input of 72 tokens exceeds the context of 64" in reply.text
        return
    fits = encoder.http.post(path, json={"model": "bert", field: "word1 " * 62}).json()
    assert (reply.status_code, reply.json()["prompt_eval_count"]) == (200, 64)
    assert np.allclose(reply.json()["embeddings"], fits["embeddings"], atol=1e-5)


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
def test_an_embedding_model_is_loaded_like_others_and_says_what_it_does(encoder: Server, path: str) -> None:
    reply = encoder.http.post(path, json={"model": "bert"})
    assert (reply.status_code, reply.json()["done_reason"]) == (200, "load")
    assert encoder.http.post("/api/show", json={"model": "bert"}).json()["capabilities"] == ["embedding"]


def test_an_embedding_model_does_not_talk(encoder: Server) -> None:
    answer = encoder.ask("hello")
    assert answer.status_code == 400
    assert "embedding" in answer.json()["error"]["message"]
