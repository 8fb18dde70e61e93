"""The KV cells of a context, and what llama.cpp's log says of its memory: what lies there, or would lie.

Knows the log lines of the pinned build. A plan (rehearsal.py) names layers and their devices but weighs no weights,
so those are weighed from the file's header.
"""

from __future__ import annotations

import ctypes as C
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter

from eaglelocal.backend.fit import RAM, Buffer, Kind
from eaglelocal.backend.library import Library, Log
from eaglelocal.errors import EngineError
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.gguf.shape import block_of, is_expert, is_input

BUFFER_LINE = re.compile(r"(\S+)\s+(model|KV|compute|output|RS)\s+buffer size\s*=\s*([\d.]+)\s*MiB")
LAYER_LINE = re.compile(r"load_tensors: layer\s+(\d+) assigned to device ([^,]+),")
CACHE_LAYER_LINE = re.compile(r"layer\s+\d+: dev = (\S+)")
CACHE_SIZE_LINE = re.compile(r"size =\s*([\d.]+) MiB \(\s*\d+ cells,")  # of the layers named before it
MIB = 2**20
UNCUTTABLE = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class Cells:
    """Removal, sharing and bounds of sequences; implements core.ports.Cache.

    llama.cpp looks at every cell for each of them, and a step asks once for each slot: `native_s` counts the seconds.

    keeps_places  each sequence has one cell of recurrent state and earlier states beside it. llama.cpp moves such cells
                  where they do not lie in the order of the sequences that it decodes, but not their earlier states: a
                  cut then goes back to the state of another text, without a word. So no cell is freed before its own
                  sequence is decoded again and takes it anew: what is removed from the beginning waits for that.
    """

    def __init__(self, library: Library, context: object, *, keeps_places: bool = False) -> None:
        self._library, self._context, self._keeps_places = library, context, keeps_places
        self.native_s = 0.0
        self.memory = library.api.llama_get_memory(context)
        self.postponed: dict[int, int] = {}  # first position that goes, by sequence

    def check_open(self) -> None:
        """Raises EngineError when the context is closed: llama.cpp would read freed memory."""
        if self.memory is None:
            raise EngineError("the context is closed")

    def close(self) -> None:
        """To be called when the context is freed."""
        self.memory = None

    def remove(self, sequence: int, first_position: int) -> None:
        self.postpone(sequence, first_position)
        self.settle()

    def postpone(self, sequence: int, first_position: int) -> None:
        """Remove before anything else is asked of the cells: by `settle`, or by a decode, which takes no call more."""
        self.check_open()
        if sequence < 0 or first_position < 0:  # llama.cpp takes a negative sequence for all of them
            raise EngineError(f"cannot remove sequence {sequence} from position {first_position}")
        self.postponed[sequence] = min(first_position, self.postponed.get(sequence, first_position))

    def due(self, batch: Iterable[Sequence[int]]) -> dict[int, int]:
        """What a decode of these rows, by their sequences, removes before it begins."""
        cuts, self.postponed = self.postponed, {}
        if self._keeps_places and cuts:
            decoded = {sequences[0] for sequences in batch}
            self.postponed = {sequence: 0 for sequence, first in cuts.items() if not first and sequence not in decoded}
            cuts = {sequence: cuts[sequence] for sequence in sorted(cuts) if sequence not in self.postponed}
        return cuts

    def settle(self, batch: Iterable[Sequence[int]] = ()) -> None:
        """All but what waits for its sequence, unless rows of that follow."""
        self.check_open()
        for sequence, first in self.due(batch).items():
            if not self._remove(sequence, first, -1):
                raise uncut({sequence: first})

    def forget(self, sequence: int, end: int) -> None:
        """Positions before `end`. Only caches that may begin anywhere take more rows afterwards."""
        self.settle()
        if sequence < 0 or end < 0:
            raise EngineError(f"cannot forget sequence {sequence} up to position {end}")
        if not self._remove(sequence, 0, end):
            raise EngineError(f"this model cannot forget positions before {end}")

    def _remove(self, sequence: int, first: int, end: int) -> bool:
        started_at = perf_counter()
        is_removed: bool = self._library.remove_cells(self.memory, sequence, first, end)
        self.native_s += perf_counter() - started_at
        return is_removed

    def share(self, source: int, target: int, first: int, end: int) -> None:
        self.settle()
        if min(source, target, first) < 0 or end < first:  # llama.cpp takes a negative position for all of them
            raise EngineError(f"cannot share positions {first} to {end} of sequence {source} with sequence {target}")
        self._share(source, target, first, end)

    def copy(self, source: int, target: int, end: int) -> None:
        """Between sequences with caches of their own: copied whole (by the next decode, at its start), then cut."""
        self.settle()
        if min(source, target, end) < 0 or source == target:
            raise EngineError(f"cannot copy sequence {source} to {target} up to position {end}")
        self._share(source, target, -1, -1)  # llama.cpp aborts for a part
        self.remove(target, end)

    def save(self, sequence: int) -> bytearray:
        """What llama.cpp cannot cut of the sequence: recurrent state, not its cells."""
        self.settle()
        started_at, api = perf_counter(), self._library.api
        size = api.llama_state_seq_get_size_ext(self._context, sequence, UNCUTTABLE)
        state = bytearray(size)
        written = api.llama_state_seq_get_data_ext(self._context, as_bytes(state), size, sequence, UNCUTTABLE)
        self.native_s += perf_counter() - started_at
        if not size or written != size:
            raise EngineError(f"the state of sequence {sequence} was not saved: {written} of {size} bytes")
        return state

    def restore(self, sequence: int, state: bytearray) -> None:
        self.settle()
        started_at, size = perf_counter(), len(state)
        set_data = self._library.api.llama_state_seq_set_data_ext
        read = set_data(self._context, as_bytes(state), size, sequence, UNCUTTABLE)
        self.native_s += perf_counter() - started_at
        if read != size:
            raise EngineError(f"the state of sequence {sequence} was not restored: {read} of {size} bytes")

    def _share(self, source: int, target: int, first: int, end: int) -> None:
        started_at = perf_counter()
        self._library.share_cells(self.memory, source, target, first, end)
        self.native_s += perf_counter() - started_at

    def last_position(self, sequence: int) -> int:
        self.settle()
        if sequence in self.postponed:
            return -1
        return int(self._library.last_position(self.memory, sequence))


