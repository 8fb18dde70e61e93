"""Real GGUF files of heads that draft a block at a time, with random weights, and their logits by numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from doubles.random_models import HEAD_SIZE, Matrices, TargetShape, finish, norm, write_shape, write_vocabulary

from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    taps: tuple[int, ...] = (1, 3)
    n_layer: int = 2
    n_ff: int = 192
    block_size: int | None = 8
    window: int | None = None
    draft_vocab: int | None = None
    own_output: bool = False
    markov_rank: int | None = None  # of a DSpark head
    sample_from_anchor: bool = True
    is_causal: bool = False
    sections: bool = False  # as for a target whose positions have several parts (M-RoPE)
    candidates: int | None = None  # of a DFlash2 head
    mask: int | None = 260
    id_type: type = np.int64  # of d2t
    base_type: type = np.float32  # of DFlash2's convolutions
    seed: int = 1


def write_block_head(path: Path, shape: BlockShape | None = None, target: TargetShape | None = None) -> Path:
    s, t = shape or BlockShape(), target or TargetShape()
    writer, rng, width = gguf.GGUFWriter(str(path), "dflash"), np.random.default_rng(s.seed), t.n_embd
    heads = width // HEAD_SIZE
    write_shape(writer, n_embd=width, n_layer=s.n_layer, n_ff=s.n_ff, heads=heads, n_ctx=t.n_ctx)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    write_vocabulary(writer, t.n_vocab)
    if s.mask is not None:
        writer.add_mask_token_id(s.mask)
    writer.add_array("dflash.target_layers", list(s.taps))
    if s.block_size is not None:
        writer.add_uint32("dflash.block_size", s.block_size)
    writer.add_bool("dflash.sample_from_anchor", s.sample_from_anchor)
    writer.add_bool("dflash.attention.causal", s.is_causal)
    if s.sections:
        writer.add_rope_dimension_sections([HEAD_SIZE // 2, 0, 0, 0])
    if s.window is not None:
        writer.add_uint32("dflash.attention.sliding_window", s.window)
        writer.add_array("dflash.attention.sliding_window_pattern", [True] * s.n_layer)
    matrix = Matrices(writer, rng)
    matrix("fc.weight", width, len(s.taps) * width)
    writer.add_tensor("enc.output_norm.weight", norm(rng, width))
    writer.add_tensor("output_norm.weight", norm(rng, width))
    if s.own_output:
        matrix("output.weight", s.draft_vocab or t.n_vocab, width)
    if s.draft_vocab is not None:
        ids = np.sort(rng.choice(t.n_vocab, s.draft_vocab, replace=False))
        writer.add_tensor("d2t", ids.astype(s.id_type))
    if s.markov_rank is not None:
        matrix("markov_w1.weight", t.n_vocab, s.markov_rank, scale=1.0)
        matrix("markov_w2.weight", s.draft_vocab or t.n_vocab, s.markov_rank)
    if s.candidates is not None:
        write_lattice(writer, matrix, rng, s, t)
    for i in range(s.n_layer):
        write_layer(writer, matrix, rng, prefix=f"blk.{i}.", width=width, n_ff=s.n_ff)
    finish(writer)
    return path


RANK, KERNEL, GROUP = 8, 3, 16


def write_lattice(
    writer: gguf.GGUFWriter, matrix: Matrices, rng: np.random.Generator, shape: BlockShape, target: TargetShape
) -> None:
    sizes = {
        "selector_top_k": shape.candidates,
        "selector_rank": RANK,
        "conv_kernel_size": KERNEL,
        "conv_group_size": GROUP,
    }
    for key, size in sizes.items():
        writer.add_uint32(f"dflash.{key}", size)
    width = target.n_embd
    matrix("selector_predecessor.weight", target.n_vocab, RANK, scale=1.0)
    matrix("selector_successor.weight", target.n_vocab, RANK, scale=1.0)
    matrix("selector_hidden.weight", RANK, width)
    for i in range(shape.n_layer):
        for part in ("attn", "ffn"):
            base = rng.normal(size=(2, KERNEL, width), scale=0.3).astype(shape.base_type)
            writer.add_tensor(f"blk.{i}.{part}_conv_base", base)
            matrix(f"blk.{i}.{part}_conv_proj.weight", 2 * KERNEL * width // GROUP, width)


def write_layer(
    writer: gguf.GGUFWriter, matrix: Matrices, rng: np.random.Generator, *, prefix: str, width: int, n_ff: int
) -> None:
    for name, rows, columns in (
        *((f"attn_{part}", width, width) for part in ("q", "k", "v", "output")),
        *(("ffn_gate", n_ff, width), ("ffn_up", n_ff, width), ("ffn_down", width, n_ff)),
    ):
        matrix(f"{prefix}{name}.weight", rows, columns)
    for name, size in norms(width):
        writer.add_tensor(f"{prefix}{name}.weight", norm(rng, size))


def norms(width: int) -> tuple[tuple[str, int], ...]:
    """Return the names and lengths of a layer's norms."""
    return ("attn_norm", width), ("ffn_norm", width), ("attn_q_norm", HEAD_SIZE), ("attn_k_norm", HEAD_SIZE)


