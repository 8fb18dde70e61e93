"""The choice of the device on which torch computes. The module can be imported without torch."""

from __future__ import annotations

import os

from eaglelocal.errors import UsageError
from eaglelocal.worker.child import DEFAULTS

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
        raise UsageError("training needs torch", hint='pip install ".[train]", in the checkout') from None
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return "cuda" if available["cuda"] else "cpu"
    if not available[name]:
        raise UsageError(f"--torch-device {name}: torch finds no such device", hint="--torch-device cpu")
    return name
