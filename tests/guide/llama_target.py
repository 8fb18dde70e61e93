"""The small llama-architecture target in torch: exactly the graph that llama.cpp runs for `llama`.

Rotary pairs are interleaved (llama.cpp's NORM convention), so weights are exported without permutation; token
embedding and lm_head are tied. Data, losses and files are elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from eaglelocal.core.records import dataclass
from eaglelocal.training.eagle_head import RmsNorm, SwiGlu, rope_tables, rotate, split_heads


@dataclass(frozen=True, slots=True)
class TargetShape:
    """Sizes of a target."""

    vocab: int = 4096
    width: int = 256
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 4
    head_size: int = 64
    ffn: int = 704
    max_context: int = 2048
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def attention_width(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_size


class Attention(nn.Module):
    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        self.q = nn.Linear(shape.width, shape.attention_width, bias=False)
        self.k = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.v = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.o = nn.Linear(shape.attention_width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (split_heads(p(x), self.shape.head_size) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeat = self.shape.num_heads // self.shape.num_kv_heads
        if repeat > 1:
            k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class TargetBlock(nn.Module):
    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(shape.width, shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = RmsNorm(shape.width, shape.norm_eps)
        self.ffn = SwiGlu(shape.width, shape.ffn)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))  # type: ignore[no-any-return]


class LlamaTarget(nn.Module):
    """A llama model. `forward` returns the lm_head's input; `logits` applies the lm_head (to all rows or some)."""

    cos: Tensor  # [max_context, head_size / 2]
    sin: Tensor

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(TargetBlock(shape) for _ in range(shape.num_layers))
        self.norm = RmsNorm(shape.width, shape.norm_eps)
        cos, sin = rope_tables(shape.max_context, shape.head_size, shape.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialize()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the normalised final state [batch, length, width] of tokens [batch, length]."""
        return self.forward_with_taps(tokens, ())[0]

    def forward_with_taps(self, tokens: Tensor, taps: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Return `forward`'s result, and the residual streams that enter layers `taps`, each [batch, length, width]."""
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.embedding(tokens)
        tapped = {}
        for index, block in enumerate(self.blocks):
            tapped[index] = x
            x = block(x, cos, sin)
        return self.norm(x), [tapped[tap] for tap in taps]

    def logits(self, state: Tensor) -> Tensor:
        return F.linear(state, self.embedding.weight)

    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def _initialize(self) -> None:
        residual_std = 0.02 / (2 * self.shape.num_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_residual = name.endswith(("attention.o.weight", "ffn.down.weight"))
                nn.init.normal_(parameter, std=residual_std if is_residual else 0.02)