def write_bigram_head(path: Path, target: Path, shape: TargetShape) -> Path:
    """Write a DSpark head that predicts as the target would from the last token alone: its backbone adds nothing."""
    header = read_header(target)
    read = {name: read_tensor(header, f"{name}.weight") for name in ("token_embd", "output_norm", "output")}
    embeddings = read["token_embd"]
    normed = embeddings / np.sqrt((embeddings**2).mean(axis=1, keepdims=True) + 1e-5) * read["output_norm"]
    writer, width = gguf.GGUFWriter(str(path), "dflash"), shape.n_embd
    write_shape(writer, n_embd=width, n_layer=1, n_ff=shape.n_ff, heads=width // HEAD_SIZE, n_ctx=shape.n_ctx)
    write_vocabulary(writer, shape.n_vocab)
    writer.add_mask_token_id(0)
    writer.add_array("dflash.target_layers", [1])
    writer.add_uint32("dflash.block_size", 8)
    writer.add_tensor("fc.weight", np.eye(width, dtype=np.float32))
    writer.add_tensor("enc.output_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(width, np.float32))
    writer.add_tensor("markov_w1.weight", normed.astype(np.float32))
    writer.add_tensor("markov_w2.weight", read["output"].astype(np.float32))
    zeros = {
        "attn_q": (width, width),
        "attn_k": (width, width),
        "attn_v": (width, width),
        "attn_output": (width, width),
    }
    zeros |= {"ffn_gate": (shape.n_ff, width), "ffn_up": (shape.n_ff, width), "ffn_down": (width, shape.n_ff)}
    for name, size in zeros.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(size, np.float32))
    for name, length in norms(width):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(length, np.float32))
    finish(writer)
    return path


