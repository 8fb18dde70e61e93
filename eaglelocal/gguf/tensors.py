"""Tensor data as numpy arrays, read from files and made ready to be written.

F32, F16 and BF16 are decoded here; other types, and all types for writing, are the `gguf` package's, imported only
then. Whole tensors are meant to be small (norms, vocabulary maps, heads, the embedded model); of others, read rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME, GgmlType
from eaglelocal.gguf.header import Header, TensorInfo, find_integers, find_tensor, read_bytes, read_parts
from eaglelocal.gguf.writer import StreamedTensor

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

COPIED_BYTES = 16 << 20  # of a tensor that is copied, at once


def read_tensor(header: Header, name: str) -> Floats:
    """Read the tensor as float32, in numpy's order of dimensions (rows, columns).

    Raises ModelFileError where the tensor is missing, cut short or of a type that cannot be decoded.
    """
    tensor = find_tensor(header, name)
    raw = read_bytes(header, tensor)
    return _decode(header, tensor, raw).reshape(tensor.shape[::-1])


def read_rows(header: Header, name: str, rows: Sequence[int]) -> Floats:
    """Read some rows of a matrix as float32 [rows, columns], without reading the others. Raises as read_tensor does."""
    tensor = find_tensor(header, name)
    if len(tensor.shape) != 2 or not all(0 <= row < tensor.shape[1] for row in rows):
        raise malformed_error(header.path.name, f"tensor {name} {tensor.shape} has no rows {list(rows)[:8]}")
    row_bytes = tensor.type.row_bytes(tensor.shape[0])
    raw = read_parts(header, tensor, [row * row_bytes for row in rows], row_bytes)
    return _decode(header, tensor, raw).reshape(len(rows), tensor.shape[0])


def read_indices(header: Header, name: str) -> Ints:
    """Read an integer tensor (I64 or I32), such as `d2t`. Raises ModelFileError on any other type."""
    tensor = find_integers(header, name)
    raw = read_bytes(header, tensor)
    numbers = np.frombuffer(raw, "<i8" if tensor.type.name == "I64" else "<i4")
    return numbers.astype(np.int64).reshape(tensor.shape[::-1])


def read_span(header: Header, name: str, first: int, end: int) -> Floats:
    """Read rows first..end-1 of a matrix as float32 [rows, columns]. Raises as read_tensor does."""
    tensor = find_tensor(header, name)
    row_bytes = tensor.type.row_bytes(tensor.shape[0])
    part = replace(tensor, offset=tensor.offset + first * row_bytes, nbytes=(end - first) * row_bytes)
    return _decode(header, part, read_bytes(header, part)).reshape(end - first, tensor.shape[0])


def read_raw_pieces(header: Header, name: str, piece_bytes: int) -> Iterator[Bytes]:
    """Yield the tensor's bytes undecoded, `piece_bytes` at a time. Raises as read_tensor does."""
    tensor = find_tensor(header, name)
    for start in range(0, tensor.nbytes, piece_bytes):
        size = min(piece_bytes, tensor.nbytes - start)
        part = replace(tensor, offset=tensor.offset + start, nbytes=size)
        yield np.frombuffer(read_bytes(header, part), np.uint8)


def _decode(header: Header, tensor: TensorInfo, raw: bytes) -> Floats:
    match tensor.type.name:
        case "F32":
            return np.frombuffer(raw, "<f4").astype(np.float32)
        case "F16":
            return np.frombuffer(raw, "<f2").astype(np.float32)
        case "BF16":
            return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        case other:
            return _decode_quantized(header, tensor, raw, other)


def _decode_quantized(header: Header, tensor: TensorInfo, raw: bytes, type_name: str) -> Floats:
    """Decode with the `gguf` package. It gets the data as rows, so it decodes a few at a time, which saves memory."""
    from gguf.constants import GGMLQuantizationType  # slow to import
    from gguf.quants import dequantize

    unreadable = malformed_error(header.path.name, f"tensor {tensor.name}: cannot decode {type_name}", hint="")
    if type_name not in GGMLQuantizationType.__members__:  # llama.cpp has types that the package lacks
        raise unreadable
    try:
        rows = np.frombuffer(raw, np.uint8).reshape(-1, tensor.type.row_bytes(tensor.shape[0]))
        numbers = dequantize(rows, GGMLQuantizationType[type_name])
    except NotImplementedError as error:  # a type that the package only names, such as Q8_1
        raise unreadable from error
    return np.asarray(numbers, np.float32)


# ---- tensors to write
def encode_rows(values: Floats, kind: GgmlType) -> Bytes:
    """Encode [rows, columns] floats as [rows, row bytes]; columns are a multiple of the type's block."""
    from gguf.constants import GGMLQuantizationType  # slow to import
    from gguf.quants import quantize

    encoded = quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType(kind.id))
    return np.ascontiguousarray(encoded).view(np.uint8)


def stream_vector(name: str, values: Floats) -> StreamedTensor:
    """Return a norm, or factors, in F32, as llama.cpp needs them."""
    flat = np.ascontiguousarray(values.reshape(-1), np.float32)
    return StreamedTensor(name, flat.shape, GGML_TYPES_BY_NAME["F32"], lambda: iter([flat.view(np.uint8)]))


def stream_indices(name: str, values: Ints) -> StreamedTensor:
    flat = np.ascontiguousarray(values, np.int64)
    return StreamedTensor(name, flat.shape, GGML_TYPES_BY_NAME["I64"], lambda: iter([flat.view(np.uint8)]))


def stream_copy(source: Header, tensor: TensorInfo, name: str) -> StreamedTensor:
    """Return a tensor of another file, as it is, under this name."""
    pieces = partial(read_raw_pieces, source, tensor.name, COPIED_BYTES)
    return StreamedTensor(name, tensor.shape, tensor.type, pieces)
