"""Rerankers over the real llama.cpp: scores equal a reference computation, pairs are formatted as in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from doubles.embedding_engines import ROUNDING, NumpyBert, engine_of, made_by, vectors_of
from doubles.embedding_models import CLS as BEGIN
from doubles.embedding_models import SEP, write_bert
from doubles.random_models import write_target
from doubles.real_engine import TINY

from eaglelocal.backend.embedding_context import EmbeddingContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.backend.vocabulary import LlamaVocabulary
from eaglelocal.core.batch import Floats
from eaglelocal.core.events import Failed, RequestEvent
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.request import ChatRequest, EmbedRequest, Ranking
from eaglelocal.engine.embedding_engine import EmbeddingEngine
from eaglelocal.errors import IncompatibleError, RequestError

RANK = 4
QUERY = "word0 word1"
DOCUMENTS = ("word2", "word3 word4 word5", "word0 word1", " ".join(f"word{i}" for i in range(40)))
WORDS = 5  # the first word's token


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_bert(tmp_path_factory.mktemp("rank") / "rank.gguf", pooling=RANK, classifies=True))


def scores(engine: EmbeddingEngine, *documents: str, **ranking: object) -> Floats:
    made = made_by(engine, EmbedRequest(id="r", inputs=documents, ranking=Ranking(**{"query": QUERY, **ranking})))
    assert made.size == 1
    return vectors_of(made)[:, 0]


def pair(query: str, document: str) -> tuple[int, ...]:
    q, d = ([WORDS + int(word.removeprefix("word")) for word in text.split()] for text in (query, document))
    return (BEGIN, *q, SEP, *d, SEP)


def expected(path: str, query: str, document: str) -> float:
    model = NumpyBert(Path(path))
    state = model.states(pair(query, document))[:1]
    return float(model.linear(np.tanh(model.linear(state, "cls")), "cls.output")[0, 0])


def test_scores_are_those_of_the_arithmetic(reranker: str) -> None:
    engine = engine_of(Path(reranker))
    wanted = np.array([expected(reranker, QUERY, document) for document in DOCUMENTS])
    assert wanted.max() - wanted.min() > 10 * ROUNDING
    np.testing.assert_allclose(scores(engine, *DOCUMENTS, is_raw=True), wanted, atol=ROUNDING)
    np.testing.assert_allclose(scores(engine, *DOCUMENTS), 1 / (1 + np.exp(-wanted)), atol=ROUNDING)
    together = scores(engine, *DOCUMENTS * 9, is_raw=True)  # several passes
    np.testing.assert_allclose(together, np.tile(wanted, 9), atol=ROUNDING)
    engine.close()


def test_what_does_not_fit_is_refused_or_loses_its_end(reranker: str) -> None:
    engine, long = engine_of(Path(reranker)), "word1 word2 " * 400
    with pytest.raises(RequestError, match="a query and a document of 805 tokens exceed the context of 64"):
        scores(engine, "word2", long)
    best, cut = scores(engine, "word2", long, truncates=True, is_raw=True)
    assert best == pytest.approx(expected(reranker, QUERY, "word2"), abs=ROUNDING)
    assert cut == pytest.approx(expected(reranker, QUERY, ("word1 word2 " * 30)[: 59 * 6]), abs=ROUNDING)
    with pytest.raises(RequestError, match="exceed the context"):
        scores(engine, "word2", query=long, truncates=True)
    engine.close()


def test_it_does_what_it_is_for_and_nothing_else(reranker: str, tmp_path: Path) -> None:
    ranks, embeds = engine_of(Path(reranker)), engine_of(write_bert(tmp_path / "bert.gguf"))
    assert (ranks.info.task, ranks.info.embedding_size, embeds.info.task) == (ModelTask.RANK, 0, ModelTask.EMBEDDING)
    plain = EmbedRequest(id="r", inputs=("word1",))
    for engine, request, said in (
        (ranks, plain, "ranks documents and nothing else"),
        (ranks, ChatRequest(id="r", text="word1"), "ranks documents and nothing else"),
        (embeds, EmbedRequest(id="r", inputs=("word1",), ranking=Ranking(query="word1")), "makes embeddings and"),
    ):
        with pytest.raises(RequestError, match=said):
            engine.submit(request)
    ranks.close()
    embeds.close()


def test_a_score_that_is_not_a_number_fails_the_request(reranker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddingContext, "embed", lambda self, texts: np.full((len(texts), 1), np.nan, np.float32))
    engine = engine_of(Path(reranker))
    engine.submit(EmbedRequest(id="r", inputs=("word1",), ranking=Ranking(query=QUERY)))
    events: list[RequestEvent] = []
    while engine.has_work:
        events += engine.step()
    assert isinstance(events[-1], Failed)
    engine.close()


def test_tokenizers_that_frame_nothing_frame_no_pair(tmp_path: Path) -> None:
    model = LlamaModel(load_library(), write_target(tmp_path / "llama.gguf", TINY), Placement(repack=False))
    assert model.vocabulary.pair_frame == ([], [], [])
    model.close()


class Fickle(LlamaVocabulary):
    """Reads a text otherwise where it frames it."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [1, 2, 3] if add_special else [4]


def test_a_tokenizer_whose_frame_changes_the_text_is_refused(tmp_path: Path) -> None:
    model = LlamaModel(load_library(), write_target(tmp_path / "llama.gguf", TINY), Placement(repack=False))
    with pytest.raises(IncompatibleError, match="reads a text differently") as caught:
        _ = Fickle(load_library(), model.vocabulary.handle, None).pair_frame
    assert "tokenizer.chat_template.rerank" in caught.value.hint
    model.close()
