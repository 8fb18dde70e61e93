"""The device on which torch computes, and the type of its matrices. The module can be imported without torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from eaglelocal.core.own_package import suggest_extra
from eaglelocal.errors import UsageError
from eaglelocal.worker.child import DEFAULTS

if TYPE_CHECKING:
    import torch

FIRST_FAST_CUDA = (8, 0)  # compute capability: Ampere; older cards emulate bfloat16
DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str) -> str:
    """Return torch's device for --torch-device. Raises UsageError if torch is missing or has no such device."""
    if name not in DEVICES:
        raise UsageError(f"--torch-device must be one of {', '.join(DEVICES)}, not {name!r}")
    for variable, value in DEFAULTS.items():  # torch's threads spin at barriers like llama.cpp's; set before import
        os.environ.setdefault(variable, value)
    try:
        import torch
    except ImportError:
        raise UsageError("training needs torch", hint=suggest_extra("train")) from None
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return "cuda" if available["cuda"] else "cpu"
    if not available[name]:
        raise UsageError(f"--torch-device {name}: torch finds no such device", hint="--torch-device cpu")
    return name


def fast_dtype(device: str) -> torch.dtype:
    """Return the type in which matrices are multiplied: bfloat16 only where the device is faster with it.

    A CPU without bfloat16 instructions multiplies it many times slower than float32, and one that has only those of
    AVX-512 takes 1.4 times as long; Intel's AMX is faster. Apple's GPUs gain little from it, and torch's autocast
    supports it there only in newer versions.
    """
    import torch

    if device == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability() >= FIRST_FAST_CUDA else torch.float32
    return torch.bfloat16 if device == "cpu" and _cpu_has_tiles() else torch.float32


def autocast(device: str) -> torch.autocast:
    """Return a context in which forward passes multiply in the faster type."""
    import torch

    return torch.autocast(device, torch.bfloat16, enabled=fast_dtype(device) is torch.bfloat16)


def _cpu_has_tiles() -> bool:
    """Ask torch's private function; where a version of torch lacks it, assume that there are no such instructions."""
    import torch

    is_supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return is_supported is not None and bool(is_supported())
