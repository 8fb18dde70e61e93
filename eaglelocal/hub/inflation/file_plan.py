"""The plan of a GGUF file made from another one: its keys and tensors, and its future header.

Planning works with the header, so that a file of gigabytes need not exist. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME, GgmlType
from eaglelocal.gguf.header import ArrayValue, Header, TensorInfo, Value
from eaglelocal.gguf.writer import LAYOUT_KEYS, KeyValue, StreamedTensor, copy_entries, max_file_bytes

ARCHITECTURE_KEY = "general.architecture"
FILE_TYPE_KEY = "general.file_type"
# types that llama.cpp's quantizer gives most matrices, and (second) embeddings and output
_MAIN_TYPES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "q2_k": ("Q2_K", "Q6_K"), "q3_k_s": ("Q3_K", "Q6_K"), "q3_k_m": ("Q3_K", "Q6_K"), "q3_k_l": ("Q3_K", "Q6_K"),
        "q4_k_s": ("Q4_K", "Q6_K"), "q4_k_m": ("Q4_K", "Q6_K"), "q5_k_s": ("Q5_K", "Q6_K"), "q5_k_m": ("Q5_K", "Q6_K"),
        "q6_k": ("Q6_K", "Q6_K"), "q4_0": ("Q4_0", "Q6_K"), "q4_1": ("Q4_1", "Q6_K"), "q5_0": ("Q5_0", "Q6_K"),
        "q5_1": ("Q5_1", "Q6_K"), "iq4_nl": ("IQ4_NL", "Q6_K"), "iq4_xs": ("IQ4_XS", "Q6_K"), "q8_0": ("Q8_0", "Q8_0"),
        "f16": ("F16", "F16"), "bf16": ("BF16", "BF16"), "f32": ("F32", "F32"),
    }
)  # fmt: skip
FILE_TYPES: Mapping[str, int] = MappingProxyType(
    {
        "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k_s": 11,
        "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25,
        "iq4_xs": 30, "bf16": 32,
    }
)  # fmt: skip
# types that it gives rows that are not whole blocks of those
_STAND_INS: Mapping[str, str] = MappingProxyType(
    {
        "Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    }
)  # fmt: skip
_INTEGERS = frozenset({"I32", "I64"})
_IN_AND_OUT = frozenset({"token_embd.weight", "output.weight"})


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file to write: the keys of `source`, updated by `changed`, and its tensors."""

    source: Header
    changed: Sequence[KeyValue]
    tensors: Sequence[StreamedTensor]

    @property
    def architecture(self) -> str:
        return str(self.source.metadata[ARCHITECTURE_KEY])

    @property
    def entries(self) -> list[KeyValue]:
        """The keys with their values; arrays are read from the source."""
        return [*self.changed, *copy_entries(self.source, without=frozenset(entry.key for entry in self.changed))]

    @property
    def data_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def disk_bytes(self) -> int:
        return max_file_bytes(self.entries, self.tensors)

    def sketch_header(self, kind: str | None = None) -> Header:
        """Return the header of the file, before it is written: path and arrays are the source's, but not their length.

        kind  the type that it will be quantized to, if any. The types of some tensors are then a guess.
        """
        tensors = {one.name: self._find_indices(one) or _sketch_tensor(one, kind) for one in self.tensors}
        changed: dict[str, Value] = {
            entry.key: entry.value for entry in self.changed if not isinstance(entry.value, tuple)
        }
        for entry in self.changed:
            old = self.source.metadata.get(entry.key)
            if isinstance(entry.value, tuple) and isinstance(old, ArrayValue):
                changed[entry.key] = replace(old, count=len(entry.value))
        if kind is not None:
            changed[FILE_TYPE_KEY] = FILE_TYPES[kind]
        kept = {
            key: value
            for key, value in self.source.metadata.items()
            if key == ARCHITECTURE_KEY or key not in LAYOUT_KEYS
        }
        first = self.source.shards[0]
        num_bytes = sum(tensor.nbytes for tensor in tensors.values()) + first.data_offset
        return replace(
            self.source,
            metadata=MappingProxyType({**kept, **changed}),
            value_types=MappingProxyType(
                {**self.source.value_types, **{entry.key: entry.type for entry in self.changed}}
            ),
            tensors=MappingProxyType(tensors),
            shards=(replace(first, file_bytes=num_bytes),),
        )

    def _find_indices(self, tensor: StreamedTensor) -> TensorInfo | None:
        """Return the source's entry of an integer tensor, such as `d2t`, which is copied: it is read in the sketch."""
        kept = self.source.tensors.get(tensor.name)
        is_copied = kept is not None and (kept.shape, kept.type) == (tensor.shape, tensor.type)
        return kept if is_copied and tensor.type.name in _INTEGERS else None


def _sketch_tensor(tensor: StreamedTensor, kind: str | None) -> TensorInfo:
    new_type = _quantized_type(tensor, kind) if kind is not None else tensor.type
    num_bytes = new_type.row_bytes(tensor.shape[0]) * (tensor.num_elements // tensor.shape[0])
    return TensorInfo(tensor.name, tensor.shape, new_type, 0, num_bytes)


def _quantized_type(tensor: StreamedTensor, kind: str) -> GgmlType:
    if len(tensor.shape) < 2:
        return tensor.type
    main, in_and_out = (GGML_TYPES_BY_NAME[name] for name in _MAIN_TYPES[kind])
    wanted = in_and_out if tensor.name in _IN_AND_OUT else main
    if tensor.shape[0] % wanted.block_elements:
        wanted = GGML_TYPES_BY_NAME[_STAND_INS.get(wanted.name, "F16")]
    return wanted
