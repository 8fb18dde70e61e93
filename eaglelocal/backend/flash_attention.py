"""Decide what `auto` means for flash attention. Pure.

A GPU and a CPU for which we have a kernel (cpu_attention.py) have it on. llama.cpp's own kernel for CPUs processes one
row at a time over all cells, so that verifying several rows after a long context takes several times as long as without
(docs/measured.md); it is on only if it saves needed memory: without it the scores of a whole batch are stored, and a
quantized cache cannot be read.
"""

from __future__ import annotations

MAX_SCORES_BYTES = 512 * 2**20


def resolve_flash_attn(setting: str, *, on_gpu: bool, kv_type: str, scores_bytes: int, has_kernel: bool) -> str:
    """Return `on` or `off` if there is a reason for it; else the setting as given.

    has_kernel: our own kernel runs this model on this CPU
    """
    if setting != "auto" or on_gpu or kv_type != "f16":
        return setting
    if has_kernel:
        return "on"
    return "off" if scores_bytes <= MAX_SCORES_BYTES else "auto"
