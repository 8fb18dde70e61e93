"""Cells that several sequences may share, as in llama.cpp's unified cache; uses that it would get wrong are errors.

A cell knows the cell before it. A row sees the cells of its first sequence, and must find its own past there: one cell
per position, in order. A row joins several sequences only if they hold the same cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    value: int
    before: Cell | None


@dataclass
class SharedCells:
    """The cells of each sequence, in order of position from 0 on."""

    n_ctx: int
    num_sequences: int | None = None  # None: any
    max_cells: int | None = None
    cells: dict[int, list[Cell]] = field(default_factory=dict)

    def value_before(self, sequences: Sequence[int], position: int) -> int | None:
        """Return the value of the cell before a row of these sequences; None at the beginning."""
        for sequence in sequences:
            self._check(sequence)
            if len(self._of(sequence)) != position:
                raise AssertionError(f"sequence {sequence}: position {position} after {self.last_position(sequence)}")
        pasts = {self._last(sequence) for sequence in sequences}
        if len(pasts) != 1:
            raise AssertionError(f"a row joins sequences {sequences}, which hold different texts")
        if position >= self.n_ctx:
            raise AssertionError(f"sequence {sequences[0]}: position {position} of {self.n_ctx}")
        (past,) = pasts
        return past.value if past else None

    def append(self, sequences: Sequence[int], value: int) -> None:
        cell = Cell(value, self._last(sequences[0]))
        for sequence in sequences:
            self._of(sequence).append(cell)
        if self.max_cells is not None and self.num_cells > self.max_cells:
            raise AssertionError(f"{self.num_cells} cells of {self.max_cells}")

    def share(self, source: int, target: int, first: int, end: int) -> None:
        self._check(source)
        self._check(target)
        if first != len(self._of(target)):
            raise AssertionError(f"sequence {target} would have a hole or a double cell at position {first}")
        shared = self._of(source)[first:end]
        if len(shared) != end - first or (shared and shared[0].before is not self._last(target)):
            raise AssertionError(f"sequence {source} has not the text of {target} at positions {first} to {end}")
        self._of(target).extend(shared)

    def copy(self, source: int, target: int, end: int) -> None:
        """Copy the first `end` cells into a cache of its own, as new cells that replace those of `target`."""
        self._check(source)
        self._check(target)
        if source == target or len(self._of(source)) < end:
            raise AssertionError(f"sequence {source} has no {end} positions for sequence {target}")
        self.cells[target] = []
        for cell in self._of(source)[:end]:
            self.append([target], cell.value)

    def values(self, sequence: int) -> list[int]:
        return [cell.value for cell in self._of(sequence)]

    def remove(self, sequence: int, first_position: int) -> None:
        self._check(sequence)
        del self._of(sequence)[first_position:]

    def last_position(self, sequence: int) -> int:
        return len(self._of(sequence)) - 1

    @property
    def num_cells(self) -> int:
        return len({cell for held in self.cells.values() for cell in held})

    def _check(self, sequence: int) -> None:
        if sequence < 0 or (self.num_sequences is not None and sequence >= self.num_sequences):
            raise AssertionError(f"sequence {sequence} of {self.num_sequences}")

    def _of(self, sequence: int) -> list[Cell]:
        return self.cells.setdefault(sequence, [])

    def _last(self, sequence: int) -> Cell | None:
        held = self._of(sequence)
        return held[-1] if held else None
