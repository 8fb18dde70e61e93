"""The choice of an EAGLE head's tensors that are quantized further than in the published file.

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
LEAST_BYTES = 8 << 20  # of a head: a smaller one fits the CPU's caches in any type
HEAVY_TYPES = frozenset({"F32", "F16", "BF16", "Q8_0"})
LEAST_GAIN = 0.2  # share of the bytes read per token
EMBEDDING = "token_embd.weight"  # one row is read per token, so its bits cost memory, not time
EMBEDDING_TYPE = GGML_TYPES_BY_NAME["Q8_0"]


def requantized_type(asked: str) -> str:
    """Return the quantization that a setting means: `auto` is BEST_TYPE, anything else is itself."""
    return BEST_TYPE if asked == "auto" else asked


def requantized_types(header: Header, kind: str) -> Mapping[str, GgmlType]:
    """Return the new types, by tensor name, of a copy quantized to `kind`; empty if there should be no copy."""
    if kind == AS_IN_FILE or header.metadata.get("general.architecture") != EAGLE or header.tensor_bytes < LEAST_BYTES:
        return {}
    wanted = GGML_TYPES_BY_NAME[kind.upper()]
    types = {name: EMBEDDING_TYPE if name == EMBEDDING else wanted for name in header.tensors}
    lighter = {name: light for name, light in types.items() if _gets_lighter(header.tensors[name], light)}
    read = {name: tensor for name, tensor in header.tensors.items() if name != EMBEDDING}
    gained = sum(read[name].nbytes - _bytes_as(read[name], light) for name, light in lighter.items() if name in read)
    return lighter if gained >= LEAST_GAIN * sum(tensor.nbytes for tensor in read.values()) else {}


def requantize_header(header: Header, kind: str) -> Header:
    """Return the header that such a copy has, except for the offsets of its tensors."""
    types = requantized_types(header, kind)
    return replace(header, tensors={name: _as(tensor, types.get(name)) for name, tensor in header.tensors.items()})


def _gets_lighter(tensor: TensorInfo, light: GgmlType) -> bool:
    fits = len(tensor.shape) == 2 and tensor.shape[0] % light.block_elements == 0
    return fits and tensor.type.name in HEAVY_TYPES and _bytes_as(tensor, light) < tensor.nbytes


def _as(tensor: TensorInfo, kind: GgmlType | None) -> TensorInfo:
    return tensor if kind is None else replace(tensor, type=kind, nbytes=_bytes_as(tensor, kind))


def _bytes_as(tensor: TensorInfo, kind: GgmlType) -> int:
    return kind.row_bytes(tensor.shape[0]) * (tensor.num_elements // tensor.shape[0])
