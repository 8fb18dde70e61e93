"""Rules of llama.cpp for the data section of a GGUF: sizes, alignment and order of tensors.

Pure checks on numbers. Tensors follow each other in the order of their entries, each padded to the
alignment. llama.cpp refuses anything else; so do these checks, with the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.ggml_types import GGML_TYPES, REMOVED_TYPES, GgmlType
from eaglelocal.gguf.header import TensorInfo

MAX_ELEMENTS = 2**63 - 1


def round_up(num_bytes: int, alignment: int) -> int:
    return -(-num_bytes // alignment) * alignment


def tensor_type(type_id: int, *, file: str, tensor: str) -> GgmlType:
    kind = GGML_TYPES.get(type_id)
    if kind is None:
        why = f"removed type {REMOVED_TYPES[type_id]}" if type_id in REMOVED_TYPES else f"unknown type {type_id}"
        raise malformed_error(
            file, f"tensor {tensor} has {why}", hint="convert the model again with a current llama.cpp"
        )
    return kind


def tensor_bytes(shape: tuple[int, ...], kind: GgmlType, *, file: str, tensor: str) -> int:
    """Return the bytes of a tensor. Raises ModelFileError on empty dimensions, overflow and incomplete blocks."""
    num_elements = 1
    for size in shape:
        num_elements *= size
        if not 0 < num_elements <= MAX_ELEMENTS:
            raise malformed_error(file, f"tensor {tensor} has the impossible shape {shape}")
    columns = shape[0] if shape else 1
    if columns % kind.block_elements:
        raise malformed_error(
            file, f"tensor {tensor} has rows of {columns}, not a multiple of {kind.name}'s block {kind.block_elements}"
        )
    return kind.row_bytes(columns) * (num_elements // columns)


def check_layout(tensors: Sequence[TensorInfo], *, alignment: int, data_bytes: int, file: str) -> None:
    """Check that every tensor is aligned, inside the file, and begins where the one before it ends.

    Raises ModelFileError with the offsets.
    """
    expected, previous = 0, "the start"
    for tensor in tensors:
        end = tensor.offset + tensor.nbytes
        if tensor.offset % alignment:
            raise malformed_error(
                file, f"tensor {tensor.name} has offset {tensor.offset}, not a multiple of {alignment}"
            )
        if end > data_bytes:
            raise malformed_error(
                file, f"cut short: tensor {tensor.name} ends at byte {end} of the data, but it has {data_bytes}"
            )
        if tensor.offset < expected:
            raise malformed_error(file, f"tensor {tensor.name} at offset {tensor.offset} overlaps {previous}")
        if tensor.offset > expected:
            raise malformed_error(file, f"tensor {tensor.name} has offset {tensor.offset}, expected {expected}")
        expected, previous = round_up(end, alignment), tensor.name
