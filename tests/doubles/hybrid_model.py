"""A small lfm2 model with random weights: short convolutions, whose state cannot be cut, and one attention layer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from .random_models import HEAD_SIZE, Matrices, finish, norm, write_shape, write_vocabulary

WIDTH, N_FF, N_VOCAB, KERNEL = 64, 64, 300, 3
KV_HEADS = (0, 1, 0)  # a layer without is a convolution


def write_hybrid(path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "lfm2")
    write_shape(writer, n_embd=WIDTH, n_layer=len(KV_HEADS), n_ff=N_FF, heads=list(KV_HEADS), n_ctx=2048)
    writer.add_shortconv_l_cache(KERNEL)
    write_vocabulary(writer, N_VOCAB)
    matrix = Matrices(writer, rng)
    matrix("token_embd.weight", N_VOCAB, WIDTH, scale=1.0)
    matrix("output.weight", N_VOCAB, WIDTH)
    writer.add_tensor("token_embd_norm.weight", norm(rng, WIDTH))
    for i, kv_heads in enumerate(KV_HEADS):
        prefix = f"blk.{i}."
        if kv_heads:
            attention(writer, matrix, rng, prefix)
        else:
            convolution(matrix, prefix)
        writer.add_tensor(f"{prefix}attn_norm.weight", norm(rng, WIDTH))
        writer.add_tensor(f"{prefix}ffn_norm.weight", norm(rng, WIDTH))
        matrix(f"{prefix}ffn_gate.weight", N_FF, WIDTH)
        matrix(f"{prefix}ffn_up.weight", N_FF, WIDTH)
        matrix(f"{prefix}ffn_down.weight", WIDTH, N_FF)
    finish(writer)
    return path


def attention(writer: gguf.GGUFWriter, matrix: Matrices, rng: np.random.Generator, prefix: str) -> None:
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        matrix(f"{prefix}{name}.weight", WIDTH, WIDTH)
    for name in ("attn_q_norm", "attn_k_norm"):
        writer.add_tensor(f"{prefix}{name}.weight", norm(rng, HEAD_SIZE))


def convolution(matrix: Matrices, prefix: str) -> None:
    matrix(f"{prefix}shortconv.conv.weight", WIDTH, KERNEL)
    matrix(f"{prefix}shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
    matrix(f"{prefix}shortconv.out_proj.weight", WIDTH, WIDTH)
