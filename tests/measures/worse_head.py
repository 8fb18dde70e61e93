"""A copy of a bf16 head with noise in its weights, as good as heads of large models are: worse_head.py HEAD NOISE COPY

The embedded head is right nine times in ten, which no published one is. NOISE is in standard deviations of each matrix:
with 0.6 the head of demo@300m:bf16 has acceptance lengths of 2 to 4.

    python tests/measures/worse_head.py ~/.cache/eaglelocal/generated/demo-300m-bf16-*-head.gguf 0.6 worse.gguf
    eaglelocal bench --target demo --draft worse.gguf --draft-type file --spec auto,2,3,4,6
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader


def add_noise(path: Path, noise: float) -> None:
    """In place, to each matrix of 16 bits; norms and maps stay what they are."""
    rng = np.random.default_rng(5)
    for tensor in GGUFReader(path, "r+").tensors:
        if tensor.tensor_type is GGMLQuantizationType.BF16:
            bits = tensor.data.reshape(-1).view(np.uint16)
            weights = (bits.astype(np.uint32) << 16).view(np.float32)
            worse = weights + rng.normal(0.0, noise * weights.std(), weights.shape).astype(np.float32)
            bits[:] = (worse.view(np.uint32) + 0x8000) >> 16


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("head", type=Path)
    parser.add_argument("noise", type=float)
    parser.add_argument("copy", type=Path)
    asked = parser.parse_args()
    asked.copy.write_bytes(asked.head.read_bytes())
    add_noise(asked.copy, asked.noise)
