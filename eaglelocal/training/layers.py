"""Layers of torch that heads are made of: RMS norm, rotary positions, and the gated feed-forward part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rope_tables(
    length: int, head_size: int, theta: float, *, scale: float = 1.0, factors: Sequence[float] = ()
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each [length, head_size / 2]. `scale` divides positions, `factors` frequencies."""
    frequencies = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    if factors:
        frequencies = frequencies / torch.tensor(factors, dtype=torch.float64)
    angles = torch.outer(torch.arange(length, dtype=torch.float64) / scale, frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x[2i], x[2i+1]) of x [batch, heads, length, head_size] by the angle of their position."""
    even, odd = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def split_heads(x: Tensor, head_size: int) -> Tensor:
    """Reshape [batch, length, heads * head_size] to [batch, heads, length, head_size]."""
    return x.reshape(x.shape[0], x.shape[1], -1, head_size).transpose(1, 2)


class SwiGlu(nn.Module):
    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, ffn, bias=False)
        self.up = nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]
