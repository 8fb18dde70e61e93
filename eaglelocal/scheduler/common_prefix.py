"""Compare token sequences. Pure, and quick on long ones: a cache may hold some ten thousand tokens."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 256  # tokens that are compared at a time, in C


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    most = min(len(a), len(b))
    for first in range(0, most, BLOCK):
        x, y = tuple(a[first : first + BLOCK]), tuple(b[first : first + BLOCK])
        if x != y:
            return first + next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
    return most
