"""Build small GGUF files byte by byte, valid or broken on purpose.

Independent of the code under test, so that both can be compared. Every number in
the file can be overridden, because a malformed file is a valid one with one number changed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_PACKING = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}

TYPE_F32, TYPE_F16, TYPE_Q4_0, TYPE_Q8_0, TYPE_I64, TYPE_BF16 = 0, 1, 2, 8, 27, 30


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def packed(kind: int, value: object) -> bytes:
    if kind == STRING:
        assert isinstance(value, str | bytes)
        return text(value)
    return struct.pack("<" + _PACKING[kind], value)


@dataclass
class TensorBytes:
    name: str
    shape: tuple[int, ...]  # ggml order
    data: bytes
    type_id: int = TYPE_F32
    offset: int | None = None  # None: right behind the one before
    num_dimensions: int | None = None


@dataclass
class GgufBytes:
    """A builder of a GGUF file; `build` returns the bytes."""

    version: int = 3
    magic: bytes = b"GGUF"
    alignment: int = 32
    entries: list[bytes] = field(default_factory=list)
    tensors: list[TensorBytes] = field(default_factory=list)
    num_entries: int | None = None
    num_tensors: int | None = None

    def raw(self, key: str | bytes, type_id: int, value: bytes) -> GgufBytes:
        self.entries.append(text(key) + struct.pack("<I", type_id) + value)
        return self

    def put(self, key: str, kind: int, value: object) -> GgufBytes:
        return self.raw(key, kind, packed(kind, value))

    def put_all(self, kind: int, **values: object) -> GgufBytes:
        for key, value in values.items():
            self.put(key.replace("__", "."), kind, value)
        return self

    def array(self, key: str, kind: int, values: Sequence[object], *, count: int | None = None) -> GgufBytes:
        length = len(values) if count is None else count
        body = b"".join(packed(kind, value) for value in values)
        return self.raw(key, ARRAY, struct.pack("<IQ", kind, length) + body)

    def tensor(self, name: str, values: np.ndarray, *, offset: int | None = None) -> GgufBytes:
        """Add a tensor (floats as F32, BF16 bits given as uint16, or I64) with its shape in numpy's order."""
        type_id = {"f": TYPE_F32, "u": TYPE_BF16, "i": TYPE_I64}[values.dtype.kind]
        stored = values.astype(np.float32) if type_id == TYPE_F32 else values
        self.tensors.append(TensorBytes(name, values.shape[::-1], stored.tobytes(), type_id, offset))
        return self

    def header(self) -> bytes:
        counts = (
            len(self.tensors) if self.num_tensors is None else self.num_tensors,
            len(self.entries) if self.num_entries is None else self.num_entries,
        )
        parts = [self.magic, struct.pack("<IQQ", self.version, *counts), *self.entries]
        offset = 0
        for tensor in self.tensors:
            parts.append(self._info(tensor, offset))
            offset += len(self._padded(tensor.data))
        return b"".join(parts)

    def _info(self, tensor: TensorBytes, offset: int) -> bytes:
        count = len(tensor.shape) if tensor.num_dimensions is None else tensor.num_dimensions
        place = offset if tensor.offset is None else tensor.offset
        shape = struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
        return text(tensor.name) + struct.pack("<I", count) + shape + struct.pack("<IQ", tensor.type_id, place)

    def _padded(self, data: bytes) -> bytes:
        return data + bytes(-len(data) % self.alignment)

    def build(self) -> bytes:
        head = self._padded(self.header())
        return head + b"".join(self._padded(tensor.data) for tensor in self.tensors)


def bf16(values: np.ndarray) -> np.ndarray:
    """Convert float32 to the bits of BF16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def small_model() -> GgufBytes:
    """Return a small valid file with every value type, arrays, and four tensors of three types."""
    built = GgufBytes()
    built.put("general.architecture", STRING, "llama").put("general.name", STRING, "tiny")
    built.put_all(U32, llama__block_count=2, llama__embedding_length=64, llama__context_length=128)
    built.put_all(U32, llama__feed_forward_length=128, llama__attention__head_count=1)
    built.put("llama.attention.layer_norm_rms_epsilon", F32, 1e-5)
    built.put("test.u8", U8, 200).put("test.i8", I8, -3).put("test.u16", U16, 60000).put("test.i16", I16, -5)
    built.put("test.i32", I32, -7).put("test.yes", BOOL, 1).put("test.no", BOOL, 0)
    built.put("test.u64", U64, 2**60).put("test.i64", I64, -(2**60)).put("test.f64", F64, 0.125)
    built.array("llama.attention.head_count_kv", U32, [1, 1])
    built.array("tokenizer.ggml.tokens", STRING, ["<s>", "</s>", "", "ä", "\U0001f985" * 90])
    built.array("tokenizer.ggml.scores", F32, [0.0, 1.0, 2.0, 3.0, 4.0])
    built.array("test.flags", BOOL, [1, 0, 1])
    rng = np.random.default_rng(7)
    built.tensor("token_embd.weight", rng.normal(size=(5, 64)))
    built.tensor("output_norm.weight", rng.normal(size=(64,)))
    built.tensor("blk.0.attn_q.weight", bf16(rng.normal(size=(64, 64))))
    built.tensor("d2t", np.arange(5, dtype=np.int64))
    return built
