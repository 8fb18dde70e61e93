"""Encoding of numbers as a ggml type, and random blocks in bulk.

Matrices of an inflated model are random except for small patches. Random bytes come from a pool that is drawn and
encoded once, and then copied from changing offsets at the speed of memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME, GgmlType

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

WEIGHT_STD = 0.02  # standard deviation of initialised models; trained ones have about the same
_POOL_ELEMENTS = 1 << 21
_POOL_SEED = 20_261_120
_STRIDE_BLOCKS = 40_503  # odd, so that repetitions of the pool do not line up


def _bf16(values: Floats) -> Bytes:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)


def _f16(values: Floats) -> Bytes:
    return values.astype("<f2").view(np.uint8)


def _f32(values: Floats) -> Bytes:
    return values.astype("<f4").view(np.uint8)


def _quantized(name: str) -> Callable[[Floats], Bytes]:
    def encode(values: Floats) -> Bytes:
        from gguf import GGMLQuantizationType  # slow to import
        from gguf.quants import quantize

        return np.asarray(quantize(values, GGMLQuantizationType[name]), np.uint8)

    return encode


_ENCODERS: Mapping[str, Callable[[Floats], Bytes]] = MappingProxyType(
    {"f32": _f32, "f16": _f16, "bf16": _bf16, "q8_0": _quantized("Q8_0"), "q4_0": _quantized("Q4_0")}
)


def ggml_type(name: str) -> GgmlType:
    """Return the type of a name such as `q8_0`."""
    return GGML_TYPES_BY_NAME[name.upper()]


def encode(values: Floats, type_name: str) -> Bytes:
    """Encode [rows, columns] floats as [rows, row bytes]; columns are a multiple of the type's block."""
    return _ENCODERS[type_name](np.ascontiguousarray(values, np.float32))


@dataclass(frozen=True, slots=True)
class RandomPool:
    """A pool of encoded normal numbers, to be copied from."""

    type: GgmlType
    encoded: Bytes  # [pool bytes]

    def fill(self, target: Bytes, tensor_name: str, start_bytes: int) -> None:
        """Fill `target` with a tensor's random bytes from `start_bytes` on; the same bytes in pieces of any size."""
        done = 0
        while done < len(target):
            turn, within = divmod(start_bytes + done, len(self.encoded))
            count = min(len(target) - done, len(self.encoded) - within)
            self._copy(target[done : done + count], self._shift(tensor_name, turn) + within)
            done += count

    def _shift(self, tensor_name: str, turn: int) -> int:
        blocks = zlib.crc32(tensor_name.encode()) + turn * _STRIDE_BLOCKS
        return blocks * self.type.block_bytes

    def _copy(self, target: Bytes, place: int) -> None:
        start = place % len(self.encoded)
        first = min(len(target), len(self.encoded) - start)
        target[:first] = self.encoded[start : start + first]
        target[first:] = self.encoded[: len(target) - first]


@lru_cache(maxsize=1)
def make_pool(type_name: str) -> RandomPool:
    """Return the pool of a type; always the same."""
    rng = np.random.default_rng(_POOL_SEED)
    values = rng.standard_normal(_POOL_ELEMENTS, np.float32) * np.float32(WEIGHT_STD)
    return RandomPool(ggml_type(type_name), encode(values.reshape(-1, 256), type_name).reshape(-1))
