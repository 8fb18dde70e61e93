"""The choice of the device on which torch computes. The module can be imported without torch."""

from __future__ import annotations

import os

from eaglelocal.errors import UsageError
from eaglelocal.worker.child import DEFAULTS

DEVICES = ("auto", "cpu", "cuda", "mps")


def device_of(asked: str) -> str:
    """Return torch's device for the setting `asked`. Raises UsageError if torch is missing or has no such device."""
    if asked not in DEVICES:
        raise UsageError(f"--torch-device must be one of {', '.join(DEVICES)}, not {asked!r}")
    for name, value in DEFAULTS.items():  # torch's threads spin at barriers like llama.cpp's; set before import
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
