"""Scripted targets whose caches cannot be cut anywhere: uses that llama.cpp would silently get wrong are errors."""

from __future__ import annotations

import numpy as np

from eaglelocal.core.batch import Batch, Bytes

from .scripted_context import ScriptedContext, Table

NUM_SNAPSHOTS = 4
WINDOW = 6


class RecurrentContext(ScriptedContext):
    """A context with a recurrent state, which can go back over the last decode or to where it was saved."""

    undivided = NUM_SNAPSHOTS + 1

    def __init__(self, table: Table, **sizes: int) -> None:
        super().__init__(table, **sizes)
        self._read: dict[int, int] = {}  # rows that the state of a sequence has read
        self._back: dict[int, int] = {}  # rows by which it can go back

    def submit(self, batch: Batch) -> None:
        counts: dict[int, int] = {}
        for (sequence,), position in zip(batch.sequences, batch.positions, strict=True):
            counts[sequence] = counts.get(sequence, 0) + 1
            assert self._read.get(sequence, 0) + counts[sequence] == position + 1, "the state is that of another place"
        super().submit(batch)
        for sequence, count in counts.items():
            self._read[sequence] = self._read.get(sequence, 0) + count
            self._back[sequence] = min(count - 1, NUM_SNAPSHOTS)

    def remove(self, sequence: int, first_position: int) -> None:
        super().remove(sequence, first_position)
        back = self._read.get(sequence, 0) - first_position
        if back <= 0:
            return
        assert not first_position or back <= self._back.get(sequence, 0), f"no state is left of {first_position}"
        self._read[sequence] = first_position
        self._back[sequence] = max(self._back.get(sequence, 0) - back, 0)

    def save(self, sequence: int) -> bytearray:
        values = self.cells.values(sequence)
        assert len(values) == self._read[sequence]
        return bytearray(np.array([len(values), values[-1]], np.int64).tobytes())

    def restore(self, sequence: int, state: bytearray) -> None:
        place, value = np.frombuffer(state, np.int64)
        assert self.cells.values(sequence)[place - 1] == value, "the state is that of another text"
        self._read[sequence], self._back[sequence] = int(place), 0

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        self._read[sequence] = self._back[sequence] = 0
        super().swap_in(sequence, cells)
        self._read[sequence] = self.cells.last_position(sequence) + 1


class SlidingWindowContext(ScriptedContext):
    """A context with sliding-window layers: they keep all positions, but only the newest window is copied."""

    def __init__(self, table: Table, **sizes: int) -> None:
        super().__init__(table, **sizes)
        self._first: dict[int, int] = {}  # position from which these layers hold a sequence

    def submit(self, batch: Batch) -> None:
        for sequences, position in zip(batch.sequences, batch.positions, strict=True):
            for sequence in sequences:
                first = self._first.get(sequence, 0)
                assert first <= max(position - WINDOW, 0), f"position {position} sees from {first} on alone"
        super().submit(batch)

    def remove(self, sequence: int, first_position: int) -> None:
        super().remove(sequence, first_position)
        if not first_position:
            self._first[sequence] = 0

    def save(self, sequence: int) -> bytearray:
        values = self.cells.values(sequence)
        return bytearray(np.array([self._newest(sequence), len(values), values[-1]], np.int64).tobytes())

    def restore(self, sequence: int, state: bytearray) -> None:
        first, place, value = np.frombuffer(state, np.int64)
        assert self.cells.values(sequence)[place - 1] == value, "the window is that of another text"
        self._first[sequence] = int(first)

    def swap_out(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        first = np.array([self._newest(sequence)], np.int64).view(np.uint8)
        return np.concatenate([first, super().swap_out(sequence, buffer)])

    def swapped_bytes(self, sequence: int) -> int:
        return 8 + super().swapped_bytes(sequence)

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        super().swap_in(sequence, cells[8:])
        self._first[sequence] = int(cells[:8].view(np.int64)[0])

    def _newest(self, sequence: int) -> int:
        """Of a window that is copied, the first position."""
        return max(self._first.get(sequence, 0), self.cells.last_position(sequence) + 1 - WINDOW)
