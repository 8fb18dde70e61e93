"""Real GGUF files of embedding models with random weights: a BERT. For a llama that pools, see write_target."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from .random_models import HEAD_SIZE, Matrices, finish, norm

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = tuple(f"\u2581word{i}" for i in range(40))  # as converters write the beginnings of words
CLS, SEP = 2, 3


def write_bert(
    path: Path,
    *,
    pooling: int | None = 1,
    n_embd: int = 64,
    n_layer: int = 2,
    n_ctx: int = 64,
    seed: int = 0,
    classifies: bool = False,
) -> Path:
    """Write a BERT. pooling: llama_pooling_type, None: no such key. classifies: with the head of a reranker."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(2 * n_embd)
    writer.add_head_count(n_embd // HEAD_SIZE)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    write_words(writer)
    matrix = Matrices(writer, rng)
    matrix("token_embd.weight", len(SPECIAL) + len(WORDS), n_embd, scale=1.0)
    matrix("token_types.weight", 2, n_embd, scale=0.1)
    matrix("position_embd.weight", n_ctx, n_embd, scale=0.1)
    write_norm(writer, rng, "token_embd_norm", n_embd)
    for i in range(n_layer):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            write_linear(writer, matrix, f"blk.{i}.{name}", n_embd, n_embd)
        write_linear(writer, matrix, f"blk.{i}.ffn_up", 2 * n_embd, n_embd)
        write_linear(writer, matrix, f"blk.{i}.ffn_down", n_embd, 2 * n_embd)
        write_norm(writer, rng, f"blk.{i}.attn_output_norm", n_embd)
        write_norm(writer, rng, f"blk.{i}.layer_output_norm", n_embd)
    if classifies:
        write_linear(writer, matrix, "cls", n_embd, n_embd)
        write_linear(writer, matrix, "cls.output", 1, n_embd)
    finish(writer)
    return path


def write_words(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([*SPECIAL, *WORDS])
    writer.add_token_types([3, 3, 3, 3, 3, *[1] * len(WORDS)])
    writer.add_token_type_count(2)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(CLS)
    writer.add_eos_token_id(SEP)
    writer.add_sep_token_id(SEP)
    writer.add_pad_token_id(0)
    writer.add_mask_token_id(4)


def write_linear(writer: gguf.GGUFWriter, matrix: Matrices, name: str, rows: int, columns: int) -> None:
    matrix(f"{name}.weight", rows, columns)
    writer.add_tensor(f"{name}.bias", np.zeros(rows, np.float32))


def write_norm(writer: gguf.GGUFWriter, rng: np.random.Generator, name: str, width: int) -> None:
    writer.add_tensor(f"{name}.weight", norm(rng, width))
    writer.add_tensor(f"{name}.bias", np.zeros(width, np.float32))
