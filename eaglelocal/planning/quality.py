"""Estimate the quality of answers as a number of effective parameters, known for every catalog entry.

    effective parameters = all^0.6 x active^0.4 x exp(-LOSS x KLD of the quantization)

For dense models before quantization it is the number of parameters. For mixtures of experts the usual rule of thumb is
the geometric mean, an exponent of 0.5; by the index of Artificial Analysis (April 2026), Qwen3.6-35B-A3B against its
27 B would give 0.76, and Qwen3.5-122B-A10B 0.4, so ALL_SHARE lies between. KLD was measured on one model of 8 B
(catalog/quantizations.py). LOSS makes Q4_K_M worth 92 % of f16, Q3_K_M 78 % and Q2_K a third, where the next smaller
model of a family becomes the better use of memory. The number only ranks: it ignores families, and model_age.py weighs
generations. A file with fewer bits per weight than its name usually has, as makers of mixtures publish them, gets the
KLD interpolated at its bits, and so does one of a name that nobody measured. More bits than usual, in the embeddings of
a large vocabulary, make it no better: Q3_K_XL is measured by Q3_K_L.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from eaglelocal.catalog.quantizations import QuantLoss

LOSS = 3.0
ALL_SHARE = 0.6
NATIVE = "MXFP4"  # models are trained in it, so nothing is lost
LOSSLESS = (NATIVE, "BF16", "F32")
FULL_BITS = 16.0
MIXTURES = ("_L", "_M", "")  # what a bare tensor type or an _XL mixture is measured by: the first that was
KV_LOSS: Mapping[str, float] = {
    "f16": 0.0,
    "q8_0": 0.01,
    "q4_0": 0.1,
}  # share of quality lost by a quantized cache


def effective_b(
    *, parameters_b: float, active_b: float, quant: str, bits_per_weight: float, quants: Mapping[str, QuantLoss]
) -> float:
    """Return the effective parameters, in 10^9. `bits_per_weight`: of the whole file."""
    lost = divergence(quant, quants, bits_per_weight=bits_per_weight)
    return float(parameters_b**ALL_SHARE * active_b ** (1 - ALL_SHARE)) * math.exp(-LOSS * lost)


def divergence(quant: str, quants: Mapping[str, QuantLoss], *, bits_per_weight: float) -> float:
    """Return the KLD of next tokens from those of f16: that of its name, or of its bits per weight if that is more."""
    name = quant.upper().removeprefix("UD-").removeprefix("QAT_")
    if name in LOSSLESS:
        return 0.0
    by_bits = estimate_divergence(bits_per_weight, quants)
    by_name = _measured_divergence(name, quants)
    return by_bits if by_name is None else max(by_name, by_bits)


def _measured_divergence(name: str, quants: Mapping[str, QuantLoss]) -> float | None:
    """Return the KLD measured for this name; None if it was not."""
    bare, is_large, _ = name.partition("_XL")
    names = [name, *(f"{bare}{end}" for end in (MIXTURES if is_large else ("_M",)))]
    return next((loss.kld for each in names if (loss := quants.get(each)) and loss.kld is not None), None)


def estimate_divergence(bits: float, quants: Mapping[str, QuantLoss]) -> float:
    """Return the KLD at these bits per weight: log-linear between measured points and below them; 0 from 16 bits."""
    points = frontier(quants)
    if not points or bits >= FULL_BITS:
        return 0.0
    if bits >= points[-1][0] or len(points) == 1:
        return points[-1][1]
    index = next((index for index, (known, _) in enumerate(points) if known > bits), len(points) - 1)
    (low, more), (high, less) = points[max(index - 1, 0)], points[max(index, 1)]
    share = (bits - low) / (high - low)
    return float(more * (less / more) ** share)


def frontier(quants: Mapping[str, QuantLoss]) -> list[tuple[float, float]]:
    """Return the (bits, KLD) points that no smaller quantization beats, by bits; those with a KLD of 0 are left out."""
    known = sorted((loss.bits_per_weight, loss.kld) for loss in quants.values() if loss.kld)
    points: list[tuple[float, float]] = []
    for bits, kld in known:
        if points and bits == points[-1][0]:
            continue
        if not points or kld < points[-1][1]:
            points.append((bits, kld))
    return points
