"""Small GGUFs for a loopback hub: a target, a draft head that fits it, and parts of a split model."""

from __future__ import annotations

import numpy as np
from doubles.gguf_bytes import STRING, U16, U32, GgufBytes

WIDTH = 64


def model_bytes(
    *, name: str = "tiny", context: int = 512, rows: int = 64, split: tuple[int, int] | None = None
) -> bytes:
    """Return a llama file with one tensor of rows x WIDTH floats; `split` is (number from 0, count)."""
    built = GgufBytes().put("general.architecture", STRING, "llama").put("general.name", STRING, name)
    counts = {"block_count": 2, "context_length": context, "embedding_length": WIDTH, "feed_forward_length": WIDTH}
    for key, value in {**counts, "attention.head_count": 1}.items():
        built.put(f"llama.{key}", U32, value)
    built.array("tokenizer.ggml.tokens", STRING, [f"t{number}" for number in range(rows)])
    if split is not None:
        built.put("split.no", U16, split[0]).put("split.count", U16, split[1])
    tensor = "token_embd.weight" if split is None or split[0] == 0 else f"blk.{split[0]}.attn_norm.weight"
    weights = np.random.default_rng(rows).normal(size=(rows, WIDTH)).astype(np.float32)
    return built.tensor(tensor, weights).build()