def as_bytes(state: bytearray) -> C.Array[C.c_ubyte]:
    return (C.c_ubyte * len(state)).from_buffer(state)


def uncut(cuts: Mapping[int, int]) -> EngineError:
    places = ", ".join(f"sequence {sequence} from position {first} on" for sequence, first in cuts.items())
    return EngineError(f"this model cannot forget {places}")


def buffer_bytes(log: Log) -> dict[str, int]:
    """Bytes by kind of buffer, summed over devices, as llama.cpp logged them since it was loaded."""
    totals: dict[str, int] = {}
    for line in log.buffer_lines:
        if match := BUFFER_LINE.search(line):
            kind = match.group(2)
            totals[kind] = totals.get(kind, 0) + int(float(match.group(3)) * MIB)
    return totals


def device_of(name: str, devices: Sequence[str]) -> str:
    """The device behind the name of a buffer: `MTL0_Private` lies on `MTL0`, `CUDA_Host` in RAM."""
    return max((device for device in devices if name.startswith(device)), key=len, default=RAM)


def layer_devices(lines: Iterable[str], devices: Sequence[str]) -> dict[int, str]:
    """Layer -> device; the layer behind the last one is the output."""
    found = (match for line in lines if (match := LAYER_LINE.search(line)))
    return {int(match.group(1)): device_of(match.group(2), devices) for match in found}


def weight_buffers(
    tensors: Iterable[TensorInfo], layers: Mapping[int, str], *, borrows: bool, n_cpu_moe: int = 0
) -> Iterator[Buffer]:
    """Where weights go. Embeddings that serve as the output too lie there once more; a head `borrows` its output.

    n_cpu_moe  as in Placement
    """
    output = layers[max(layers)] if layers else RAM
    names = {tensor.name: tensor for tensor in tensors}
    for name, tensor in names.items():
        block = block_of(name)
        where = layers.get(block, RAM) if block is not None else RAM if is_input(name) else output
        if block is not None and block < n_cpu_moe and is_expert(name):
            where = RAM
        yield Buffer(where, Kind.WEIGHTS, tensor.nbytes)
    embeddings = names.get("token_embd.weight")
    if embeddings is not None and "output.weight" not in names and output != RAM and not borrows:
        yield Buffer(output, Kind.WEIGHTS, embeddings.nbytes)


def cache_buffers(lines: Iterable[str], devices: Sequence[str]) -> Iterator[Buffer]:
    """Each cache is told as its layers and then the size of them all; a model may have several (sliding windows)."""
    layers: list[str] = []
    for line in lines:
        if match := CACHE_LAYER_LINE.search(line):
            layers.append(device_of(match.group(1), devices))
        elif (match := CACHE_SIZE_LINE.search(line)) and layers:
            share = float(match.group(1)) * MIB / len(layers)
            yield from (Buffer(device, Kind.CACHE, int(share)) for device in layers)
            layers = []


def compute_buffers(lines: Iterable[str], devices: Sequence[str]) -> Iterator[Buffer]:
    for line in lines:
        if (match := BUFFER_LINE.search(line)) and match.group(2) == "compute":
            yield Buffer(device_of(match.group(1), devices), Kind.BUFFERS, int(float(match.group(3)) * MIB))
