"""The MTP layers of MiMo-V2 in plain numpy, without a cache: every row is computed again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor

EPS, ROPE_BASE = 1e-5, 1e4


def norm(rows: np.ndarray, gains: np.ndarray) -> np.ndarray:
    return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + EPS) * gains


def turn(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return rows [n, heads, dim] rotated by their positions, the halves of a head paired (NEOX)."""
    half = rows.shape[-1] // 2
    angles = positions[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    one, two = rows[..., :half], rows[..., half:]
    return np.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)


class PlainMimo:
    """The layers of a file; `first` is the number of the first one."""

    def __init__(self, path: Path, first: int) -> None:
        self._path, self._header, self._first = path, read_header(path), first

    def _read(self, name: str) -> np.ndarray:
        return read_tensor(self._header, f"{name}.weight")

    def _key(self, name: str) -> int:
        return int(self._header.metadata[f"mimo2.{name}"])  # type: ignore[call-overload]

    def run(self, layer: int, tokens: list[int], states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the states [n, width] after a text's rows from position 0 on, and the logits [n, vocab]."""
        block = f"blk.{self._first + layer}."
        embedded = self._read("token_embd")[tokens]
        joined = [norm(embedded, self._read(f"{block}nextn.enorm")), norm(states, self._read(f"{block}nextn.hnorm"))]
        rows = np.concatenate(joined, axis=1) @ self._read(f"{block}nextn.eh_proj").T
        rows = rows + self._attend(block, norm(rows, self._read(f"{block}attn_norm")))
        inner = norm(rows, self._read(f"{block}ffn_norm"))
        gate, up = (inner @ self._read(f"{block}ffn_{name}").T for name in ("gate", "up"))
        rows = rows + (gate / (1 + np.exp(-gate)) * up) @ self._read(f"{block}ffn_down").T
        return rows, norm(rows, self._read("output_norm")) @ self._read("output").T

    def _attend(self, block: str, rows: np.ndarray) -> np.ndarray:
        dim, value_dim = self._key("attention.key_length"), self._key("attention.value_length")
        sinks, window = self._read(f"{block}attn_sinks"), self._key("attention.sliding_window")
        n, num_heads = len(rows), len(sinks)
        qkv = rows @ self._read(f"{block}attn_qkv").T
        num_kv = (qkv.shape[1] - num_heads * dim) // (dim + value_dim)
        queries, keys, values = np.split(qkv, [num_heads * dim, (num_heads + num_kv) * dim], axis=1)
        positions = np.arange(n)
        queries = turn(queries.reshape(n, num_heads, dim), positions)
        keys = turn(keys.reshape(n, num_kv, dim), positions).repeat(num_heads // num_kv, axis=1)
        values = values.reshape(n, num_kv, value_dim).repeat(num_heads // num_kv, axis=1)
        scores = np.einsum("qhd,khd->hqk", queries, keys) * dim**-0.5
        distance = positions[:, None] - positions
        scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (num_heads, n, 1))], axis=2)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares[..., :-1], values)
        return mixed.reshape(n, -1) @ self._read(f"{block}attn_output").T
