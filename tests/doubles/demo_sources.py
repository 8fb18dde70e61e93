"""Files in the exact layout of the embedded demo, with random weights: a tied llama target, a 3.1 head.

Weights are scaled so that logits spread and every path matters: an error of inflation changes the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from doubles.gguf_bytes import BOOL, F32, I32, STRING, U32, GgufBytes, TensorBytes
from doubles.random_models import vocabulary

from eaglelocal.gguf.tap_row import TapRow

HEAD_DIM = 64


@dataclass(frozen=True, kw_only=True)
class DemoSources:
    """The shape of the files to write; the defaults are the demo's own, with a short vocabulary."""

    width: int = 256
    layers: int = 6
    ffn: int = 704
    kv_heads: int = 2
    vocab: int = 320
    head_ffn: int = 704
    head_kv_heads: int = 2
    stored: str = "f32"
    fc_norm: bool = True
    norm_output: bool = True
    norm_before_residual: bool = False
    draft_vocab: int | None = None
    head_dim: int = HEAD_DIM
    is_tied: bool = True
    num_depths: int | None = None  # of a P-EAGLE head
    taps: tuple[int, ...] = ()  # of the head; empty: three
    silent_layers: tuple[int, ...] = ()  # of the target: they add nothing
    seed: int = 11

    @property
    def heads(self) -> int:
        return self.width // self.head_dim

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files and return the paths (target, head)."""
        rng = np.random.default_rng(self.seed)
        target, head = folder / "source-target.gguf", folder / "source-head.gguf"
        target.write_bytes(self._target(rng).build())
        head.write_bytes(self._head(rng).build())
        return target, head

    def _target(self, rng: np.random.Generator) -> GgufBytes:
        built = self._keys("llama", "test guide", self.layers, self.ffn, self.kv_heads)
        self._matrix(built, rng, "token_embd.weight", (self.vocab, self.width), scale=0.5)
        for layer in range(self.layers):
            self._layer(
                built, rng, f"blk.{layer}", self.width, self.ffn, self.kv_heads, is_silent=layer in self.silent_layers
            )
        if not self.is_tied:
            self._matrix(built, rng, "output.weight", (self.vocab, self.width))
        return self._norm(built, rng, "output_norm.weight")

    def _head(self, rng: np.random.Generator) -> GgufBytes:
        built = self._keys("eagle3", "test head", 1, self.head_ffn, self.head_kv_heads)
        row = TapRow(self.taps or (1, self.layers // 2, self.layers - 1), self.width)
        for key, value in row.keys().items():
            built.array(key, I32, list(value)) if isinstance(value, tuple) else built.put(key, U32, value)
        built.put("eagle3.norm_before_residual", BOOL, self.norm_before_residual)
        built.put("eaglelocal.fc_norm", BOOL, self.fc_norm).put("eaglelocal.norm_output", BOOL, self.norm_output)
        if self.num_depths is not None:
            built.put("eaglelocal.mask_token", U32, 9).put("eaglelocal.num_depths", U32, self.num_depths)
            built.array("eaglelocal.mask_hidden", F32, rng.normal(size=row.size).tolist())
        self._matrix(built, rng, "fc.weight", (self.width, row.graph_size))
        self._layer(built, rng, "blk.0", 2 * self.width, self.head_ffn, self.head_kv_heads)
        self._norm(built, rng, "blk.0.attn_norm_2.weight")
        if self.draft_vocab is not None:
            self._matrix(built, rng, "output.weight", (self.draft_vocab, self.width))
            built.tensor("d2t", np.sort(rng.choice(self.vocab, self.draft_vocab, replace=False)).astype(np.int64))
        return self._norm(built, rng, "output_norm.weight")

    def _keys(self, architecture: str, name: str, layers: int, ffn: int, kv_heads: int) -> GgufBytes:
        built = GgufBytes().put("general.architecture", STRING, architecture).put("general.name", STRING, name)
        counts = {
            "block_count": layers,
            "context_length": 512,
            "embedding_length": self.width,
            "feed_forward_length": ffn,
            "attention.head_count": self.heads,
            "attention.head_count_kv": kv_heads,
            "rope.dimension_count": self.head_dim,
            "vocab_size": self.vocab,
        }
        for key, value in counts.items():
            built.put(f"{architecture}.{key}", U32, value)
        built.put(f"{architecture}.attention.layer_norm_rms_epsilon", F32, 1e-3)  # large, so that errors in it show
        built.put(f"{architecture}.rope.freq_base", F32, 10_000.0)
        return self._tokenizer(built)

    def _tokenizer(self, built: GgufBytes) -> GgufBytes:
        tokens, types = vocabulary(self.vocab)
        built.put("tokenizer.ggml.model", STRING, "gpt2").put("tokenizer.ggml.pre", STRING, "qwen2")
        built.array("tokenizer.ggml.tokens", STRING, tokens).array("tokenizer.ggml.token_type", I32, types)
        built.array("tokenizer.ggml.merges", STRING, ["a b"])
        built.put("tokenizer.ggml.eos_token_id", U32, self.vocab - 1)
        return built.put("tokenizer.chat_template", STRING, "{{ messages[0].content }}")

    def _layer(
        self,
        built: GgufBytes,
        rng: np.random.Generator,
        prefix: str,
        inputs: int,
        ffn: int,
        kv_heads: int,
        *,
        is_silent: bool = False,
    ) -> None:
        queries, keys = self.heads * self.head_dim, kv_heads * self.head_dim
        shapes = {
            "attn_q": (queries, inputs),
            "attn_k": (keys, inputs),
            "attn_v": (keys, inputs),
            "attn_output": (self.width, queries),
            "ffn_gate": (ffn, self.width),
            "ffn_up": (ffn, self.width),
            "ffn_down": (self.width, ffn),
        }
        for name, shape in shapes.items():
            gain = 0.0 if is_silent and name in ("attn_output", "ffn_down") else 1.0
            self._matrix(built, rng, f"{prefix}.{name}.weight", shape, scale=gain * shape[1] ** -0.5)
        self._norm(built, rng, f"{prefix}.attn_norm.weight")
        self._norm(built, rng, f"{prefix}.ffn_norm.weight")

    def _matrix(
        self,
        built: GgufBytes,
        rng: np.random.Generator,
        name: str,
        shape: tuple[int, int],
        *,
        scale: float | None = None,
    ) -> None:
        values = rng.normal(size=shape, scale=shape[1] ** -0.5 if scale is None else scale).astype(np.float32)
        kind = gguf.GGMLQuantizationType[self.stored.upper()]
        stored = gguf.quants.quantize(values, kind)
        built.tensors.append(TensorBytes(name, shape[::-1], stored.tobytes(), kind.value))

    def _norm(self, built: GgufBytes, rng: np.random.Generator, name: str) -> GgufBytes:
        return built.tensor(name, rng.uniform(0.5, 1.5, self.width).astype(np.float32))
