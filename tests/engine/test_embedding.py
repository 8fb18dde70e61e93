"""Embedding models over the real llama.cpp: against a BERT in numpy, in batches, and in a process of their own."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from doubles.embedding_models import write_bert
from doubles.random_models import write_target
from doubles.real_engine import TINY, real_engine

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.batch import Floats
from eaglelocal.core.events import Embedded, Failed, Finished, RequestEvent, Started
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, EmbedRequest
from eaglelocal.embedder import build, needs
from eaglelocal.engine.embedding import EmbeddingEngine
from eaglelocal.errors import IncompatibleError, RequestError, UsageError
from eaglelocal.gguf.pair import read_model
from eaglelocal.gguf.pooling import is_embedding_model
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor

MEAN, CLS, LAST = 1, 2, 3
TEXTS = ((2, 5, 6, 7, 3), (2, 9, 3), (2, 11, 12, 13, 14, 15, 16, 17, 3), (8,))
ROUNDING = 0.02  # the gelu of llama.cpp is a table in half precision


def plan(target: Path) -> Plan:
    return Plan(target=target, target_label=target.stem, n_ctx=64, threads=1, flash_attention="off", kv_type="f32")


def engine_of(target: Path) -> EmbeddingEngine:
    return build(plan(target), lambda progress: None)


def embedded(engine: EmbeddingEngine, *inputs: str | tuple[int, ...]) -> Floats:
    engine.submit(EmbedRequest(id="r", inputs=inputs))
    events: list[RequestEvent] = []
    while engine.has_work:
        events += engine.step()
    (made,) = (event for event in events if isinstance(event, Embedded))
    return vectors_of(made)


def vectors_of(event: Embedded) -> Floats:
    return np.frombuffer(event.vectors, np.float32).reshape(-1, event.size)


class NumpyBert:
    """What write_bert writes, computed plainly: one head of 64."""

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self.tensors = {name: read_tensor(path, header, name) for name in header.tensors}

    def states(self, tokens: tuple[int, ...]) -> Floats:
        """[tokens, n_embd]"""
        w, n = self.tensors, len(tokens)
        embeddings = w["token_embd.weight"][list(tokens)] + w["token_types.weight"][0] + w["position_embd.weight"][:n]
        x = self.norm(embeddings, "token_embd_norm")
        for i in range(2):
            q, k, v = (self.linear(x, f"blk.{i}.attn_{name}") for name in "qkv")
            scores = np.exp(q @ k.T / np.sqrt(q.shape[1]))
            attended = scores / scores.sum(axis=1, keepdims=True) @ v
            x = self.norm(x + self.linear(attended, f"blk.{i}.attn_output"), f"blk.{i}.attn_output_norm")
            up = self.linear(x, f"blk.{i}.ffn_up")
            gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
            x = self.norm(x + self.linear(gelu, f"blk.{i}.ffn_down"), f"blk.{i}.layer_output_norm")
        return np.asarray(x, np.float32)

    def linear(self, x: Floats, name: str) -> Floats:
        return np.asarray(x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"], np.float32)

    def norm(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return np.asarray(scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"], np.float32)


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
        engine.submit(EmbedRequest(id="long", inputs=("word0 " * 64,)))
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


@pytest.mark.parametrize(("pooling", "said"), [(None, "does not say how"), (0, "does not say how"), (4, "ranks pairs")])
def test_what_makes_no_vectors_is_refused(tmp_path: Path, pooling: int | None, said: str) -> None:
    path = write_bert(tmp_path / "bert.gguf", pooling=pooling)
    assert not is_embedding_model(read_header(path))
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
    found = [needs(header, read_model(header), plan(header.path), n_ctx=64)[-1].num_bytes for header in headers]
    assert found == [0, 64 * TINY.n_vocab * 4]


def test_a_chat_engine_makes_no_embeddings(tmp_path: Path) -> None:
    engine = real_engine(write_target(tmp_path / "llama.gguf", TINY))
    with pytest.raises(RequestError, match="is no embedding model"):
        engine.submit(EmbedRequest(id="r", inputs=("hi",)))
    engine.close()


def asked(client: EngineClient, request: EmbedRequest | ChatRequest) -> list[RequestEvent]:
    told: SimpleQueue[RequestEvent] = SimpleQueue()
    client.submit(request, told.put)
    events: list[RequestEvent] = []
    while not events or not isinstance(events[-1], (Finished, Failed)):
        events.append(told.get(timeout=60))
    return events


def test_in_a_process_of_its_own_that_is_replaced_when_it_dies(tmp_path: Path) -> None:
    path = write_bert(tmp_path / "bert.gguf")
    assert is_embedding_model(read_header(path))
    with EngineClient(plan(path), builder="eaglelocal.embedder:build") as client:
        assert client.start().embedding_size == 64
        request = EmbedRequest(id="r", inputs=TEXTS)
        started, made, finished = asked(client, request)
        assert isinstance(started, Started) and isinstance(made, Embedded) and isinstance(finished, Finished)
        (refused,) = asked(client, ChatRequest(id="chat", text="hi"))
        assert isinstance(refused, Failed) and isinstance(refused.error, RequestError)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        while isinstance((again := asked(client, request))[-1], Failed):
            pass
        assert isinstance(again[1], Embedded) and again[1].vectors == made.vectors
        assert client.restarts == 1
