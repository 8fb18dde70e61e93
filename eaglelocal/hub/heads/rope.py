"""The rotation (RoPE) of a head's queries and keys: its configuration, and the keys that llama.cpp needs, both ways.

llama3 scaling becomes a factor for each frequency (`rope_freqs.weight`), linear and yarn become keys. Formulas are
those of transformers (modeling_rope_utils.py) and of the Llama 3.1 release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.header import Scalar
from eaglelocal.gguf.writer import KeyValue, list_entries
from eaglelocal.hub.heads.safetensors_files import Floats

DEFAULT_THETA = 10_000.0
PREFIX = "eagle3.rope."
KEYS = frozenset(
    {
        "dimension_count", "freq_base", "scaling.type", "scaling.factor", "scaling.original_context_length",
        "scaling.yarn_beta_slow", "scaling.yarn_beta_fast", "scaling.finetuned",
    }
)  # fmt: skip
# names of `low` and `high`, with their defaults
BOUNDS = {
    "llama3": (("low_freq_factor", 1.0), ("high_freq_factor", 4.0)),
    "yarn": (("beta_slow", 1.0), ("beta_fast", 32.0)),
}
LLAMA3_CONTEXTS = (8192, 4096, 2048, 16384, 32768, 65536, 131072)  # before scaling; the first is usual
PLAIN = ("default", "none", "mrope")  # in a text the several position axes of mrope are equal


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float
    kind: str = "none"  # none, linear, llama3, yarn
    factor: float = 1.0
    original_context: int = 0
    low: float = 1.0  # of llama3: low_freq_factor; of yarn: beta_slow
    high: float = 4.0  # of llama3: high_freq_factor; of yarn: beta_fast

    def keys(self) -> list[KeyValue]:
        keys: dict[str, Scalar | tuple[Scalar, ...]] = {"freq_base": self.theta}
        if self.kind in ("linear", "yarn"):
            keys |= {"scaling.type": self.kind, "scaling.factor": self.factor}
        if self.kind == "yarn":
            keys |= {"scaling.original_context_length": self.original_context}
            keys |= {"scaling.yarn_beta_slow": self.low, "scaling.yarn_beta_fast": self.high}
        return list_entries({f"{PREFIX}{key}": value for key, value in keys.items()})

    def config(self) -> dict[str, object]:
        """Return the rotation as keys of a config.json, as `read_rope` reads them."""
        scaling: dict[str, object] = {"rope_type": self.kind, "factor": self.factor}
        if self.kind in BOUNDS:
            (low, _), (high, _) = BOUNDS[self.kind]
            scaling |= {"original_max_position_embeddings": self.original_context, low: self.low, high: self.high}
        return {"rope_theta": self.theta, "rope_scaling": None if self.kind == "none" else scaling}

    def factors(self, head_dim: int) -> Floats | None:
        """Return the divisors that llama.cpp applies to the frequencies [head_dim / 2]; None if all are one."""
        if self.kind != "llama3":
            return None
        lengths = 2 * math.pi * self.theta ** (np.arange(0, head_dim, 2) / head_dim)  # wavelengths, in tokens
        longest, shortest = self.original_context / self.low, self.original_context / self.high
        share = (self.original_context / lengths - self.low) / (self.high - self.low)
        between = 1 / ((1 - share) / self.factor + share)
        return np.where(lengths < shortest, 1.0, np.where(lengths > longest, self.factor, between)).astype(np.float32)


def read_rope(config: Mapping[str, object]) -> Rope:
    """Read the rotation. Raises IncompatibleError on a scaling that llama.cpp does not compute as training did."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping) or any(isinstance(value, Mapping) for value in scaling.values()):
        raise _make_unsupported_error(f"rope_scaling is {str(scaling)[:60]}")
    theta = _read_number(scaling, "rope_theta", _read_number(config, "rope_theta", DEFAULT_THETA))
    part = _read_number(scaling, "partial_rotary_factor", _read_number(config, "partial_rotary_factor", 1.0))
    if part != 1.0:
        raise _make_unsupported_error(f"it turns {part:.0%} of each head only")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    match kind:
        case "llama3":
            rope = _read_bounded(scaling, theta, kind, factor=8.0, original=8192)
            if rope.low >= rope.high or rope.factor < 1 or rope.original_context <= 0:
                raise _make_unsupported_error(
                    f"its llama3 scaling has the factors {rope.factor}, {rope.low} to {rope.high}"
                )
            return rope
        case "linear":
            return Rope(theta, "linear", _read_number(scaling, "factor", 1.0))
        case "yarn":
            own = [name for name in ("attention_factor", "mscale", "mscale_all_dim") if scaling.get(name) is not None]
            if own or scaling.get("truncate") is False:
                raise _make_unsupported_error(f"its yarn scaling sets {', '.join(own) or 'truncate'}")
            rope = _read_bounded(scaling, theta, kind, factor=1.0, original=0)
            if rope.original_context <= 0 or rope.factor < 1:
                raise _make_unsupported_error(
                    f"its yarn scaling is by {rope.factor} from {rope.original_context} tokens"
                )
            return rope
        case str() if kind in PLAIN:
            return Rope(theta)
    raise _make_unsupported_error(f"its rope scaling is {kind!r}")


