"""Read a tensor's raw bytes and the range of integer tensors; without numpy, so that planning is quick.

tensors.py decodes them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.header import Header, TensorInfo


def read_index_range(path: Path, header: Header, name: str) -> tuple[int, int]:
    """Return the smallest and the largest element of an integer tensor (I64 or I32), such as `d2t`.

    Raises ModelFileError on any other type.
    """
    tensor = find_integers(path, header, name)
    spelled = "q" if tensor.type.name == "I64" else "i"
    numbers = struct.unpack(f"<{tensor.num_elements}{spelled}", read_bytes(path, header, tensor))
    return min(numbers), max(numbers)


def find_integers(path: Path, header: Header, name: str) -> TensorInfo:
    """Return the entry of an integer tensor. Raises ModelFileError if it is missing, or of another type."""
    tensor = find_tensor(path, header, name)
    if tensor.type.name not in ("I64", "I32"):
        raise malformed_error(path.name, f"tensor {name} is {tensor.type.name}, not integers")
    return tensor


def find_tensor(path: Path, header: Header, name: str) -> TensorInfo:
    """Return the entry of a tensor. Raises ModelFileError if it is missing."""
    if name not in header.tensors:
        raise malformed_error(path.name, f"has no tensor {name}")
    return header.tensors[name]


def read_bytes(path: Path, header: Header, tensor: TensorInfo) -> bytes:
    """Return the tensor's bytes, undecoded. Raises ModelFileError where they are cut short."""
    return read_parts(path, header, tensor, [0], tensor.nbytes)


def read_parts(path: Path, header: Header, tensor: TensorInfo, starts: Sequence[int], num_bytes: int) -> bytes:
    """Read `num_bytes` bytes from each of these offsets in the tensor, and join them."""
    shard = header.shards[tensor.shard]
    source = path if tensor.shard == 0 else shard.path
    try:
        with source.open("rb") as file:
            raw = b"".join(_read(file, shard.data_offset + tensor.offset + start, num_bytes) for start in starts)
    except OSError as error:
        raise malformed_error(source.name, f"cannot be read: {error.strerror}") from error
    if len(raw) != len(starts) * num_bytes:
        raise malformed_error(
            source.name, f"cut short: tensor {tensor.name} has {len(raw)} of {len(starts) * num_bytes} bytes"
        )
    return raw


def _read(file: BinaryIO, part: int, num_bytes: int) -> bytes:
    file.seek(part)
    return file.read(num_bytes)
