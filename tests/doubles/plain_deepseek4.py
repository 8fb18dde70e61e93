"""The MTP layer of DeepSeek V4 in plain numpy, without a cache: every row is computed again.

A token has several parallel states. Each half of the layer reads a mean of them, weighted by what they are, writes its
output to all of them, and mixes them by a matrix whose rows and columns each add up to one (Sinkhorn).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor

EPS, ROPE_BASE, CLAMP = 1e-5, 1e4, 7.0


def norm(rows: np.ndarray, gains: np.ndarray | float = 1.0) -> np.ndarray:
    return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + EPS) * gains


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def softmax(values: np.ndarray) -> np.ndarray:
    shares = np.exp(values - values.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def turn(rows: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Return rows [n, heads, dim] whose last values are rotated by the angles [n, pairs], neighbors paired."""
    still, turned = np.split(rows, [rows.shape[-1] - 2 * angles.shape[-1]], axis=-1)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    one, two = turned[..., ::2], turned[..., 1::2]
    pairs = np.stack([one * cos - two * sin, one * sin + two * cos], axis=-1)
    return np.concatenate([still, pairs.reshape(turned.shape)], axis=-1)


class PlainDeepseek4:
    """The MTP layer of a file, which is its layer number `block`. States are [n, parallel, width]."""

    def __init__(self, path: Path, block: int) -> None:
        self._path, self._header, self._block = path, read_header(path), f"blk.{block}."
        self.num_parallel, self._eps = int(self._key("hyper_connection.count")), self._key("hyper_connection.epsilon")

    def _read(self, name: str) -> np.ndarray:
        return read_tensor(self._header, name if "." in name else f"{name}.weight")

    def _of_layer(self, name: str) -> np.ndarray:
        return self._read(f"{self._block}{name}" + ("" if name.endswith("bias") else ".weight"))

    def _key(self, name: str) -> float:
        return float(self._header.metadata[f"deepseek4.{name}"])  # type: ignore[arg-type]

    def run(self, tokens: list[int], states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the states after a text's rows from position 0 on, and the logits [n, vocab]."""
        embedded = norm(self._read("token_embd")[tokens], self._of_layer("nextn.enorm"))
        joined = [np.repeat(embedded[:, None], self.num_parallel, axis=1), norm(states, self._of_layer("nextn.hnorm"))]
        states = np.concatenate(joined, axis=2) @ self._of_layer("nextn.eh_proj").T
        states = self._add("attn", states, self._attend)
        states = self._add("ffn", states, self._feed_forward)
        return states, self.speak(states, self._of_layer("nextn.shared_head_norm"))

    def speak(self, states: np.ndarray, gains: np.ndarray | None = None) -> np.ndarray:
        """Return the logits after states; `gains` are those of the model's output norm if not given."""
        read = sigmoid(self._weigh("output_hc", states) * self._read("output_hc_scale") + self._read("output_hc_base"))
        row = ((read + self._eps)[..., None] * states).sum(1)
        return norm(row, self._read("output_norm") if gains is None else gains) @ self._read("output").T

    def _weigh(self, name: str, states: np.ndarray) -> np.ndarray:
        return norm(states.reshape(len(states), -1)) @ self._read(f"{name}_fn.weight").T

    def _add(self, name: str, states: np.ndarray, part: object) -> np.ndarray:
        """Return the states with the output of half a layer."""
        m = self.num_parallel
        scale, base = (self._of_layer(f"hc_{name}_{each}") for each in ("scale", "base"))
        weights = self._weigh(f"{self._block}hc_{name}", states) * np.repeat(scale, [m, m, m * m]) + base
        read, written, kept = np.split(weights, [m, 2 * m], axis=1)
        row = ((sigmoid(read) + self._eps)[..., None] * states).sum(1)
        out = part(norm(row, self._of_layer(f"{name}_norm")))  # type: ignore[operator]
        kept = self._balance(kept.reshape(-1, m, m))
        return 2 * sigmoid(written)[..., None] * out[:, None] + np.einsum("nsd,nsw->ndw", kept, states)

    def _balance(self, kept: np.ndarray) -> np.ndarray:
        """Return what each state [from, to] keeps of each, whose rows and columns add up to about one."""
        kept = softmax(kept) + self._eps
        kept /= kept.sum(1, keepdims=True) + self._eps
        for _ in range(int(self._key("hyper_connection.sinkhorn_iterations")) - 1):
            kept /= kept.sum(2, keepdims=True) + self._eps
            kept /= kept.sum(1, keepdims=True) + self._eps
        return kept

    def _attend(self, rows: np.ndarray) -> np.ndarray:
        sinks, n = self._of_layer("attn_sinks"), len(rows)
        dim, num_pairs = int(self._key("attention.key_length")), int(self._key("rope.dimension_count")) // 2
        positions = np.arange(n)
        angles = positions[:, None] * ROPE_BASE ** (-np.arange(num_pairs) / num_pairs)
        latent = norm(rows @ self._of_layer("attn_q_a").T, self._of_layer("attn_q_a_norm"))
        queries = turn(norm((latent @ self._of_layer("attn_q_b").T).reshape(n, -1, dim)), angles)
        keys = norm(rows @ self._of_layer("attn_kv").T, self._of_layer("attn_kv_a_norm"))
        keys = turn(keys[:, None], angles)[:, 0]  # and values
        scores = np.einsum("qhd,kd->hqk", queries, keys) * dim**-0.5
        distance = positions[:, None] - positions
        scores = np.where((distance >= 0) & (distance < self._key("attention.sliding_window")), scores, -np.inf)
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (len(sinks), n, 1))], axis=2)
        mixed = turn(np.einsum("hqk,kd->qhd", softmax(scores)[..., :-1], keys), -angles)
        groups = int(self._key("attention.output_group_count"))
        first = self._of_layer("attn_output_a").reshape(groups, -1, len(sinks) * dim // groups)
        inner = np.einsum("ngd,grd->ngr", mixed.reshape(n, groups, -1), first)
        return inner.reshape(n, -1) @ self._of_layer("attn_output_b").T

    def _feed_forward(self, rows: np.ndarray) -> np.ndarray:
        found = np.sqrt(np.log1p(np.exp(rows @ self._of_layer("ffn_gate_inp").T)))
        best = np.argsort(-(found + self._of_layer("exp_probs_b.bias")))[:, : int(self._key("expert_used_count"))]
        shares = np.take_along_axis(found, best, axis=1)
        shares *= self._key("expert_weights_scale") / shares.sum(1, keepdims=True)
        gates, ups, downs = (self._of_layer(f"ffn_{name}_exps") for name in ("gate", "up", "down"))
        out = self._glu(rows, *(self._of_layer(f"ffn_{name}_shexp") for name in ("gate", "up", "down")))
        for i, row in enumerate(rows):
            for expert, share in zip(best[i], shares[i], strict=True):
                out[i] += share * self._glu(row, gates[expert], ups[expert], downs[expert])
        return out

    @staticmethod
    def _glu(rows: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
        opened, values = np.minimum(rows @ gate.T, CLAMP), np.clip(rows @ up.T, -CLAMP, CLAMP)
        return (opened * sigmoid(opened) * values) @ down.T
