"""Decide what `auto` means for flash attention: on for a GPU, on for a CPU only if it saves needed memory. Pure.

llama.cpp's flash attention for CPUs processes one row at a time over all cells, so that verifying several rows after
a long context takes several times as long as without (docs/measured.md). Without it the scores of a whole batch are
stored, and a quantized cache cannot be read.
"""

from __future__ import annotations

MAX_SCORES_BYTES = 512 * 2**20


def resolve_flash_attn(setting: str, *, on_gpu: bool, kv_type: str, scores_bytes: int) -> str:
    """Return `on` or `off` if there is a reason for it; else the setting as given."""
    if setting != "auto" or on_gpu or kv_type != "f16":
        return setting
    return "off" if scores_bytes <= MAX_SCORES_BYTES else "auto"
