"""The KV cells of a context: removing, sharing, saving and swapping the cells of its sequences."""

from __future__ import annotations

import ctypes as C
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter

import numpy as np

from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.core.batch import Bytes
from eaglelocal.errors import EngineError, ResourceError

ALL_OF_IT, UNCUTTABLE = 0, 1  # LLAMA_STATE_SEQ_FLAGS_NONE, _PARTIAL_ONLY


class KvCells:
    """Removal, sharing and swapping of sequences' cells. Implements core.ports.Cache and Swappable.

    llama.cpp scans all cells in each call, and a step calls once per slot: `native_s` counts the seconds.

    keeps_places  each sequence has one cell of recurrent state, with earlier states beside it. llama.cpp moves such
                  cells if they are not in the order of the decoded sequences, but not their earlier states: a cut would
                  then silently restore the state of another text. So no cell is freed before its own sequence is
                  decoded again and reuses it: removal from position 0 is postponed until then.
    """

    def __init__(self, library: LlamaLibrary, context: object, *, keeps_places: bool = False) -> None:
        self._library, self._context, self._keeps_places = library, context, keeps_places
        self.native_s = 0.0
        self.memory = library.api.llama_get_memory(context)
        self.postponed: dict[int, int] = {}  # first position to remove, by sequence
        self.copied: set[int] = set()  # sequences that the next decode copies from
        self.coming: set[int] = set()  # sequences that it copies to

    def check_open(self) -> None:
        """Raise EngineError when the context is closed: llama.cpp would read freed memory."""
        if self.memory is None:
            raise EngineError("the context is closed")

    def close(self) -> None:
        """Forget the memory; call this when the context is freed."""
        self.memory = None

    def remove(self, sequence: int, first_position: int) -> None:
        self.postpone(sequence, first_position)
        self.settle()

    def postpone(self, sequence: int, first_position: int) -> None:
        """Remove cells before any other use of them: by `settle`, or within the next decode's native call."""
        self.check_open()
        if sequence < 0 or first_position < 0:  # llama.cpp takes a negative sequence for all of them
            raise EngineError(f"cannot remove sequence {sequence} from position {first_position}")
        self.postponed[sequence] = min(first_position, self.postponed.get(sequence, first_position))

    def due(self, batch: Iterable[Sequence[int]]) -> dict[int, int]:
        """Return the postponed removals that a decode of these rows (given by their sequences) must do first."""
        cuts, self.postponed = self.postponed, {}
        if self._keeps_places and cuts:
            decoded = {sequences[0] for sequences in batch}
            self.postponed = {sequence: 0 for sequence, first in cuts.items() if not first and sequence not in decoded}
            cuts = {sequence: cuts[sequence] for sequence in sorted(cuts) if sequence not in self.postponed}
        return cuts

    def settle(self, batch: Iterable[Sequence[int]] = ()) -> None:
        """Do the postponed removals, except those that must wait for their sequence, unless `batch` has rows of it."""
        self.check_open()
        for sequence, first in self.due(batch).items():
            if not self._remove(sequence, first, -1):
                raise uncut({sequence: first})

    def forget(self, sequence: int, end: int) -> None:
        """Remove the positions before `end`. Further rows fit only caches that may begin at any position."""
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
        """Copy between sequences with separate caches: the next decode copies everything first; then the end is cut."""
        self.settle()
        if min(source, target, end) < 0 or source == target:
            raise EngineError(f"cannot copy sequence {source} to {target} up to position {end}")
        self._share(source, target, -1, -1)  # llama.cpp aborts for a range
        self.copied.add(source)
        self.coming.add(target)
        self.remove(target, end)

    def save(self, sequence: int) -> bytearray:
        """Return the state of the sequence that llama.cpp cannot cut: recurrent state, without cells."""
        state = bytearray(self._size(sequence, UNCUTTABLE))
        written = self._get(sequence, state, UNCUTTABLE)
        if not state or written != len(state):
            raise EngineError(f"the state of sequence {sequence} was not saved: {written} of {len(state)} bytes")
        return state

    def restore(self, sequence: int, state: bytearray) -> None:
        read = self._set(sequence, state, UNCUTTABLE)
        if read != len(state):
            raise EngineError(f"the state of sequence {sequence} was not restored: {read} of {len(state)} bytes")

    def swapped_bytes(self, sequence: int) -> int:
        return self._size(sequence, ALL_OF_IT)

    def swap_out(self, sequence: int) -> Bytes:
        if sequence in self.coming:
            raise ResourceError(f"sequence {sequence} is still to be copied")
        size = self._size(sequence, ALL_OF_IT)
        try:
            cells = np.empty(size, dtype=np.uint8)
        except MemoryError as error:
            raise ResourceError(f"no {size} bytes of main memory are left for sequence {sequence}") from error
        written = self._get(sequence, cells.data, ALL_OF_IT)
        if not size or written != size:
            raise ResourceError(f"sequence {sequence} was not swapped out: {written} of {size} bytes")
        return cells

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        if sequence in self.coming | self.copied:
            raise ResourceError(f"sequence {sequence} is still to be copied")
        self.postponed.pop(sequence, None)  # llama.cpp removes all of it first
        read = self._set(sequence, cells.data, ALL_OF_IT)
        if read != len(cells):
            self.remove(sequence, 0)
            raise ResourceError(f"sequence {sequence} was not swapped in: {read} of {len(cells)} bytes")

    def made_copies(self) -> None:
        """Note that a decode has made the pending copies."""
        self.copied.clear()
        self.coming.clear()

    def _size(self, sequence: int, what: int) -> int:
        self.settle()
        return int(self._library.api.llama_state_seq_get_size_ext(self._context, sequence, what))

    def _get(self, sequence: int, into: bytearray | memoryview, what: int) -> int:
        started_at = perf_counter()
        get_data = self._library.api.llama_state_seq_get_data_ext
        written = get_data(self._context, as_bytes(into), len(into), sequence, what)
        self.native_s += perf_counter() - started_at
        return int(written)

    def _set(self, sequence: int, data: bytearray | memoryview, what: int) -> int:
        self.settle()
        started_at = perf_counter()
        read = self._library.api.llama_state_seq_set_data_ext(self._context, as_bytes(data), len(data), sequence, what)
        self.native_s += perf_counter() - started_at
        return int(read)

    def _share(self, source: int, target: int, first: int, end: int) -> None:
        started_at = perf_counter()
        self._library.share_cells(self.memory, source, target, first, end)
        self.native_s += perf_counter() - started_at

    def last_position(self, sequence: int) -> int:
        self.settle()
        if sequence in self.postponed:
            return -1
        return int(self._library.last_position(self.memory, sequence))


def as_bytes(state: bytearray | memoryview) -> C.Array[C.c_ubyte]:
    return (C.c_ubyte * len(state)).from_buffer(state)


def uncut(cuts: Mapping[int, int]) -> EngineError:
    places = ", ".join(f"sequence {sequence} from position {first} on" for sequence, first in cuts.items())
    return EngineError(f"this model cannot forget {places}")
