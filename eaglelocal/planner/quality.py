"""How good an answer may be, as one number of parameters: the only measure that every entry of a catalogue has.

    effective parameters = all^0.6 x active^0.4 x exp(-LOSS x KLD of the quantization)

For dense models it is the number itself. For experts the usual rule of thumb is the geometric mean, 0.5. By the index
of Artificial Analysis (April 2026) Qwen3.6-35B-A3B (43) stands so near its 27 B (46; Qwen3.5: 27 B 42, 9 B 32) that it
would be 0.76, and Qwen3.5-122B-A10B behind its 27 B, which would be 0.4: ALL_SHARE is between. KLD was measured
on one model of 8 B (catalog/quants.py), and LOSS is chosen so that Q4_K_M is worth 92 % of f16, Q3_K_M 78 % and Q2_K a
third: where the next smaller model of a family becomes the better use of the memory. It ranks, it does not judge: of
families it knows nothing, and generations are age.py's. A quantization that nobody measured (a mixture such as
UD-Q4_K_XL) is taken for what its bits a weight are worth among those that were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from eaglelocal.catalog.quants import QuantLoss

LOSS = 3.0
ALL_SHARE = 0.6
NATIVE = "MXFP4"  # trained in it, so there is nothing to lose
LOSSLESS = (NATIVE, "BF16", "F32")
FULL_BITS = 16.0
MIDDLE = ("Q3_K", "Q4_K", "Q5_K")  # the tensor types, by which nobody means anything but the middle mixture
KV_LOSS: Mapping[str, float] = {
    "f16": 0.0,
    "q8_0": 0.01,
    "q4_0": 0.1,
}  # shares of quality


def effective_b(
    *, parameters_b: float, active_b: float, quant: str, bits_per_weight: float, quants: Mapping[str, QuantLoss]
) -> float:
    """In 10^9 parameters. `bits_per_weight`: of the whole file."""
    lost = divergence(quant, quants, bits_per_weight=bits_per_weight)
    return float(parameters_b**ALL_SHARE * active_b ** (1 - ALL_SHARE)) * math.exp(-LOSS * lost)


def divergence(quant: str, quants: Mapping[str, QuantLoss], *, bits_per_weight: float) -> float:
    """KLD of the next token from that of f16; of a quantization that nobody measured, by its bits."""
    name = quant.upper().removeprefix("UD-").removeprefix("QAT_")
    if name in LOSSLESS:
        return 0.0
    loss = quants.get(f"{name}_M" if name in MIDDLE else name)
    return loss.kld if loss is not None and loss.kld is not None else divergence_of_bits(bits_per_weight, quants)


def divergence_of_bits(bits: float, quants: Mapping[str, QuantLoss]) -> float:
    """Between the measured ones, on a logarithmic scale; below them as the lowest two go on; 16 bits lose nothing."""
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
    """(bits, KLD) of those that no smaller one beats, by bits; what loses nothing measurable is left out."""
    known = sorted((loss.bits_per_weight, loss.kld) for loss in quants.values() if loss.kld)
    points: list[tuple[float, float]] = []
    for bits, kld in known:
        if points and bits == points[-1][0]:
            continue
        if not points or kld < points[-1][1]:
            points.append((bits, kld))
    return points
