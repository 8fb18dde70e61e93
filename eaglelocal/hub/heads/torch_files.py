"""A reader of torch's files (`pytorch_model.bin`), without torch and without running code from the pickle.

Such a file is a zip archive: a pickle that names tensors, and their bytes, uncompressed, beside it. Only the pickle
operations that a plain dictionary of tensors needs are understood; any other name is refused, and nothing is imported
or called for it. The bytes are read later, from their place in the file.
"""

from __future__ import annotations

import math
import os
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from eaglelocal.core.records import dataclass
from eaglelocal.errors import ModelFileError
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.hub.heads.safetensors_files import ITEM_BYTES, MAX_DIMENSIONS, StoredTensor, check_count

MAX_PICKLE_BYTES = 2 << 20  # about 250 for each tensor
MAX_RANK = 16  # of tensors that are parsed; used ones have at most MAX_DIMENSIONS
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip entry: signature, lengths of its name and of its extra field
STORAGES: Mapping[str, str] = MappingProxyType(
    {"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "DoubleStorage": "F64"}
    | {"LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "BoolStorage": "BOOL"}
)
# what the zip reader raises on damaged directories, encrypted entries and unknown compressions
DAMAGED = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OverflowError, struct.error)
CONVERT = "convert it where torch is: torch.load(..., weights_only=True), then safetensors.torch.save_file"


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str


@dataclass(frozen=True, slots=True)
class _View:
    storage: _Storage
    first: int  # element
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_pickled(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one file by name. Raises ModelFileError if it is not a plain dictionary of tensors."""
    if not path.is_file():
        raise malformed_error(path.name, "is not a regular file", hint="")
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            views = _read_views(path, archive, entries.get("data.pkl"))
            check_count(path, len(views))
            return {name: _locate(path, file, name, view, entries) for name, view in views.items()}
    except DAMAGED as error:
        raise malformed_error(path.name, f"not in torch's present format: {error}", hint=CONVERT) from error
    except OSError as error:
        raise malformed_error(path.name, f"cannot be read: {error.strerror}") from error


def _read_views(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo | None) -> dict[str, _View]:
    if entry is None or not _is_stored(entry) or entry.file_size > MAX_PICKLE_BYTES:
        raise malformed_error(path.name, "no archive of torch: it has no data.pkl of a sane size", hint=CONVERT)
    try:
        found = _Interpreter().run(archive.read(entry))
    except ModelFileError as error:
        raise malformed_error(path.name, error.message, hint=CONVERT) from error
    except Exception as error:  # a damaged pickle fails in many ways
        raise malformed_error(path.name, f"its pickle is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(view, _View) for name, view in found.items()
    ):
        raise malformed_error(path.name, NOT_PLAIN, hint=CONVERT)
    return found


def _is_stored(entry: zipfile.ZipInfo) -> bool:
    """Return whether the entry is uncompressed, as torch writes it; a compressed one may expand to any size."""
    return entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size


def _locate(
    path: Path, file: IO[bytes], name: str, view: _View, entries: Mapping[str, zipfile.ZipInfo]
) -> StoredTensor:
    """Return a tensor with the place of its bytes, which must be in order and uncompressed, as torch writes them."""
    entry = entries.get(f"data/{view.storage.key}")
    if entry is None or not _is_stored(entry):
        raise malformed_error(path.name, f"tensor {name} has no bytes of its own", hint=CONVERT)
    item, count = ITEM_BYTES[view.storage.dtype], math.prod(view.shape)
    if not view.shape or len(view.shape) > MAX_DIMENSIONS or not count or not _is_contiguous(view):
        raise malformed_error(path.name, f"tensor {name} {view.shape} does not lie in order", hint=CONVERT)
    if (view.first + count) * item > entry.file_size:
        raise malformed_error(path.name, f"cut short: tensor {name} {view.shape} in {entry.file_size} bytes")
    file.seek(entry.header_offset)
    raw = file.read(LOCAL_HEADER.size)
    if len(raw) != LOCAL_HEADER.size or raw[:4] != b"PK\3\4":
        raise malformed_error(path.name, f"damaged before tensor {name}")
    _, name_bytes, extra_bytes = LOCAL_HEADER.unpack(raw)
    start = entry.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes + view.first * item
    if start + count * item > os.fstat(file.fileno()).st_size:  # the archive's directory may state anything
        raise malformed_error(path.name, f"cut short: tensor {name} {view.shape} ends behind the file")
    return StoredTensor(name, view.storage.dtype, view.shape, path, start, count * item)


def _is_contiguous(view: _View) -> bool:
    expected = 1
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


# ---- pickle interpreter: an interpreter of the part of pickle that dictionaries of tensors use, in time and memory
# of the pickle's length
#
# A few hundred bytes can keep Python's own reader busy for ages: nested tuples, each containing the next one twice, are
# hashed again each time they are a key. Here keys are texts, nothing else is hashed or compared, and unknown operations
# are refused. Only the functions below are called, with few arguments.
MAX_ARGUMENTS = 16
NOT_PLAIN = "no plain dictionary of tensors"


class _Interpreter:
    """An interpreter of one pickle."""

    def __init__(self) -> None:
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self, raw: bytes) -> object:
        """Return the pickle's object. Raises ModelFileError, and IndexError, KeyError or ValueError on damage."""
        for opcode, argument, _ in pickletools.genops(raw):
            if opcode.name == "STOP":
                return self.stack.pop()
            if opcode.name not in OPERATIONS:
                raise ModelFileError(f"its pickle does what no dictionary of tensors needs ({opcode.name})")
            OPERATIONS[opcode.name](self, argument)
        raise ValueError("no end")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self, count: int | None = None) -> list[object]:
        """Return the topmost values; None: those since the last mark."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        if start < 0:
            raise IndexError("nothing is left")
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def extend(self, items: list[object]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("no list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[object]) -> None:
        target, keys = self.stack[-1], items[::2]
        if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, str) for key in keys):
            raise ModelFileError(NOT_PLAIN)
        target.update(zip(keys, items[1::2], strict=True))

    def ignore_state(self) -> None:
        """Drop a dictionary's state besides its items (torch: versions of modules), which is not needed."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict):
            raise ValueError("no dictionary")


def _find_known(module: object, name: object) -> object:
    """Return the object for one of the few names that a dictionary of tensors needs."""
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("no name")
    if module == "torch" and name in STORAGES:
        return STORAGES[name]
    try:
        return FUNCTIONS[module, name]
    except KeyError:
        raise ModelFileError(f"its pickle asks for {module}.{name}, which no tensor needs") from None


def _parse_storage(pid: object) -> _Storage:
    match pid:
        case ("storage", str() as dtype, str() as key, _, int()) if dtype in ITEM_BYTES:
            return _Storage(dtype, key)
    raise ModelFileError("its pickle refers to what is no storage of a known type")


def _call(function: object, arguments: object) -> object:
    if not callable(function) or not isinstance(arguments, tuple) or len(arguments) > MAX_ARGUMENTS:
        raise ValueError("no call")
    return function(*arguments)


def _make_dictionary() -> dict[str, object]:
    """Return an empty dictionary; one of given pairs would be hashed."""
    return {}


def _rebuild_view(storage: object, first: object, shape: object, strides: object, *rest: object) -> _View:
    match storage, first, shape, strides:
        case _Storage(), int(), tuple(), tuple() if len(shape) == len(strides) <= MAX_RANK and all(
            _is_count(size) for size in (first, *shape, *strides)
        ):
            return _View(storage, first, shape, strides)
    raise ModelFileError("a tensor of its pickle makes no sense")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48


FUNCTIONS: Mapping[tuple[str, str], Callable[..., object]] = {
    ("collections", "OrderedDict"): _make_dictionary,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_view,
    ("torch._utils", "_rebuild_parameter"): lambda view, *rest: view,
}
Operation = Callable[[_Interpreter, Any], object]
OPERATIONS: Mapping[str, Operation] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, argument: None),
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
            *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        ),
        _Interpreter.push,
    ),
    "NONE": lambda machine, argument: machine.push(None),
    "NEWTRUE": lambda machine, argument: machine.push(True),
    "NEWFALSE": lambda machine, argument: machine.push(False),
    "EMPTY_TUPLE": lambda machine, argument: machine.push(()),
    "EMPTY_LIST": lambda machine, argument: machine.push([]),
    "EMPTY_DICT": lambda machine, argument: machine.push({}),
    "TUPLE1": lambda machine, argument: machine.push(tuple(machine.pop(1))),
    "TUPLE2": lambda machine, argument: machine.push(tuple(machine.pop(2))),
    "TUPLE3": lambda machine, argument: machine.push(tuple(machine.pop(3))),
    "TUPLE": lambda machine, argument: machine.push(tuple(machine.pop())),
    "MARK": lambda machine, argument: machine.marks.append(len(machine.stack)),
    "APPEND": lambda machine, argument: machine.extend(machine.pop(1)),
    "APPENDS": lambda machine, argument: machine.extend(machine.pop()),
    "SETITEM": lambda machine, argument: machine.set_items(machine.pop(2)),
    "SETITEMS": lambda machine, argument: machine.set_items(machine.pop()),
    "MEMOIZE": lambda machine, argument: machine.memo.__setitem__(len(machine.memo), machine.stack[-1]),
    **dict.fromkeys(
        ("PUT", "BINPUT", "LONG_BINPUT"),
        lambda machine, argument: machine.memo.__setitem__(argument, machine.stack[-1]),
    ),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, argument: machine.push(machine.memo[argument])),
    "GLOBAL": lambda machine, argument: machine.push(_find_known(*argument.split(" ", 1))),
    "STACK_GLOBAL": lambda machine, argument: machine.push(_find_known(*machine.pop(2))),
    "BINPERSID": lambda machine, argument: machine.push(_parse_storage(machine.stack.pop())),
    "REDUCE": lambda machine, argument: machine.push(_call(*machine.pop(2))),
    "BUILD": lambda machine, argument: machine.ignore_state(),
}
