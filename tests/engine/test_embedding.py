"""Embedding models over the real llama.cpp: against a BERT in numpy, in batches, and in a process of their own."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from doubles.embedding_engines import ROUNDING, NumpyBert, engine_of, made_by, plan, vectors_of
from doubles.embedding_models import write_bert
from doubles.random_models import write_target
from doubles.real_engine import TINY, real_engine

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.batch import Floats
from eaglelocal.core.events import Embeddings, Failed, Finished, RequestEvent, Started
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.request import ChatRequest, EmbedRequest
from eaglelocal.engine.embedding_engine import EmbeddingEngine
from eaglelocal.errors import IncompatibleError, RequestError, UsageError
from eaglelocal.gguf.architectures import read_task
from eaglelocal.gguf.draft_pairing import read_model
from eaglelocal.gguf.reader import read_header
from eaglelocal.loading.embedding_builder import build, list_buffers

MEAN, CLS, LAST = 1, 2, 3
TEXTS = ((2, 5, 6, 7, 3), (2, 9, 3), (2, 11, 12, 13, 14, 15, 16, 17, 3), (8,))


def embedded(engine: EmbeddingEngine, *inputs: str | tuple[int, ...]) -> Floats:
    return vectors_of(made_by(engine, EmbedRequest(id="r", inputs=inputs)))


@pytest.mark.parametrize("pooling", [MEAN, CLS])
def test_a_bert_gives_the_vectors_of_its_arithmetic(tmp_path: Path, pooling: int) -> None:
    path = write_bert(tmp_path / "bert.gguf", pooling=pooling)
    model = NumpyBert(path)
    raw = [model.states(text).mean(axis=0) if pooling == MEAN else model.states(text)[0] for text in TEXTS]
    engine = engine_of(path)
    np.testing.assert_allclose(
        embedded(engine, *TEXTS), [vector / np.linalg.norm(vector) for vector in raw], atol=ROUNDING
    )
    engine.close()


def test_words_are_read_as_the_file_spells_them(tmp_path: Path) -> None:
    engine = engine_of(write_bert(tmp_path / "bert.gguf"))
    in_words, as_tokens = embedded(engine, "word0 word1 word2", (2, 5, 6, 7, 3))
    np.testing.assert_allclose(in_words, as_tokens, atol=1e-5)
    with pytest.raises(RequestError, match="an input of 66 tokens exceeds the context of 64"):
        embedded(engine, "word0 " * 64)
    engine.close()


@pytest.mark.parametrize("pooling", [MEAN, LAST])
def test_a_text_has_one_vector_whatever_it_is_batched_with(tmp_path: Path, pooling: int) -> None:
    engine = engine_of(write_target(tmp_path / "llama.gguf", TINY, pooling=pooling))
    alone = np.concatenate([embedded(engine, text) for text in TEXTS])
    together = embedded(engine, *TEXTS, *reversed(TEXTS), *TEXTS * 4)  # several passes
    np.testing.assert_allclose(together, np.concatenate([alone, alone[::-1], *[alone] * 4]), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, rtol=1e-6)
    assert np.abs(alone[0] - alone[1]).max() > 0.05
    assert engine.info.embedding_size == TINY.n_embd
    engine.close()


def test_poolings_differ_except_for_a_single_token(tmp_path: Path) -> None:
    engines = [engine_of(write_target(tmp_path / f"{n}.gguf", TINY, pooling=n)) for n in (MEAN, LAST)]
    (one_mean, long_mean), (one_last, long_last) = (embedded(engine, (8,), TEXTS[2]) for engine in engines)
    np.testing.assert_allclose(one_mean, one_last, atol=1e-6)
    assert np.abs(long_mean - long_last).max() > 0.05
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    ("pooling", "said"), [(None, "no pooling type"), (0, "no pooling type"), (4, "without a classifier")]
)
def test_what_makes_no_vectors_is_refused(tmp_path: Path, pooling: int | None, said: str) -> None:
    path = write_bert(tmp_path / "bert.gguf", pooling=pooling)
    assert read_task(read_header(path)) is not ModelTask.EMBEDDING
    with pytest.raises(IncompatibleError, match=said):
        engine_of(path)


def test_experts_that_it_has_not_stay_nowhere(tmp_path: Path) -> None:
    dense = plan(write_bert(tmp_path / "bert.gguf"))
    with pytest.raises(UsageError, match="--n-cpu-moe 1: this model has no experts"):
        build(replace(dense, n_cpu_moe=1), lambda progress: None)


def test_the_logits_that_a_decoder_computes_are_counted(tmp_path: Path) -> None:
    headers = [
        read_header(write_bert(tmp_path / "bert.gguf")),
        read_header(write_target(tmp_path / "l.gguf", TINY, pooling=LAST)),
    ]
    found = [list_buffers(read_model(header), plan(header.path), n_ctx=64)[-1].num_bytes for header in headers]
    assert found == [0, 64 * TINY.n_vocab * 4]


def test_a_chat_engine_makes_no_embeddings(tmp_path: Path) -> None:
    engine = real_engine(write_target(tmp_path / "llama.gguf", TINY))
    with pytest.raises(RequestError, match="is no embedding model"):
        engine.submit(EmbedRequest(id="r", inputs=("hi",)))
    engine.close()


def asked(client: EngineClient, request: EmbedRequest | ChatRequest) -> list[RequestEvent]:
    result: SimpleQueue[RequestEvent] = SimpleQueue()
    client.submit(request, result.put)
    events: list[RequestEvent] = []
    while not events or not isinstance(events[-1], (Finished, Failed)):
        events.append(result.get(timeout=60))
    return events


def test_in_a_process_of_its_own_that_is_replaced_when_it_dies(tmp_path: Path) -> None:
    path = write_bert(tmp_path / "bert.gguf")
    assert read_task(read_header(path)) is ModelTask.EMBEDDING
    with EngineClient(plan(path), builder="eaglelocal.loading.embedding_builder:build") as client:
        assert client.start().embedding_size == 64
        request = EmbedRequest(id="r", inputs=TEXTS)
        started, made, finished = asked(client, request)
        assert isinstance(started, Started) and isinstance(made, Embeddings) and isinstance(finished, Finished)
        (refused,) = asked(client, ChatRequest(id="chat", text="hi"))
        assert isinstance(refused, Failed) and isinstance(refused.error, RequestError)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        while isinstance((again := asked(client, request))[-1], Failed):
            pass
        assert isinstance(again[1], Embeddings) and again[1].vectors == made.vectors
        assert client.restarts == 1
