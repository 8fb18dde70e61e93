"""Valid GGUF files with errors: noise anywhere in the header, or one number at a time changed to an extreme."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np

WRAPPING = 2**26 + 1  # times 64, the width of a head, it is 64 again in 32 bits
EXTREMES = (65_535, 2**24, WRAPPING, 2**31 - 1, 2**32 - 1)
COUNTS = (0, 1, 2, 3, 5, 31, 32, 33, 48, 63, 65, 127, 128, 255, 511, 513, 1000, *EXTREMES)
REALS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), -float("inf"))
TYPE_IDS = range(43)
Change = tuple[str, bytes]  # what was changed, and the file


def corrupted(content: bytes, header_bytes: int, rng: np.random.Generator) -> bytes:
    """Return the file with a flipped bit, a run of noise, an extreme count, or a piece cut out, in its header."""
    data = bytearray(content)
    at = int(rng.integers(0, header_bytes))
    match int(rng.integers(0, 4)):
        case 0:
            data[at] ^= 1 << int(rng.integers(0, 8))
        case 1:
            run = rng.bytes(int(rng.integers(1, 32)))
            data[at : at + len(run)] = run
        case 2:
            extreme = (0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)[int(rng.integers(0, 7))]
            data[at : at + 8] = struct.pack("<Q", extreme)
        case _:
            del data[at : at + int(rng.integers(1, 64))]
    return bytes(data)


def changed_figures(
    path: Path, *, counts: Sequence[int] = COUNTS, type_ids: Sequence[int] = TYPE_IDS
) -> Iterator[Change]:
    """Yield the file with each number of its keys, each key's name, each tensor's name, shape and type changed."""
    content, reader = path.read_bytes(), gguf.GGUFReader(path)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF."):
            yield from _changed_values(content, field, counts)
            yield f"without {field.name}", _put(content, field.offset + 8, b"X")
    for tensor in reader.tensors:
        yield from _changed_tensor(content, tensor.field, type_ids)


def _put(content: bytes, at: int, new: bytes) -> bytes:
    return content[:at] + new + content[at + len(new) :]


def _offset_of(field: gguf.ReaderField, part: int) -> int:
    return int(field.offset + sum(earlier.nbytes for earlier in field.parts[:part]))


def _changed_values(content: bytes, field: gguf.ReaderField, counts: Sequence[int]) -> Iterator[Change]:
    """Scalars; of arrays the first and the last element."""
    for part in dict.fromkeys((field.data[0], field.data[-1])):
        kind = field.parts[part].dtype
        for value in _extremes(kind, counts):
            raw = np.array([value]).astype(kind).tobytes()
            yield f"{field.name}[{part}] = {value}", _put(content, _offset_of(field, part), raw)


def _extremes(kind: np.dtype, counts: Sequence[int]) -> Sequence[float]:
    if kind.kind == "f":
        return REALS
    if kind == np.uint8 or kind.kind == "b":  # a letter of a string, or a bool
        return (0, 1)
    limits = np.iinfo(kind)
    return [n for n in (*counts, -1, -(2**31)) if limits.min <= n <= limits.max]


def _changed_tensor(content: bytes, field: gguf.ReaderField, type_ids: Sequence[int]) -> Iterator[Change]:
    name, dimensions, shape, kind = (_offset_of(field, part) for part in (1, 2, 3, 4))
    label, sizes = bytes(field.parts[1]).decode(), field.parts[3].tolist()
    yield f"{label} renamed", _put(content, name, b"X")
    for count in range(5):
        yield f"{label} of {count} dimensions", _put(content, dimensions, struct.pack("<I", count))
    if len(sizes) == 2:
        for new in (sizes[::-1], (sizes[0] * sizes[1], 1), (1, sizes[0] * sizes[1])):
            yield f"{label} of shape {new}", _put(content, shape, struct.pack("<2Q", *new))
    for type_id in type_ids:
        yield f"{label} of type {type_id}", _put(content, kind, struct.pack("<I", type_id))


# ---- whole entries: other types, other lengths, and keys that the file does not have
def _number(kind: int, packing: str, value: float) -> tuple[str, bytes]:
    return f"{value} as type {kind}", struct.pack("<I" + packing, kind, value)


def _array(kind: int, packing: str, *values: float) -> tuple[str, bytes]:
    shown = f"{list(values)[:3]} ({len(values)})"
    return f"{shown} of type {kind}", struct.pack(f"<IIQ{len(values)}{packing}", 9, kind, len(values), *values)


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


VALUES: tuple[tuple[str, bytes], ...] = (  # of any key: what it is, and the entry's bytes behind its name
    *(_number(4, "I", value) for value in (0, 1, 2, 3, 5, 31, 64, 65_535, 2**31 - 1, 2**31, 2**32 - 1)),
    *(_number(6, "f", value) for value in (0.0, 0.5, -1.0, 1e30, float("nan"), float("inf"))),
    _number(0, "B", 1),
    _number(5, "i", -1),
    _number(7, "?", True),
    _number(10, "Q", 2**63),
    _number(11, "q", -1),
    _number(12, "d", -1.0),
    ("an empty text", struct.pack("<I", 8) + _text(b"")),
    ("a text", struct.pack("<I", 8) + _text(b"x\xff\n")),
    *(_array(kind, packing) for kind, packing in ((4, "I"), (5, "i"), (6, "f"), (7, "?"), (0, "B"))),
    _array(4, "I", 0),
    _array(4, "I", *[2**32 - 1] * 4),
    _array(4, "I", *range(600)),
    _array(5, "i", *[-1] * 4),
    _array(6, "f", *[float("nan")] * 4),
    _array(7, "?", True),
    ("an empty array of texts", struct.pack("<IIQ", 9, 8, 0)),
    ("an array of a text", struct.pack("<IIQ", 9, 8, 1) + _text(b"x")),
)


def known_keys(architecture: str) -> list[str]:
    """Return every key that the gguf package knows, for this architecture."""
    found: list[str] = []
    rooms = [gguf.constants.Keys]
    while rooms:
        for value in vars(rooms.pop()).values():
            if isinstance(value, type):
                rooms.append(value)
            elif isinstance(value, str) and "." in value and not value.startswith("gguf."):
                found.append(value.replace("{arch}", architecture))
    return list(dict.fromkeys(found))


def changed_entries(path: Path, architecture: str, keys: Collection[str] = ()) -> Iterator[Change]:
    """Yield the file with each key that it has, or could have, set to each of VALUES; `keys`: only these."""
    content, reader = path.read_bytes(), gguf.GGUFReader(path)
    fields, data = reader.fields, content[reader.data_offset :]
    own = {name: field for name, field in fields.items() if not name.startswith("GGUF.")}
    ends = {name: field.offset + sum(part.nbytes for part in field.parts) for name, field in own.items()}
    behind = max(ends.values())
    last = reader.tensors[-1].field
    tensors = content[behind : last.offset + sum(part.nbytes for part in last.parts)]
    for key in keys or dict.fromkeys([*own, *known_keys(architecture)]):
        start, end = (own[key].offset, ends[key]) if key in own else (behind, behind)
        for label, raw in VALUES:
            head = content[:start] + _text(key.encode()) + raw + content[end:behind]
            yield f"{key} = {label}", _whole(head, tensors, data, num_more=int(key not in own))


def _whole(head: bytes, tensors: bytes, data: bytes, *, num_more: int) -> bytes:
    """The file again, with its data at the place that follows from where the header ends now."""
    (count,) = struct.unpack_from("<Q", head, 16)
    head = _put(head, 16, struct.pack("<Q", count + num_more)) + tensors
    return head + bytes(-len(head) % 32) + data
