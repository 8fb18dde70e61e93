"""A small gemma2 model with random weights: every other layer has a sliding window."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from .random_models import Matrices, finish, norm, write_shape, write_vocabulary

WIDTH, N_FF, N_VOCAB, N_LAYER = 64, 64, 300, 4
WINDOW = 48


def write_windowed(path: Path, seed: int = 0, n_ctx: int = 4096) -> Path:
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "gemma2")
    write_shape(writer, n_embd=WIDTH, n_layer=N_LAYER, n_ff=N_FF, heads=1, n_ctx=n_ctx)
    writer.add_sliding_window(WINDOW)
    writer.add_key_length(WIDTH)
    writer.add_value_length(WIDTH)
    write_vocabulary(writer, N_VOCAB)
    matrix = Matrices(writer, rng)
    matrix("token_embd.weight", N_VOCAB, WIDTH, scale=1.0)
    writer.add_tensor("output_norm.weight", norm(rng, WIDTH))
    for i in range(N_LAYER):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{i}.{name}.weight", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            matrix(f"blk.{i}.{name}.weight", WIDTH, WIDTH)
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", norm(rng, WIDTH))
    finish(writer)
    return path