class Reference:
    """A head in double precision: src/models/dflash.cpp without its cache."""

    def __init__(self, path: Path, target: Path, shape: BlockShape) -> None:
        header, beside = read_header(path), read_header(target)
        self._shape = shape
        self._weights = {name: read_tensor(header, name).astype(np.float64) for name in header.tensors.keys() - {"d2t"}}
        for name in ("token_embd.weight", "output.weight"):
            if name not in self._weights:
                self._weights[name] = read_tensor(beside, name).astype(np.float64)

    def logits(self, features: np.ndarray, first: int, token: int, depth: int) -> np.ndarray:
        """Return logits [depth, draft vocab] after a root; features [rows, taps, n_embd]: of positions before it."""
        s, w = self._shape, self._weights
        skipped = int(s.markov_rank is None or not s.sample_from_anchor)
        root = first + len(features)
        places = np.arange(first, root + skipped + depth)
        shown = rms(features.reshape(len(features), -1) @ w["fc.weight"].T) * w["enc.output_norm.weight"]
        tokens = [token, *[s.mask] * (skipped + depth - 1)]
        x = w["token_embd.weight"][tokens]
        for i in range(s.n_layer):
            x = self._layer(f"blk.{i}.", x, shown, places, root)
        states = (rms(x) * w["output_norm.weight"])[skipped:]
        logits = states @ w["output.weight"].T
        if s.candidates is not None:
            return self._selected(logits, states, token)
        return logits if s.markov_rank is None else self._chained(logits, token)

    def _layer(self, prefix: str, x: np.ndarray, shown: np.ndarray, places: np.ndarray, root: int) -> np.ndarray:
        def w(name: str) -> np.ndarray:
            return self._weights[f"{prefix}{name}.weight"]

        normed, own = rms(x) * w("attn_norm"), places >= root
        mixed = self._mix(f"{prefix}attn", normed)
        normed = mixed(normed, 0)
        queries = rotated(rms(heads_of(normed @ w("attn_q").T)) * w("attn_q_norm"), places[own])
        keys = heads_of(np.concatenate([shown, normed]) @ w("attn_k").T)
        keys = rotated(rms(keys) * w("attn_k_norm"), places)
        values = heads_of(np.concatenate([shown, normed]) @ w("attn_v").T)
        scores = np.einsum("qhd,khd->hqk", queries, keys) / HEAD_SIZE**0.5
        apart = places[own][:, None] - places[None, :]
        hidden = np.zeros_like(apart, bool)
        if self._shape.is_causal:
            hidden |= apart < 0
        if self._shape.window is not None:
            hidden |= apart >= self._shape.window
        scores = np.where(hidden, -np.inf, scores)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        x = x + mixed(np.einsum("hqk,khd->qhd", shares, values).reshape(len(x), -1) @ w("attn_output").T, 1)
        normed = rms(x) * w("ffn_norm")
        mixed = self._mix(f"{prefix}ffn", normed)
        normed = mixed(normed, 0)
        gate = normed @ w("ffn_gate").T
        return x + mixed((gate / (1 + np.exp(-gate)) * (normed @ w("ffn_up").T)) @ w("ffn_down").T, 1)

    def _mix(self, prefix: str, normed: np.ndarray) -> Callable[[np.ndarray, int], np.ndarray]:
        """DFlash2's convolution over the rows of a block, before (0) and behind (1) a part of a layer."""
        if self._shape.candidates is None:
            return lambda values, side: values
        base = self._weights[f"{prefix}_conv_base"]
        projected = (normed @ self._weights[f"{prefix}_conv_proj.weight"].T).reshape(len(normed), 2, KERNEL, -1)
        gains = np.repeat(projected, GROUP, axis=3) + base

        def mixed(values: np.ndarray, side: int) -> np.ndarray:
            padded = np.concatenate([np.zeros((KERNEL - 1, values.shape[1])), values])
            taps = [gains[:, side, k] * padded[KERNEL - 1 - k :][: len(values)] for k in range(KERNEL)]
            return np.sum(taps, axis=0)

        return mixed

    def _selected(self, logits: np.ndarray, states: np.ndarray, token: int) -> np.ndarray:
        """Each row's best tokens, scored behind the one before; all others are out."""
        w, said = self._weights, []
        for row, state in zip(logits, states, strict=True):
            best = np.argsort(-row)[: self._shape.candidates]
            before = w["selector_predecessor.weight"][token] * (w["selector_hidden.weight"] @ state)
            scores = np.full_like(row, -np.inf)
            scores[best] = row[best] + w["selector_successor.weight"][best] @ before
            said.append(scores)
            token = int(scores.argmax())
        return np.array(said)

    def _chained(self, logits: np.ndarray, token: int) -> np.ndarray:
        """Each row gets the likeliest token before it."""
        said = []
        for row in logits:
            said.append(row + self._weights["markov_w2.weight"] @ self._weights["markov_w1.weight"][token])
            token = int(said[-1].argmax())
        return np.array(said)


def rms(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)


def heads_of(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1, HEAD_SIZE)


def rotated(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return `x` with rotary embedding at these positions, by halves of a head (NeoX)."""
    angles = places[:, None] * 10000.0 ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1)
