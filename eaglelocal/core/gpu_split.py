"""The setting that divides a model among GPUs: `layer`, `tensor`, `row`, `none`, or each GPU's share, as `3,1`."""

from __future__ import annotations

TENSOR = "tensor"  # each layer is divided evenly, and all GPUs compute at once
MODES = ("layer", TENSOR, "row", "none")
MAX_SHARES = 16  # llama.cpp's limit of devices


def suggest_split(num_gpus: int) -> str:
    """Return the hint for a wrong number of shares: an equal one for each of the GPUs, or none at all."""
    return f"--split {','.join(['1'] * num_gpus)}" if num_gpus > 1 else "leave --split out"


def parse_split(text: str) -> tuple[str, tuple[float, ...]]:
    """Return (mode, shares). Shares divide by layers, in llama.cpp's order of devices.

    Raises ValueError; its text says what the setting must be.

    >>> parse_split("3,1")
    ('layer', (3.0, 1.0))
    """
    if text in MODES:
        return text, ()
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not 2 <= len(shares) <= MAX_SHARES or not all(0 <= share < float("inf") for share in shares) or not any(shares):
        raise ValueError(f"one of {', '.join(MODES)}, or the share of each GPU, as 3,1")
    return "layer", shares
