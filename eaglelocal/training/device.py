"""Which device torch computes on, if torch is there at all. Torch is not needed to ask."""

from __future__ import annotations

import os

from eaglelocal.engine.child import DEFAULTS
from eaglelocal.errors import UsageError

DEVICES = ("auto", "cpu", "cuda", "mps")


def device_of(asked: str) -> str:
    """Raises UsageError where torch is missing, or has no such device."""
    if asked not in DEVICES:
        raise UsageError(f"--torch-device must be one of {', '.join(DEVICES)}, not {asked!r}")
    for name, value in DEFAULTS.items():  # torch's threads spin at barriers like llama.cpp's; read when torch is loaded
        os.environ.setdefault(name, value)
    try:
        import torch
    except ImportError:
        raise UsageError("training needs torch", hint='pip install ".[train]", in the checkout') from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if asked == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there[asked]:
        raise UsageError(f"--torch-device {asked}: torch sees none here", hint="--torch-device cpu")
    return asked
