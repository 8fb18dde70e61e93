"""A writer of safetensors files whose tensors arrive in pieces, so that a head of any size needs little memory.

A head of several gigabytes is split into shards with an index, as hubs and readers expect. What a tensor means is not
known here; safetensors_files.py reads such files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.writer import write_pieces
from eaglelocal.hub.heads.safetensors_files import ITEM_BYTES

if TYPE_CHECKING:
    from eaglelocal.gguf.writer import Bytes

SHARD_BYTES = 5_000_000_000  # as transformers splits
HEADER_MULTIPLE = 8  # bytes to which the header is padded with spaces, so that the data is aligned
ONE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class OutgoingTensor:
    """A tensor to write; `pieces` gives its bytes in order.

    dtype  as safetensors names it, such as BF16
    shape  numpy's order: (rows, columns)
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Bytes]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def write_shards(
    folder: Path, tensors: Sequence[OutgoingTensor], *, on_bytes: OnBytes, shard_bytes: int = SHARD_BYTES
) -> list[Path]:
    """Write the tensors into one file, or several and their index, and return the files with tensors.

    on_bytes     called with the size of each piece written
    shard_bytes  the most data in a file, unless a single tensor has more

    Raises OSError.
    """
    shards = split_tensors(tensors, shard_bytes)
    if len(shards) == 1:
        write_safetensors(folder / ONE_FILE, tensors, on_bytes=on_bytes)
        return [folder / ONE_FILE]
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_safetensors(folder / name, shard, on_bytes=on_bytes)
    places = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(tensor.nbytes for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [folder / name for name in names]


def split_tensors(tensors: Sequence[OutgoingTensor], shard_bytes: int) -> list[list[OutgoingTensor]]:
    """Split tensors, in their order, into shards of at most `shard_bytes`; a larger tensor has one of its own."""
    shards: list[list[OutgoingTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return shards


def write_safetensors(path: Path, tensors: Sequence[OutgoingTensor], *, on_bytes: OnBytes) -> None:
    """Write one file. Raises OSError."""
    with path.open("xb") as file:
        file.write(make_header(tensors))
        for tensor in tensors:
            write_pieces(file, tensor, on_bytes)


def make_header(tensors: Sequence[OutgoingTensor]) -> bytes:
    """Return the length of the header in eight bytes, and the header."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
    begin = 0
    for tensor in tensors:
        end = begin + tensor.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_MULTIPLE)
    return len(text).to_bytes(8, "little") + text
