"""Answer for a quantization that an entry of the catalog does not list: the nearest listed one, or a refusal. Pure.

UD-Q4_K_XL, Q5_K_XL   a publisher's prefix, a larger mixture: Q4_K_XL, Q5_K_M
Q2_K, AD-IQ3_S        missing, or a publisher's own recipe: the one with the nearest bits per weight
MLX-4bit, NVFP4       formats of other engines, which llama.cpp does not load: refused, with the nearest to take
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from eaglelocal.catalog.target_entries import QuantLoss, TargetEntry
from eaglelocal.errors import UsageError
from eaglelocal.gguf.ggml_types import normalize_quant
from eaglelocal.planning.quality import MIXTURES

MOST_BITS_OFF = 1.0  # per weight, at which a quantization still stands for another
SCALE_BITS = 0.5  # per weight, beside the bits that a name says
USUAL_BITS = 4.0  # of formats of other engines, if the name does not say
LARGER = "_XL"  # a mixture with more bits in some tensors, if a publisher makes one
OTHER_ENGINES: Mapping[str, str] = {  # by what the names of their formats hold
    r"MLX|\d-?BIT|OQ\d": "MLX",
    r"NVFP4|FP8": "vLLM and TensorRT-LLM",
    r"AWQ|GPTQ|W\dA\d|INT\d": "vLLM",
    r"EXL\d": "ExLlama",
}
BITS = re.compile(r"(?:FP|INT|OQ|W)?(\d)(?:-?BIT|A\d|$)")  # in names of other engines' formats
NAME = re.compile(r"(?:I?Q|TQ)(\d)(?:_[K01])?(?:_(?:XXS|XS|XL|S|M|L|NL))?")


def find_nearest_quant(target: TargetEntry, wanted: str, quants: Mapping[str, QuantLoss]) -> str:
    """Return the name of the target's quantization that stands for one that it does not list.

    Raises UsageError, with what to take, for a format of another engine, and if none is near.
    """
    written = normalize_quant(wanted)
    weights = target.outline.parameters_b * 1e9
    sizes = {each.name: 8.0 * each.num_bytes / weights for each in target.quantizations.values()}
    engine = next((engine for pattern, engine in OTHER_ENGINES.items() if re.search(pattern, written)), "")
    if engine:
        like = _find_nearest(sizes, _read_format_bits(written))
        raise UsageError(
            f"{wanted} is a format of {engine}, and llama.cpp loads GGUF files",
            hint=f"take {target.id}:{like}, which has about as many bits",
        )
    found = NAME.search(written)
    if found is not None:
        bare = found[0].removesuffix(LARGER)
        names = (found[0], *(f"{bare}{end}" for end in MIXTURES if bare != found[0]), f"{bare}{LARGER}")
        known = next((quants[name].bits_per_weight for name in names if name in quants), int(found[1]) + SCALE_BITS)
        nearest = next((name for name in names if name in sizes), _find_nearest(sizes, known))
        if abs(sizes[nearest] - known) <= MOST_BITS_OFF:
            return nearest
    raise UsageError(f"the catalog has no {target.id} in {wanted}", hint=f"it has {', '.join(sizes)}")


def _find_nearest(sizes: Mapping[str, float], bits: float) -> str:
    return min(sizes, key=lambda name: abs(sizes[name] - bits))


def _read_format_bits(name: str) -> float:
    """Return the bits per weight that the name of another engine's format says, with those of the scales.

    >>> _read_format_bits("MLX-8BIT"), _read_format_bits("NVFP4"), _read_format_bits("AWQ"), _read_format_bits("EXL3")
    (8.5, 4.5, 4.5, 4.5)
    """
    found = None if name.startswith("EXL") else BITS.search(name)
    return (float(found[1]) if found else USUAL_BITS) + SCALE_BITS
