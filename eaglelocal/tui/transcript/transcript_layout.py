"""The entries of a transcript with their rows, of which only the recently needed ones are kept.

Does not know how entries are rendered, nor which of them are in view: the widget passes functions and row numbers for
that. Rows are kept as strips, which cache what Textual derives from them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import zip_longest

from textual.strip import Strip

from eaglelocal.core.records import dataclass
from eaglelocal.tui.transcript.entries import TranscriptEntry

MAX_LAID_OUT = 128  # items: a few screens full. Each garbage collection would scan more


@dataclass(slots=True, eq=False)
class _Item:
    entry: TranscriptEntry
    rows: list[Strip] | None = None  # None: not laid out


class TranscriptLayout:
    """A column of entries. An entry is laid out when it is needed; until then its height is an estimate."""

    def __init__(
        self, render: Callable[[TranscriptEntry], list[Strip]], estimate_height: Callable[[TranscriptEntry], int]
    ) -> None:
        self._render, self._estimate_height = render, estimate_height
        self._items: list[_Item] = []
        self._laid_out: dict[_Item, None] = {}  # the least recently needed first
        self._positions = RowPositions()

    def __len__(self) -> int:
        return len(self._items)

    # ---- entries
    @property
    def entries(self) -> list[TranscriptEntry]:
        return [item.entry for item in self._items]

    def entry(self, index: int) -> TranscriptEntry:
        return self._items[index].entry

    def replace_from(self, index: int, entries: Sequence[TranscriptEntry]) -> None:
        """Replace all entries from an index on; those that stay the same keep their rows."""
        old = self._items[index:]
        del self._items[index:]
        self._positions.truncate(index)
        for number, entry in enumerate(entries):
            is_same = number < len(old) and old[number].entry == entry
            item = old[number] if is_same else _Item(entry)
            self._items.append(item)
            self._positions.append(self._height(item))
        for before, now in zip_longest(old, self._items[index:]):
            if before is not None and before is not now and before.rows is not None:
                del self._laid_out[before]

    # ---- laying out
    def lay_out(self, index: int) -> int:
        """Render the rows of an entry if there are none. Return its height."""
        item = self._items[index]
        self._laid_out.pop(item, None)
        self._laid_out[item] = None
        if item.rows is None:
            item.rows = self._render(item.entry)
            self._positions.resize(index, len(item.rows))
        return len(item.rows)

    def is_laid_out(self, index: int) -> bool:
        return self._items[index].rows is not None

    def drop_oldest_rows(self, num_visible: int) -> None:
        """Drop the rows that were not needed lately, none of `num_visible` entries in view; their heights stay."""
        num_kept = max(MAX_LAID_OUT, num_visible)
        for item in list(self._laid_out)[: max(len(self._laid_out) - num_kept, 0)]:
            del self._laid_out[item]
            item.rows = None

    def drop_all_rows(self) -> None:
        """Drop all rows and estimate all heights again, after a change of what they depend on."""
        self._laid_out.clear()
        for index, item in enumerate(self._items):
            item.rows = None
            self._positions.resize(index, self._height(item))

    def _height(self, item: _Item) -> int:
        return self._estimate_height(item.entry) if item.rows is None else len(item.rows)

    # ---- rows
    @property
    def num_rows(self) -> int:
        return self._positions.total

    def top(self, index: int) -> int:
        """Return the row where an entry begins; for index `len(self)`, the row after the last entry."""
        return self._positions.top(index)

    def index_at(self, row: int) -> int:
        """Return the index of the entry that covers a row, the nearest for rows outside. There must be an entry."""
        return self._positions.item_at(row)

    def rows(self, first: int, count: int, blank: Strip) -> list[Strip]:
        """Return `count` rows from `first` on; those not laid out, or after the end, are `blank`."""
        found: list[Strip] = []
        if self._items and first < self.num_rows:
            index = self.index_at(first)
            offset = first - self.top(index)
            while len(found) < count and index < len(self):
                rows = self._items[index].rows
                known = rows if rows is not None else [blank] * self._positions.height(index)
                found += known[offset : offset + count - len(found)]
                index, offset = index + 1, 0
        return found + [blank] * (count - len(found))


# ---- row positions: the positions of items in a long column, in rows, when most heights are only estimates. Pure
# bookkeeping
#
# An item is laid out when it comes into view; until then its height is an estimate, so that a conversation of any
# length opens at once.
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
