"""Answer for a quantization that an entry of the catalog does not list: the nearest listed one, or a refusal. Pure.

UD-Q4_K_XL, Q5_K_XL   a publisher's prefix, a larger mixture: Q4_K_XL, Q5_K_M
Q2_K, AD-IQ3_S        missing, or a publisher's own recipe: the one with the nearest bits per weight
MLX-4bit, AWQ         formats of other engines, which llama.cpp does not load: refused, with the nearest to take
NVFP4                 a format of llama.cpp that the catalog has no files in: refused likewise
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
MOST_BITS = 8  # that a quantization's name says; F16 and the like are no quantizations
LARGER = "_XL"  # a mixture with more bits in some tensors, if a publisher makes one
NATIVE = "NVFP4"  # llama.cpp reads it too, though few files have it
OTHER_ENGINES: Mapping[str, str] = {  # by what the names of their formats hold; the first one counts
    r"AWQ|GPTQ|W\dA\d|INT\d": "vLLM",
    r"FP8": "vLLM and TensorRT-LLM",
    r"EXL\d|\dBPW": "ExLlama",
    r"MLX|\d-?BIT|OQ\d": "MLX",
}
ALL_BITS = re.compile(r"(\d(?:\.\d+)?)BPW")  # in names of other engines' formats, with those of the scales
BITS = re.compile(r"(?:FP|INT|OQ|W)(\d)|(\d)-?BIT")  # in such names, without them
NAME = re.compile(r"((?:I?Q|TQ)(\d+))_?(K|[01](?!\d))?_?(XXS|XS|XL|S|M|L|NL)?(?![A-Z0-9])")


def find_nearest_quant(target: TargetEntry, wanted: str, quants: Mapping[str, QuantLoss]) -> str:
    """Return the name of the target's quantization that stands for one that it does not list.

    Raises UsageError, with what to take, for a format of another engine, and if none is near.
    """
    written = normalize_quant(wanted)
    weights, table = target.outline.parameters_b * 1e9, target.outline.table_bytes
    sizes = {each.name: 8.0 * (each.num_bytes - table) / weights for each in target.quantizations.values()}
    _refuse_format(target, wanted, sizes)
    found = NAME.search(written)
    if found is not None and 0 < int(found[2]) <= MOST_BITS:
        names = _list_names(*found.group(1, 3, 4))
        known = next((quants[name].bits_per_weight for name in names if name in quants), int(found[2]) + SCALE_BITS)
        nearest = next((name for name in names if name in sizes), _find_nearest(sizes, known, found[2]))
        if _read_digits(nearest) == found[2] or abs(sizes[nearest] - known) <= MOST_BITS_OFF:
            return nearest
    raise UsageError(f"the catalog has no {target.id} in {wanted}", hint=f"it has {', '.join(sizes)}")


def _list_names(start: str, kind: str | None, size: str | None) -> tuple[str, ...]:
    """Return the names that stand for a quantization, the best first.

    >>> _list_names("Q4", None, "M"), _list_names("Q5", "K", "XL")
    (('Q4_K_M', 'Q4_K_XL'), ('Q5_K_XL', 'Q5_K_L', 'Q5_K_M', 'Q5_K'))
    """
    is_mixture = start.startswith("Q") and (kind == "K" or (kind is None and start != "Q8"))  # the usual one is Q8_0
    bare = f"{start}_K" if is_mixture else f"{start}_{kind}" if kind else start
    ends = (f"_{size}",) if size else ("", "_M") if is_mixture else ("",)
    larger = MIXTURES if size == "XL" else (LARGER,) if is_mixture else ()
    return tuple(f"{bare}{end}" for end in (*ends, *larger))


def _refuse_format(target: TargetEntry, wanted: str, sizes: Mapping[str, float]) -> None:
    """Raise UsageError for a format of another engine, or one of llama.cpp's that the catalog has no files in."""
    written = normalize_quant(wanted)
    engine = next((engine for pattern, engine in OTHER_ENGINES.items() if re.search(pattern, written)), "")
    if not engine and NATIVE not in written:
        return
    bits = _read_format_bits(written)
    like = _find_nearest(sizes, bits, str(int(bits)))
    near = "about as many bits" if abs(sizes[like] - bits) <= MOST_BITS_OFF else "the nearest number of bits"
    hint = f"take {target.id}:{like}, which has {near}"
    if not engine:
        raise UsageError(
            f"the catalog has no {NATIVE} file of {target.id}", hint=f"{hint}, or give the path of a GGUF in {NATIVE}"
        )
    raise UsageError(f"{wanted} is a format of {engine}, and llama.cpp loads GGUF files", hint=hint)


def _find_nearest(sizes: Mapping[str, float], bits: float, digits: str) -> str:
    """Return the name nearest in bits, first of those that say the same digits."""
    return min(sizes, key=lambda name: (_read_digits(name) != digits, abs(sizes[name] - bits)))


def _read_digits(name: str) -> str:
    """Return the bits that a name says: 4 for `MXFP4`, `IQ4_XS` and `QAT_Q4_0`."""
    found = re.search(r"\d+", name)
    return found[0] if found else ""


def _read_format_bits(name: str) -> float:
    """Return the bits per weight that the name of another engine's format says, with those of the scales.

    >>> [_read_format_bits(name) for name in ("AWQ-8BIT", "FP8_E5M2", "NVFP4", "AWQ", "EXL3", "EXL2-6.0BPW")]
    [8.5, 8.5, 4.5, 4.5, 4.5, 6.0]
    """
    if whole := ALL_BITS.search(name):
        return float(whole[1])
    found = BITS.search(name)
    return (float(found[1] or found[2]) if found else USUAL_BITS) + SCALE_BITS
