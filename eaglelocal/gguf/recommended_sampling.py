"""The sampling parameters that a model's makers recommend: converters copy them from its generation_config.json."""

from __future__ import annotations

from eaglelocal.core.sampling import is_valid_value
from eaglelocal.gguf.header import Header

KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}
WHOLE = frozenset({"top_k", "repeat_last_n"})


def read_recommended_sampling(header: Header) -> dict[str, float]:
    """Return the recommended values by field name of SamplingParams, without non-numbers and values out of range."""
    found = {name: _number(header.metadata.get(key), is_whole=name in WHOLE) for key, name in KEYS.items()}
    return {name: value for name, value in found.items() if value is not None and is_valid_value(name, value)}


def _number(value: object, *, is_whole: bool) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not is_whole:
        return float(f"{value:.6g}")  # as written before it was stored as float32
    return value if isinstance(value, int) else None
