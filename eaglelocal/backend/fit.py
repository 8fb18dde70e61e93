"""Will it fit? Bytes that a target and its cache need against what the machine has, before llama.cpp is asked.

On Linux an allocation succeeds and the process is killed later, so llama.cpp cannot tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.model_info import ModelInfo

BYTES_PER_VALUE = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of models with their caches."""

    weights_bytes: int = 0
    kv_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes

    def plus(self, other: Need) -> Need:
        return Need(self.weights_bytes + other.weights_bytes, self.kv_bytes + other.kv_bytes)


def need_of(info: ModelInfo | EagleInfo, *, n_ctx: int, num_slots: int, kv_type: str) -> Need:
    """Weights, and keys and values of all layers for every slot (an upper bound with sliding windows)."""
    if kv_type not in BYTES_PER_VALUE:
        raise UsageError(f"--kv-type cannot be {kv_type}", hint=f"one of: {', '.join(BYTES_PER_VALUE)}")
    kv_heads = info.n_kv_head * info.n_layer if isinstance(info, EagleInfo) else sum(info.n_kv_head)
    per_token = kv_heads * (info.head_dim + info.value_dim)
    return Need(info.weights_bytes, int(per_token * n_ctx * num_slots * BYTES_PER_VALUE[kv_type]))


def check_fits(need: Need, *, available_bytes: int | None, n_ctx: int) -> None:
    """Raises ResourceError with the sum. Unknown memory passes: llama.cpp then has the last word."""
    if available_bytes is None or need.total_bytes <= available_bytes:
        return
    raise ResourceError(
        f"{need.weights_bytes / GIB:.1f} GiB of weights and {need.kv_bytes / GIB:.1f} GiB of cache for {n_ctx} tokens "
        f"do not fit the {available_bytes / GIB:.1f} GiB that are free",
        hint="a smaller --ctx, or a smaller or more quantized model",
    )
