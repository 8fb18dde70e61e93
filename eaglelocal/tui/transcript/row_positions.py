"""The positions of items in a long column, in rows, when most heights are only estimates. Pure bookkeeping.

An item is laid out when it comes into view; until then its height is an estimate, so that a conversation of any
length opens at once.
"""

from __future__ import annotations

from bisect import bisect_right


class RowPositions:
    """The heights of items and their running sums, which are computed on demand."""

    def __init__(self) -> None:
        self._heights: list[int] = []
        self._tops: list[int] = [0]  # [items + 1]; valid up to index _num_valid
        self._num_valid = 0

    def __len__(self) -> int:
        return len(self._heights)

    @property
    def total(self) -> int:
        return self.top(len(self))

    def append(self, height: int) -> None:
        self._heights.append(height)
        self._tops.append(0)

    def truncate(self, length: int) -> None:
        """Keep the first `length` items."""
        del self._heights[length:]
        del self._tops[length + 1 :]
        self._num_valid = min(self._num_valid, length)

    def resize(self, index: int, height: int) -> None:
        if self._heights[index] != height:
            self._heights[index] = height
            self._num_valid = min(self._num_valid, index)

    def height(self, index: int) -> int:
        return self._heights[index]

    def top(self, index: int) -> int:
        """Return the row where an item begins; for index `len(self)`, the row after the last item."""
        for i in range(self._num_valid, index):
            self._tops[i + 1] = self._tops[i] + self._heights[i]
        self._num_valid = max(self._num_valid, index)
        return self._tops[index]

    def item_at(self, row: int) -> int:
        """Return the index of the item that covers a row, the nearest for rows outside. There must be an item."""
        self.top(len(self))
        return min(max(bisect_right(self._tops, row) - 1, 0), len(self) - 1)
