"""How good an answer may be, as one number of parameters: the only measure that every entry of a catalogue has.

    effective parameters = sqrt(all x active) x exp(-LOSS x KLD of the quantization)

The geometric mean is the usual rule of thumb for experts; for dense models it is the number itself. KLD was measured
on one model of 8 B (catalog/quants.py), and LOSS is chosen so that Q4_K_M is worth 92 % of f16, Q3_K_M 78 % and Q2_K a
third: where the next smaller model of a family becomes the better use of the memory. It ranks, it does not judge:
between families and generations it knows nothing but size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from eaglelocal.catalog.quants import QuantLoss

LOSS = 3.0
UNKNOWN_KLD = 0.1  # of a quantization nobody measured: as Q3_K_M
NATIVE = "MXFP4"  # trained in it, so there is nothing to lose
KV_LOSS: Mapping[str, float] = {
    "f16": 0.0,
    "q8_0": 0.01,
    "q4_0": 0.1,
}  # shares of quality


def effective_b(*, parameters_b: float, active_b: float, quant: str, quants: Mapping[str, QuantLoss]) -> float:
    """In 10^9 parameters."""
    return math.sqrt(parameters_b * active_b) * math.exp(-LOSS * divergence(quant, quants))


def divergence(quant: str, quants: Mapping[str, QuantLoss]) -> float:
    """KLD of the next token from that of f16."""
    name = quant.upper().removeprefix("UD-").removeprefix("QAT_")
    if name in (NATIVE, "BF16", "F32"):
        return 0.0
    loss = quants.get(name)
    return UNKNOWN_KLD if loss is None or loss.kld is None else loss.kld
