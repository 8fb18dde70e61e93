"""In what type matrices are multiplied: bfloat16 only where a device is quicker at it than in float32."""

from __future__ import annotations

import torch

FIRST_QUICK_CUDA = (8, 0)  # compute capability: Ampere; older cards emulate bfloat16


def quick_type(device: str) -> torch.dtype:
    """Of torch's kind of device.

    A processor without instructions for bfloat16 multiplies it many times slower than float32. Apple's GPUs gain little
    by it, and torch's autocast knows it there only from some versions on.
    """
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability() >= FIRST_QUICK_CUDA else torch.float32
    return torch.bfloat16 if device == "cpu" and _cpu_has_bfloat16() else torch.float32


def autocast(device: str) -> torch.autocast:
    """Forward passes under it multiply in the quick type."""
    return torch.autocast(device, torch.bfloat16, enabled=quick_type(device) is torch.bfloat16)


def _cpu_has_bfloat16() -> bool:
    """Asked of what torch keeps for itself: versions and processors that lack the question lack the instructions."""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return known is not None and bool(known())
