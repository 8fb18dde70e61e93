"""The parts of a model that is split into several files: which part a file is, and the paths of the others.

llama.cpp names them `NAME-00001-of-00003.gguf` and opens the first; the keys split.no (from zero) and
split.count say the same inside. Uses names and keys, opens nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.values import Value

MAX_SHARDS = 1024
_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def split_place(path: Path, metadata: Mapping[str, Value]) -> tuple[int, int]:
    """Return (index from zero, number of parts); (0, 1) for an unsplit file.

    Raises ModelFileError on impossible numbers.
    """
    count = _count(path, metadata, "split.count", default=1)
    index = _count(path, metadata, "split.no", default=0)
    if count > MAX_SHARDS:
        raise malformed_error(path.name, f"claims to be one of {count} parts, more than the limit of {MAX_SHARDS}")
    if index >= max(count, 1):
        raise malformed_error(path.name, f"says it is part {index + 1} of {count}")
    return index, max(count, 1)


def _count(path: Path, metadata: Mapping[str, Value], key: str, *, default: int) -> int:
    value = metadata.get(key, default)
    if not isinstance(value, int) or value < 0:
        raise malformed_error(path.name, f"{key} is {value!r}, not a count")
    return value


def following_paths(path: Path, metadata: Mapping[str, Value]) -> tuple[Path, ...]:
    """Return the other parts of the model whose first part is `path`. Raises ModelFileError on a later part."""
    index, count = split_place(path, metadata)
    if count == 1:
        return ()
    named = _NAME.fullmatch(path.name)
    if named is None or int(named["count"]) != count or int(named["number"]) != index + 1:
        raise malformed_error(
            path.name,
            f"is part {index + 1} of {count}, but its name does not say so",
            hint=f"name the parts NAME-00001-of-{count:05}.gguf and so on",
        )
    if index:
        raise malformed_error(
            path.name, f"is part {index + 1} of {count}", hint=f"give the first: {_part(path, named['stem'], 1, count)}"
        )
    return tuple(_part(path, named["stem"], number, count) for number in range(2, count + 1))


def list_named_parts(path: Path) -> tuple[Path, ...]:
    """Return all parts of a model by the name of one, whether or not they exist; the file alone if it is not split."""
    named = _NAME.fullmatch(path.name)
    count = int(named["count"]) if named else 1
    if named is None or not 1 < count <= MAX_SHARDS:
        return (path,)
    return tuple(_part(path, named["stem"], number, count) for number in range(1, count + 1))


def _part(path: Path, stem: str, number: int, count: int) -> Path:
    return path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf")
