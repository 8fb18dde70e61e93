"""The KV cells of a context: removing, sharing, saving and swapping the cells of its sequences."""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.core.batch import Bytes
from eaglelocal.errors import EngineError, ResourceError

LENGTH_BYTES = 8
ALL, PARTIAL_ONLY = 0, 1  # LLAMA_STATE_SEQ_FLAGS_NONE, _PARTIAL_ONLY


class KvCells:
    """Removal, sharing and swapping of sequences' cells. Implements core.ports.Cache and Swappable.

    llama.cpp scans all cells in each call, and a step calls once per slot: `native_s` counts the seconds.

    has_fixed_cells  each sequence has one cell of recurrent state, with its earlier states. llama.cpp moves such cells
                     if they are not in the order of the decoded sequences, but not their earlier states: removing would
                     then silently restore the state of another text. So no cell is freed before its own sequence is
                     decoded again and reuses it: removal from position 0 waits until then.
    """

    def __init__(self, library: LlamaLibrary, context: object, *, has_fixed_cells: bool = False) -> None:
        self._library, self._context, self._has_fixed_cells = library, context, has_fixed_cells
        self.native_s = 0.0
        self.memory = library.api.llama_get_memory(context)
        self.pending: dict[int, int] = {}  # first position to remove, by sequence
        self.copy_sources: set[int] = set()  # sequences that the next decode copies from
        self.copy_targets: set[int] = set()  # sequences that it copies to

    def check_open(self) -> None:
        """Raise EngineError when the context is closed: llama.cpp would read freed memory."""
        if self.memory is None:
            raise EngineError("the context is closed")

    def close(self) -> None:
        """Forget the memory; call this when the context is freed."""
        self.memory = None

    def remove(self, sequence: int, first_position: int) -> None:
        self.remove_later(sequence, first_position)
        self.remove_pending()

    def remove_later(self, sequence: int, first_position: int) -> None:
        """Remove cells before any other use of them: by `remove_pending`, or within the next decode's native call."""
        self.check_open()
        if sequence < 0 or first_position < 0:  # llama.cpp takes a negative sequence for all of them
            raise EngineError(f"cannot remove sequence {sequence} from position {first_position}")
        self.pending[sequence] = min(first_position, self.pending.get(sequence, first_position))

    def take_removals(self, batch: Iterable[Sequence[int]]) -> dict[int, int]:
        """Return the pending removals that a decode of these rows (given by their sequences) must do; clear them."""
        removals, self.pending = self.pending, {}
        if self._has_fixed_cells and removals:
            decoded = {sequences[0] for sequences in batch}
            self.pending = {
                sequence: 0 for sequence, first in removals.items() if not first and sequence not in decoded
            }
            removals = {sequence: removals[sequence] for sequence in sorted(removals) if sequence not in self.pending}
        return removals

    def remove_pending(self, batch: Iterable[Sequence[int]] = ()) -> None:
        """Do the pending removals. With fixed cells, those of a whole sequence wait until `batch` has rows of it."""
        self.check_open()
        for sequence, first in self.take_removals(batch).items():
            if not self._time(self._library.remove_cells, self.memory, sequence, first, -1):
                raise removal_error({sequence: first})

    def forget(self, sequence: int, end: int) -> None:
        """Remove the positions before `end`. Only caches that may begin at any position accept further rows."""
        self.remove_pending()
        if sequence < 0 or end < 0:
            raise EngineError(f"cannot forget sequence {sequence} up to position {end}")
        if not self._time(self._library.remove_cells, self.memory, sequence, 0, end):
            raise EngineError(f"this model cannot forget positions before {end}")

    def _time(self, call: Callable[..., Any], *arguments: object) -> Any:
        started_at = perf_counter()
        result = call(*arguments)
        self.native_s += perf_counter() - started_at
        return result

    def share(self, source: int, target: int, first: int, end: int) -> None:
        self.remove_pending()
        if min(source, target, first) < 0 or end < first:  # llama.cpp takes a negative position for all of them
            raise EngineError(f"cannot share positions {first} to {end} of sequence {source} with sequence {target}")
        self._time(self._library.share_cells, self.memory, source, target, first, end)

    def copy(self, source: int, target: int, end: int) -> None:
        """Copy between sequences with separate caches. The next decode first copies everything; then the end is cut."""
        self.remove_pending()
        if min(source, target, end) < 0 or source == target:
            raise EngineError(f"cannot copy sequence {source} to {target} up to position {end}")
        self._time(self._library.share_cells, self.memory, source, target, -1, -1)  # llama.cpp aborts for a range
        self.copy_sources.add(source)
        self.copy_targets.add(target)
        self.remove(target, end)

    def save(self, sequence: int) -> bytearray:
        """Return the sequence's recurrent state, which llama.cpp cannot cut, without its cells."""
        state = bytearray(self._size(sequence, PARTIAL_ONLY))
        written = self._get(sequence, state, PARTIAL_ONLY)
        if not state or written != len(state):
            raise EngineError(f"the state of sequence {sequence} was not saved: {written} of {len(state)} bytes")
        return state

    def restore(self, sequence: int, state: bytearray) -> None:
        read = self._set(sequence, state, PARTIAL_ONLY)
        if read != len(state):
            raise EngineError(f"the state of sequence {sequence} was not restored: {read} of {len(state)} bytes")

    def swapped_bytes(self, sequence: int) -> int:
        return self._size(sequence, ALL)

    def swap_out(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        if sequence in self.copy_targets:
            raise ResourceError(f"sequence {sequence} is still to be copied")
        size = self._size(sequence, ALL)
        try:
            cells = buffer if buffer is not None and len(buffer) == size else np.empty(size, dtype=np.uint8)
        except MemoryError as error:
            raise ResourceError(f"{size} bytes of RAM for sequence {sequence} cannot be allocated") from error
        written = self._get(sequence, cells.data, ALL)
        if not size or written != size:
            raise ResourceError(f"sequence {sequence} was not swapped out: {written} of {size} bytes")
        return cells

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        if sequence in self.copy_targets | self.copy_sources:
            raise ResourceError(f"sequence {sequence} is still to be copied")
        self.pending.pop(sequence, None)  # llama.cpp removes all of it first
        read = self._set(sequence, cells.data, ALL)
        if read != len(cells):
            self.remove(sequence, 0)
            raise ResourceError(f"sequence {sequence} was not swapped in: {read} of {len(cells)} bytes")

    def clear_copies(self) -> None:
        """Record that a decode has made the pending copies."""
        self.copy_sources.clear()
        self.copy_targets.clear()

    def _size(self, sequence: int, flags: int) -> int:
        self.remove_pending()
        return int(self._library.api.llama_state_seq_get_size_ext(self._context, sequence, flags))

    def _get(self, sequence: int, into: bytearray | memoryview, flags: int) -> int:
        get_data = self._library.api.llama_state_seq_get_data_ext
        return int(self._time(get_data, self._context, native_buffer(into), len(into), sequence, flags))

    def _set(self, sequence: int, data: bytearray | memoryview, flags: int) -> int:
        self.remove_pending()
        set_data = self._library.api.llama_state_seq_set_data_ext
        return int(self._time(set_data, self._context, native_buffer(data), len(data), sequence, flags))

    def last_position(self, sequence: int) -> int:
        self.remove_pending()
        if sequence in self.pending:
            return -1
        return int(self._library.last_position(self.memory, sequence))


class JointCells:
    """Two contexts that hold the same positions, treated as one: a head's first layer and its upper layers."""

    def __init__(self, first: KvCells, upper: KvCells) -> None:
        self._both, self.memory = (first, upper), first.memory

    @property
    def native_s(self) -> float:
        return sum(cells.native_s for cells in self._both)

    def check_open(self) -> None:
        self._both[0].check_open()

    def close(self) -> None:
        for cells in self._both:
            cells.close()

    def remove(self, sequence: int, first_position: int) -> None:
        for cells in self._both:
            cells.remove(sequence, first_position)

    def forget(self, sequence: int, end: int) -> None:
        for cells in self._both:
            cells.forget(sequence, end)

    def share(self, source: int, target: int, first: int, end: int) -> None:
        for cells in self._both:
            cells.share(source, target, first, end)

    def last_position(self, sequence: int) -> int:
        return self._both[0].last_position(sequence)

    def swapped_bytes(self, sequence: int) -> int:
        return LENGTH_BYTES + sum(cells.swapped_bytes(sequence) for cells in self._both)

    def swap_out(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        """Return the length of the first copy, and both copies. `buffer` is not used: the parts have their own."""
        first, upper = (cells.swap_out(sequence) for cells in self._both)
        length = np.frombuffer(len(first).to_bytes(LENGTH_BYTES, "little"), np.uint8)
        return np.concatenate((length, first, upper))

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        end = LENGTH_BYTES + int.from_bytes(cells[:LENGTH_BYTES].tobytes(), "little")
        first, upper = self._both
        first.swap_in(sequence, cells[LENGTH_BYTES:end])
        try:
            upper.swap_in(sequence, cells[end:])
        except ResourceError:
            first.remove(sequence, 0)
            raise


def native_buffer(state: bytearray | memoryview) -> C.Array[C.c_ubyte]:
    return (C.c_ubyte * len(state)).from_buffer(state)


def removal_error(removals: Mapping[int, int]) -> EngineError:
    cells = ", ".join(f"sequence {sequence} from position {first} on" for sequence, first in removals.items())
    return EngineError(f"this model cannot remove {cells}")
