"""Small models with random weights of the architectures of autumn 2026: qwen4exp and glm5-next.

Tensors are those that src/models of the pinned llama.cpp creates; it refuses a file that lacks one or has another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from .random_models import finish, write_vocabulary
from .runnable_models import N_VOCAB, weights
from .weightless_models import DELTA_NET, EXPERTS_BEHIND_DENSE, HYPER, LATENT, TINY, Sketch, Tensor, write_keys
from .weightless_models import _attention as attention
from .weightless_models import _delta_net as delta_net
from .weightless_models import _experts as experts
from .weightless_models import _experts_behind_dense as experts_behind_dense
from .weightless_models import _indexer as indexer
from .weightless_models import _latent_attention as latent_attention
from .weightless_models import _mixing as mixing
from .weightless_models import _shared_expert as shared_expert

LOW_RANK, NUM_GRAM_HEADS = 16, 4
GRAM_ROWS = [101, 103, 107, 109]  # of each head's part of the table
NUM_INDEXER_HEADS = 32  # as published: four of random weights give one pool in sixteen a score of exactly 0, a tie
INDEXER = {
    "attention.indexer.head_count": NUM_INDEXER_HEADS,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 32,
}
MIXTURE = replace(TINY, n_vocab=N_VOCAB, n_ctx=2048, n_expert=8, n_expert_used=2, n_ff_exp=128)
SEASON = {
    "qwen4exp": replace(
        MIXTURE,
        arch="qwen4exp",
        keys=DELTA_NET
        | INDEXER
        | {
            "expert_shared_feed_forward_length": 128,
            "hyper_connection.count": HYPER,
            "hyper_connection.low_rank": LOW_RANK,
            "attention.compress_ratios": [0, 0, 0, 4],
            "embedding_length_per_layer_input": TINY.n_embd // NUM_GRAM_HEADS,
            "ple.layers": [1],
            "ple.ngram_size": 3,
            "ple.heads_per_ngram": 2,
            "ple.conv_kernel": 4,
            "ple.eos_token_id": N_VOCAB - 1,
        },
    ),
    "glm5-next": replace(
        MIXTURE,
        arch="glm5-next",
        kv_heads=(0, 0, 0, 1),
        head_dim=128,
        keys=EXPERTS_BEHIND_DENSE
        | LATENT
        | INDEXER
        | {
            "rope.dimension_count": 0,
            "kda.head_dim": 64,
            "kda.gate_lower_bound": -5.0,
            "ssm.conv_kernel": 4,
            "attention.indexer.kpool": 4,
            "hyper_connection.count": HYPER,
            "hyper_connection.sinkhorn_iterations": 4,
            "hyper_connection.epsilon": 1e-6,
        },
    ),
}


def write_season(path: Path, name: str, seed: int = 0) -> Path:
    """Write a model of the architecture `name`."""
    sketch = SEASON[name]
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), sketch.arch)
    write_keys(writer, sketch)
    if name == "qwen4exp":
        offsets = [sum(GRAM_ROWS[:head]) for head in range(NUM_GRAM_HEADS)]
        ranges = {"layer_multipliers": [1, 31, 961], "head_offsets": offsets, "head_vocab_sizes": GRAM_ROWS}
        for key, values in ranges.items():
            kind = gguf.GGUFValueType.UINT64
            writer.add_key_value(f"qwen4exp.ple.{key}", values, gguf.GGUFValueType.ARRAY, sub_type=kind)
    write_vocabulary(writer, N_VOCAB)
    for tensor, shape in TENSORS[name](sketch):
        writer.add_tensor(tensor, weights(rng, tensor, shape[::-1], sketch))
    finish(writer)
    return path


def _qwen4exp(s: Sketch) -> Iterator[Tensor]:
    wide = HYPER * s.n_embd
    yield "token_embd.weight", (s.n_embd, s.n_vocab)
    yield "output.weight", (s.n_embd, s.n_vocab)
    yield "per_layer_token_embd.weight", (s.n_embd // NUM_GRAM_HEADS, sum(GRAM_ROWS))
    yield from _gated("output_hc", s)
    for layer in range(s.n_layer):
        parts = [*_gated("hc_attn", s), ("hc_attn_inject.weight", (wide, HYPER))]
        parts += [*_gated("hc_ffn", s), ("hc_ffn_inject.weight", (wide, HYPER))]
        parts += [*(delta_net(s) if (layer + 1) % 4 else _indexed_attention(s, layer))]
        if layer == 1:
            parts += [("ple_key.weight", (s.n_embd, wide)), ("ple_value.weight", (s.n_embd, s.n_embd))]
            parts += [(f"ple_norm_{part}.weight", (s.n_embd, HYPER)) for part in ("key", "query", "conv")]
            parts += [("ple_conv1d.weight", (4, wide))]
        parts += [*experts(s, layer), ("ffn_gate_inp_shexp.weight", (s.n_embd,)), *shared_expert(s, s.n_ff_exp)]
        yield from ((f"blk.{layer}.{tensor}", shape) for tensor, shape in parts)


def _gated(name: str, s: Sketch) -> Iterator[Tensor]:
    """What mixes the parallel states of a token into one."""
    yield f"{name}_norm.weight", (s.n_embd, HYPER)
    yield f"{name}_down.weight", (HYPER * s.n_embd, LOW_RANK)
    yield f"{name}_up.weight", (LOW_RANK, HYPER * s.n_embd)


def _indexed_attention(s: Sketch, layer: int) -> Iterator[Tensor]:
    heads, dim = s.number("attention.indexer.head_count"), s.number("attention.indexer.key_length")
    yield from attention(s, layer)
    yield "indexer.q_proj.weight", (s.n_embd, heads * dim)
    yield "indexer.k_proj.weight", (s.n_embd, dim)
    yield "indexer.q_norm.weight", (dim,)
    yield "indexer.k_norm.weight", (dim,)


def _glm5_next(s: Sketch) -> Iterator[Tensor]:
    dim, index_dim = s.number("kda.head_dim"), s.number("attention.indexer.key_length")
    inner = s.n_head * dim
    yield "token_embd.weight", (s.n_embd, s.n_vocab)
    yield "output.weight", (s.n_embd, s.n_vocab)
    yield "output_norm.weight", (s.n_embd,)
    for layer in range(s.n_layer):
        parts: list[Tensor] = [("attn_norm.weight", (s.n_embd,))]
        for part in ("hc_attn", "hc_ffn"):
            parts += mixing(part, s, num_mixes=(2 + HYPER) * HYPER, num_scales=3)
        if s.kv_heads_of(layer):
            parts += [*latent_attention(s, layer), *indexer(s, layer)]
            parts += [("indexer_compressor_gate.weight", (s.n_embd, index_dim))]
            parts += [("indexer_compressor_ape.weight", (index_dim, s.number("attention.indexer.kpool")))]
        else:
            for one in "qkv":
                parts += [(f"ssm_conv1d_{one}.weight", (4, 1, inner, 1)), (f"attn_{one}.weight", (s.n_embd, inner))]
            for one in "fg":
                parts += [(f"ssm_{one}_a.weight", (s.n_embd, dim)), (f"ssm_{one}_b.weight", (dim, inner))]
            parts += [("ssm_beta.weight", (s.n_embd, s.n_head)), ("ssm_a", (s.n_head,)), ("ssm_dt.bias", (inner,))]
            parts += [("ssm_norm.weight", (dim,)), ("attn_output.weight", (inner, s.n_embd))]
        parts += experts_behind_dense(s, layer)
        yield from ((f"blk.{layer}.{tensor}", shape) for tensor, shape in parts)


TENSORS: dict[str, Callable[[Sketch], Iterator[Tensor]]] = {"qwen4exp": _qwen4exp, "glm5-next": _glm5_next}
