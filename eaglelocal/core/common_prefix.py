"""Compare token sequences, in blocks: a cache may hold tens of thousands of tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 256  # tokens compared at a time, as tuples in C


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    length = min(len(a), len(b))
    for first in range(0, length, BLOCK):
        x, y = tuple(a[first : first + BLOCK]), tuple(b[first : first + BLOCK])
        if x != y:
            return first + next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
    return length