def _read_bounded(scaling: Mapping[str, object], theta: float, kind: str, *, factor: float, original: int) -> Rope:
    """Return a scaling between two bounds. `factor`, `original`: if they are not stated."""
    low, high = (_read_number(scaling, *bound) for bound in BOUNDS[kind])
    original = int(_read_number(scaling, "original_max_position_embeddings", original))
    return Rope(theta, kind, _read_number(scaling, "factor", factor), original, low, high)


def read_rope_keys(metadata: Mapping[str, object], factors: Floats | None, *, head_dim: int) -> Rope:
    """Return the rotation that a head's file states, the inverse of `Rope.keys` and `Rope.factors`.

    factors  [head_dim / 2] of its `rope_freqs.weight`; None: it has none

    Raises IncompatibleError on a rotation that a published configuration cannot state.
    """
    stated = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    if foreign := sorted(stated.keys() - KEYS):
        raise _make_unwritable_error(f"{PREFIX}{foreign[0]}")
    if stated.get("dimension_count", head_dim) != head_dim:
        raise _make_unwritable_error(f"{PREFIX}dimension_count {stated['dimension_count']} of {head_dim}")
    theta = _restate(_read_number(stated, "freq_base", DEFAULT_THETA))
    factor = _restate(_read_number(stated, "scaling.factor", 1.0))
    kind = stated.get("scaling.type", "linear")  # llama.cpp's default
    if factors is not None:
        if kind not in ("linear", "none") or factor != 1.0:
            raise _make_unwritable_error(f"factors for each frequency besides scaling by {factor:g}")
        return _find_llama3(factors, theta, head_dim)
    if kind == "yarn":
        low, high = (_restate(_read_number(stated, f"scaling.yarn_{name}", value)) for name, value in BOUNDS[kind])
        original = int(_read_number(stated, "scaling.original_context_length", 0))
        if not original:
            raise _make_unwritable_error("yarn without its original context")
        return Rope(theta, "yarn", factor, original, low=low, high=high)
    if kind not in ("linear", "none"):
        raise _make_unwritable_error(f"scaling {kind}")
    return Rope(theta) if factor == 1.0 or kind == "none" else Rope(theta, "linear", factor)


def _find_llama3(factors: Floats, theta: float, head_dim: int) -> Rope:
    """Return the llama3 scaling with these factors: a file does not keep the settings that they were computed from."""
    largest = _restate(float(factors.max()))
    for original in LLAMA3_CONTEXTS:
        rope = Rope(theta, "llama3", largest, original)
        made = rope.factors(head_dim)
        if made is not None and made.shape == factors.shape and np.allclose(made, factors, rtol=1e-5, atol=0):
            return rope
    raise _make_unwritable_error("factors for each frequency other than llama3's")


def _restate(value: float) -> float:
    """Return the shortest number that rounds to a file's float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _make_unwritable_error(what: str) -> IncompatibleError:
    return IncompatibleError(f"the head cannot be exported: no published configuration states its rotation ({what})")


def _read_number(values: Mapping[str, object], key: str, default: float) -> float:
    value = values.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise _make_unsupported_error(f"{key} is {str(value)[:40]}")
    return float(value)


def _make_unsupported_error(what: str) -> IncompatibleError:
    return IncompatibleError(f"the head cannot be run: {what}", hint="choose another head of this target")
