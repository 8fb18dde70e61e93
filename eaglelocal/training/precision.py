"""The type in which matrices are multiplied: bfloat16 only where a device is faster with it than with float32."""

from __future__ import annotations

import torch

FIRST_FAST_CUDA = (8, 0)  # compute capability: Ampere; older cards emulate bfloat16


def fast_dtype(device: str) -> torch.dtype:
    """Return the faster type for a device of torch.

    A CPU without bfloat16 instructions multiplies it many times slower than float32. Apple's GPUs gain little from it,
    and torch's autocast supports it there only in newer versions.
    """
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability() >= FIRST_FAST_CUDA else torch.float32
    return torch.bfloat16 if device == "cpu" and _cpu_has_bfloat16() else torch.float32


def autocast(device: str) -> torch.autocast:
    """Return a context in which forward passes multiply in the faster type."""
    return torch.autocast(device, torch.bfloat16, enabled=fast_dtype(device) is torch.bfloat16)


def _cpu_has_bfloat16() -> bool:
    """Ask torch's private function; where a version of torch lacks it, assume that there are no such instructions."""
    is_supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return is_supported is not None and bool(is_supported())
