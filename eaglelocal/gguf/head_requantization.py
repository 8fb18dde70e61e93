"""Choose the tensors of an EAGLE head to quantize further than in the published file.

A drafted token costs a pass over the head, and every draft is verified anyway: bits that hardly change the drafts are
not worth reading (docs/architecture/step.md). Decides by name, type and shape, without the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from eaglelocal.gguf.architectures import EAGLE
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME, GgmlType
from eaglelocal.gguf.header import Header, TensorInfo

AS_IN_FILE = "file"
BEST_TYPE = "q4_0"  # what `auto` means
MIN_BYTES = 8 << 20  # a smaller head fits the CPU's caches in any type
HEAVY_TYPES = frozenset({"F32", "F16", "BF16", "Q8_0"})
MIN_SAVED_SHARE = 0.2  # share of the bytes read per token
EMBEDDING = "token_embd.weight"  # one row is read per token, so its bits cost memory, not time
EMBEDDING_TYPE = GGML_TYPES_BY_NAME["Q8_0"]


def choose_head_type(setting: str) -> str:
    """Return the quantization that a setting stands for: `auto` is BEST_TYPE, anything else is itself."""
    return BEST_TYPE if setting == "auto" else setting


def choose_tensor_types(header: Header, kind: str) -> Mapping[str, GgmlType]:
    """Return the new types, by tensor name, of a copy quantized to `kind`; empty if there should be no copy."""
    if kind == AS_IN_FILE or header.metadata.get("general.architecture") != EAGLE or header.tensor_bytes < MIN_BYTES:
        return {}
    new_type = GGML_TYPES_BY_NAME[kind.upper()]
    types = {name: EMBEDDING_TYPE if name == EMBEDDING else new_type for name in header.tensors}
    smaller = {name: new_type for name, new_type in types.items() if _gets_smaller(header.tensors[name], new_type)}
    read = {name: tensor for name, tensor in header.tensors.items() if name != EMBEDDING}
    saved_bytes = sum(
        read[name].nbytes - _bytes_as(read[name], new_type) for name, new_type in smaller.items() if name in read
    )
    return smaller if saved_bytes >= MIN_SAVED_SHARE * sum(tensor.nbytes for tensor in read.values()) else {}


def requantize_header(header: Header, kind: str) -> Header:
    """Return the header that such a copy has, except for the offsets of its tensors."""
    types = choose_tensor_types(header, kind)
    return replace(
        header, tensors={name: _change_type(tensor, types.get(name)) for name, tensor in header.tensors.items()}
    )


def _gets_smaller(tensor: TensorInfo, new_type: GgmlType) -> bool:
    fits = len(tensor.shape) == 2 and tensor.shape[0] % new_type.block_elements == 0
    return fits and tensor.type.name in HEAVY_TYPES and _bytes_as(tensor, new_type) < tensor.nbytes


def _change_type(tensor: TensorInfo, kind: GgmlType | None) -> TensorInfo:
    return tensor if kind is None else replace(tensor, type=kind, nbytes=_bytes_as(tensor, kind))


def _bytes_as(tensor: TensorInfo, kind: GgmlType) -> int:
    return kind.row_bytes(tensor.shape[0]) * (tensor.num_elements // tensor.shape[0])
