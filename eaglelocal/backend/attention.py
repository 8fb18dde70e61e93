"""Whether `auto` means flash attention: on a GPU yes, on a processor only where its memory is needed. Pure.

llama.cpp's flash attention for processors takes one row at a time over all cells, so that verifying eight rows behind
1 500 cells cost 3.7 times what it does without (300 M parameters, bf16; 1.7 times for one row). Without it the scores
of a whole batch are kept, and a quantized cache cannot be read.
"""

from __future__ import annotations

MAX_SCORES_BYTES = 512 * 2**20


def settled(asked: str, *, on_gpu: bool, kv_type: str, scores_bytes: int) -> str:
    """`on` or `off`, where a reason is known; else as asked."""
    if asked != "auto" or on_gpu or kv_type != "f16":
        return asked
    return "off" if scores_bytes <= MAX_SCORES_BYTES else "auto"


def scores_bytes(*, n_batch: int, num_cells: int, n_head: int) -> int:
    """Of one layer: every row of a batch against every cell, in float32."""
    return n_batch * num_cells * n_head * 4
