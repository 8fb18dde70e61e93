"""The entries of a transcript with their rows, of which only the recently needed ones are kept.

Does not know how entries are rendered, nor which of them are in view: the widget passes functions and row numbers for
that. Rows are kept as strips, which cache what Textual derives from them. Until an entry comes into view its height is
an estimate, so that a conversation of any length opens at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from textual.strip import Strip

from eaglelocal.core.records import dataclass
from eaglelocal.tui.transcript.entries import TranscriptEntry
from eaglelocal.tui.transcript.stops import Stop, StopKind, find_entries, find_question, list_stops
from eaglelocal.tui.transcript.text_rows import CODE_META

MAX_LAID_OUT = 128  # items: a few screens full. Each garbage collection would scan more


@dataclass(slots=True, eq=False)
class _Item:
    entry: TranscriptEntry
    height: int  # rows; an estimate until it is laid out
    rows: list[Strip] | None = None  # None: not laid out, or dropped


class TranscriptLayout:
    """A column of entries, which are laid out when they are needed."""

    def __init__(
        self, render: Callable[[TranscriptEntry], list[Strip]], estimate_height: Callable[[TranscriptEntry], int]
    ) -> None:
        self._render, self._estimate_height = render, estimate_height
        self._items: list[_Item] = []
        self._laid_out: dict[_Item, None] = {}  # the least recently needed first
        self._tops = [0]  # the rows where items begin, as far as they were computed

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
        del self._items[index:], self._tops[index + 1 :]
        for number, entry in enumerate(entries):
            is_same = number < len(old) and old[number].entry == entry
            self._items.append(old[number] if is_same else _Item(entry, self._estimate_height(entry)))
        for removed in set(old).difference(self._items[index:]):
            self._laid_out.pop(removed, None)

    # ---- laying out
    def lay_out(self, index: int) -> int:
        """Render the rows of an entry if there are none. Return its height."""
        item = self._items[index]
        self._laid_out.pop(item, None)
        self._laid_out[item] = None
        if item.rows is None:
            item.rows = self._render(item.entry)
            if item.height != len(item.rows):
                item.height = len(item.rows)
                del self._tops[index + 1 :]
        return item.height

    def rows_of(self, index: int) -> Sequence[Strip]:
        """Return the rows of an entry, which are laid out if they are not."""
        self.lay_out(index)
        return self._items[index].rows or ()

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
        self._tops = [0]
        for item in self._items:
            item.rows, item.height = None, self._estimate_height(item.entry)

    # ---- rows
    @property
    def num_rows(self) -> int:
        return self.top(len(self))

    def top(self, index: int) -> int:
        """Return the row where an entry begins; for index `len(self)`, the row after the last entry."""
        for item in self._items[len(self._tops) - 1 : index]:
            self._tops.append(self._tops[-1] + item.height)
        return self._tops[index]

    def index_at(self, row: int) -> int:
        """Return the index of the entry that covers a row, the nearest for rows outside. There must be an entry."""
        self.top(len(self))
        return min(max(bisect_right(self._tops, row) - 1, 0), len(self) - 1)

    def rows(self, first: int, count: int, blank: Strip) -> list[Strip]:
        """Return `count` rows from `first` on; those not laid out, or after the end, are `blank`."""
        found: list[Strip] = []
        if self._items and first < self.num_rows:
            index = self.index_at(first)
            offset = first - self.top(index)
            while len(found) < count and index < len(self):
                item = self._items[index]
                known = item.rows if item.rows is not None else [blank] * item.height
                found += known[offset : offset + count - len(found)]
                index, offset = index + 1, 0
        return found + [blank] * (count - len(found))


# ---- where one stands, in rows
def find_last_stop(layout: TranscriptLayout, bottom: int) -> Stop | None:
    """Return the last stop that begins above a row, of the question there; None if there is no question."""
    entries = layout.entries
    question = find_question(entries, layout.index_at(bottom - 1)) if entries else None
    if question is None:
        return None
    stops = list_stops(entries, question)
    return next((stop for stop in reversed(stops) if find_stop_rows(layout, stop).start < bottom), stops[0])


def find_stop_rows(layout: TranscriptLayout, stop: Stop) -> range:
    """Return the rows of a stop without the gap above, after laying them out."""
    covered = find_entries(layout.entries, stop)
    if stop.kind is not StopKind.ANSWER:
        layout.lay_out(covered.start)
    begin = layout.top(covered.start)
    if stop.kind is StopKind.CODE:
        label, num_rows = find_code_rows(layout.rows_of(covered.start), stop.code)
        return range(begin + label, begin + label + num_rows)
    return range(begin + layout.entry(covered.start).has_gap, layout.top(covered.stop))


def find_code_rows(rows: Sequence[Strip], number: int) -> tuple[int, int]:
    """Return the first row of a code block with its label, and its number of rows; all rows if it has no label."""
    for index, row in enumerate(rows):
        for segment in row:
            meta = segment.style.meta.get(CODE_META) if segment.style else None
            if meta and meta[0] == number:
                return index, meta[1]
    return 0, len(rows)
