"""Embedding engines over the real llama.cpp, and a BERT in numpy to compare them with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eaglelocal.core.batch import Floats
from eaglelocal.core.events import Embeddings, Failed, RequestEvent
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import EmbedRequest
from eaglelocal.engine.embedding_engine import EmbeddingEngine
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.loading.embedding_builder import build

ROUNDING = 0.02  # the gelu of llama.cpp is a table in half precision


def plan(target: Path) -> Plan:
    return Plan(target=target, target_label=target.stem, n_ctx=64, threads=1, flash_attn="off", kv_type="f32")


def engine_of(target: Path) -> EmbeddingEngine:
    return build(plan(target), lambda progress: None)


def made_by(engine: EmbeddingEngine, request: EmbedRequest) -> Embeddings:
    """Run the engine until it has answered and return the vectors. Raises the error of a failed request."""
    engine.submit(request)
    events: list[RequestEvent] = []
    while engine.has_work:
        events += engine.step()
    for event in events:
        if isinstance(event, Failed):
            raise event.error
    (made,) = (event for event in events if isinstance(event, Embeddings))
    return made


def vectors_of(event: Embeddings) -> Floats:
    return np.frombuffer(event.vectors, np.float32).reshape(-1, event.size)


class NumpyBert:
    """A numpy model of the files of `write_bert`: two layers, one attention head of 64."""

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self.tensors = {name: read_tensor(header, name) for name in header.tensors}

    def states(self, tokens: tuple[int, ...]) -> Floats:
        """Return the last hidden states, [tokens, n_embd]."""
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
