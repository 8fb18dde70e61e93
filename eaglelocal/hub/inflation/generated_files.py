"""Models made from other files: the plan of a generated file, and the folder in which generated files are written.

A plan has the keys, the tensors, and the header that the file will have, which serves planning: so planning needs no
file that may take gigabytes. In the folder files appear whole or not at all, and one process at a time writes. They are
written under a temporary name and renamed when complete. A temporary file that a process finds while it holds
the lock was left by one that died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from eaglelocal.core.amounts import format_disk
from eaglelocal.core.atomic_file import SHARED, make_folder
from eaglelocal.core.own_files import hold_lock
from eaglelocal.core.records import dataclass
from eaglelocal.errors import ResourceError
from eaglelocal.gguf.ggml_types import FILE_TYPE_IDS, GGML_TYPES_BY_NAME, GgmlType
from eaglelocal.gguf.header import ArrayValue, Header, TensorInfo
from eaglelocal.gguf.writer import (
    LAYOUT_KEYS,
    GgufPart,
    KeyValue,
    StreamedTensor,
    copy_entries,
    max_file_bytes,
    write_streamed,
)
from eaglelocal.probe.probe import free_bytes

SPARE_DISK_BYTES = 256 << 20  # to be left free
_TEMPORARY = ".partial"
_PARTIALS = f"*.gguf{_TEMPORARY}"
_LOCK = ".inflate.lock"

Progress = Callable[[float, str], None]  # fraction 0..1, what is being done


def no_progress(fraction: float, what: str) -> None:
    """Ignore the progress of writing a model."""


@contextmanager
def hold_folder(folder: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold the lock of this folder, and clear its partial files. The lock ends with the process, however that ends.

    Raises ResourceError if the folder cannot be written; BlockingIOError if another process holds it and this one does
    not wait.
    """
    with ExitStack() as held:
        try:
            make_folder(folder, SHARED)
            held.enter_context(hold_lock(folder / _LOCK, waits=waits))
        except BlockingIOError:
            raise
        except OSError as error:
            raise ResourceError(
                f"cannot write in {folder}: {error.strerror}", hint="set XDG_CACHE_HOME to a folder that can be written"
            ) from error
        _remove_partial(folder)
        try:
            yield
        finally:
            _remove_partial(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove the files of killed processes, which may take gigabytes; do nothing while a process writes."""
    if any(folder.glob(_PARTIALS)):
        with suppress(ResourceError, BlockingIOError), hold_folder(folder, waits=False):
            pass


def make_partial_path(path: Path) -> Path:
    return path.with_name(path.name + _TEMPORARY)


def check_disk(what: str, needed_bytes: int, folder: Path, *, hint: str) -> None:
    """Raise ResourceError if needed_bytes do not fit in the folder beside SPARE_DISK_BYTES."""
    needed, free = needed_bytes + SPARE_DISK_BYTES, free_bytes(folder)
    if needed > free:
        raise ResourceError(f"{what} takes {format_disk(needed)} on disk, {format_disk(free)} are free", hint=hint)


def write_plan(plan: FilePlan, path: Path, on_bytes: Callable[[int], None]) -> None:
    """Write a file. Raises ResourceError if the disk is full or cannot be written."""
    try:
        write_streamed(path, [GgufPart(plan.architecture, plan.entries, plan.tensors)], on_bytes)
    except OSError as error:
        raise ResourceError(
            f"cannot write {path.name}: {error.strerror}", hint="see that the disk has room and is not read-only"
        ) from error


def _remove_partial(folder: Path) -> None:
    for path in folder.glob(_PARTIALS):
        if path.is_file():  # a folder of that name is not ours
            path.unlink(missing_ok=True)


# ---- file plan
ARCHITECTURE_KEY = "general.architecture"
FILE_TYPE_KEY = "general.file_type"
# what llama.cpp's quantizer gives most matrices, and (second) embeddings and output
_MAIN_TYPES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "f32": ("F32", "F32"), "f16": ("F16", "F16"), "q4_0": ("Q4_0", "Q6_K"), "q4_1": ("Q4_1", "Q6_K"),
        "q8_0": ("Q8_0", "Q8_0"), "q5_0": ("Q5_0", "Q6_K"), "q5_1": ("Q5_1", "Q6_K"), "q2_k": ("Q2_K", "Q6_K"),
        "q3_k_s": ("Q3_K", "Q6_K"), "q3_k_m": ("Q3_K", "Q6_K"), "q3_k_l": ("Q3_K", "Q6_K"), "q4_k_s": ("Q4_K", "Q6_K"),
        "q4_k_m": ("Q4_K", "Q6_K"), "q5_k_s": ("Q5_K", "Q6_K"), "q5_k_m": ("Q5_K", "Q6_K"), "q6_k": ("Q6_K", "Q6_K"),
        "iq4_nl": ("IQ4_NL", "Q6_K"), "iq4_xs": ("IQ4_XS", "Q6_K"), "bf16": ("BF16", "BF16"),
    }
)  # fmt: skip
QUANTIZABLE = tuple(_MAIN_TYPES)  # types that a file can be quantized to
# what it gives rows that are not whole blocks of these
_STAND_INS: Mapping[str, str] = MappingProxyType(
    {
        "Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    }
)  # fmt: skip
_INTEGERS = frozenset({"I32", "I64"})
_IN_AND_OUT = frozenset({"token_embd.weight", "output.weight"})


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file to write: the keys of `source` but for those in `changed`, and its tensors."""

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

        kind  the type that it will be quantized to; None: none. The types of some tensors are then a guess.
        """
        tensors = {one.name: self._find_indices(one) or _sketch_tensor(one, kind) for one in self.tensors}
        before, types = self.source.metadata, {entry.key: entry.type for entry in self.changed}
        metadata = {key: value for key, value in before.items() if key == ARCHITECTURE_KEY or key not in LAYOUT_KEYS}
        for entry in self.changed:
            old = before.get(entry.key)
            if not isinstance(entry.value, tuple):
                metadata[entry.key] = entry.value
            elif isinstance(old, ArrayValue):
                metadata[entry.key] = replace(old, count=len(entry.value))
        if kind is not None:
            metadata[FILE_TYPE_KEY] = FILE_TYPE_IDS[kind]
        first = self.source.shards[0]
        num_bytes = sum(tensor.nbytes for tensor in tensors.values()) + first.data_offset
        return replace(
            self.source,
            metadata=MappingProxyType(metadata),
            value_types=MappingProxyType({**self.source.value_types, **types}),
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
