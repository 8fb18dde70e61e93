"""The transcript: a scrolling column of entries, of any length, of which only those in view are laid out.

It draws lines and has no child widgets, so scrolling through fifty thousand tokens costs as much as one screen. While
it shows the end it follows new text; scrolled up, it stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBarRender
from textual.selection import Selection
from textual.strip import Strip

from eaglelocal.tui.transcript.entries import EntryKind, RenderOptions, TranscriptEntry, estimated_height, rows_of
from eaglelocal.tui.transcript.row_positions import RowPositions
from eaglelocal.tui.transcript.text_rows import Row, index_at_cell

MAX_LAID_OUT = 128  # items: a few screens full. Each garbage collection would scan more
MAX_LEAP = 5  # rows
MARGIN = 1  # cells left of the text; one more stays free right of it
MARGIN_SEGMENT = Segment(" " * MARGIN)


class AsciiScrollbar(ScrollBarRender):
    """A scrollbar of whole cells, drawn with colours only."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]


@dataclass(slots=True, eq=False)
class _Item:
    entry: TranscriptEntry
    rows: list[Strip] | None = None  # None: not laid out. Kept as strips, which cache what is derived from them


class Transcript(ScrollView):
    """A scroll view of entries, one below the other."""

    DEFAULT_CSS = "Transcript { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: scroll; }"

    class ThoughtClicked(Message):
        """The title of a thought was clicked, to unfold or fold all thoughts."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.can_focus = False
        self._items: list[_Item] = []
        self._laid_out: dict[_Item, None] = {}  # the least recently needed first
        self._tops = RowPositions()
        self._view = RenderOptions()
        self._follows = True
        self._grows = False
        self._laid_out_width = 0
        self._empty, self._empty_style = Strip([]), Style.null()
        self._base: Style | None = None  # cache of `rich_style`, which is slow; None after a change of style

    # ---- contents
    def __len__(self) -> int:
        return len(self._items)

    @property
    def view(self) -> RenderOptions:
        return self._view

    @view.setter
    def view(self, view: RenderOptions) -> None:
        if view != self._view:
            self._view = view
            self._forget_rows()

    def use_ascii(self) -> None:
        """Draw the scrollbar in ASCII."""
        self.vertical_scrollbar.renderer = AsciiScrollbar  # type: ignore[misc]  # as in Textual's docstring

    def replace_from(self, index: int, entries: Iterable[TranscriptEntry]) -> None:
        """Replace all entries from an index on; those that stay the same are not laid out again, nor drawn."""
        shown, y = self._in_view(), self.scroll_offset.y
        self._exchange(index, list(entries))
        self._settle()
        if self.scroll_offset.y != y:
            return  # scrolling draws everything
        changed = [row for row, (old, new) in enumerate(zip(shown, self._in_view(), strict=True)) if old != new]
        if changed:
            self.refresh(Region(0, changed[0], self.size.width, changed[-1] - changed[0] + 1))

    def _exchange(self, index: int, entries: list[TranscriptEntry]) -> None:
        kept = self._items[index:]
        del self._items[index:]
        self._tops.truncate(index)
        for number, entry in enumerate(entries):
            is_same = number < len(kept) and kept[number].entry == entry
            item = kept[number] if is_same else _Item(entry)
            self._items.append(item)
            self._tops.append(self._height_of(item))
        for old, new in zip_longest(kept, self._items[index:]):
            if old is not None and old is not new and old.rows is not None:
                del self._laid_out[old]

    def _in_view(self) -> list[Strip]:
        return self._rows(self.scroll_offset.y, self.size.height)

    def insert(self, index: int, entry: TranscriptEntry) -> None:
        """Insert an entry above the one at `index`."""
        self.replace_from(index, [entry, *(item.entry for item in self._items[index:])])

    def note(self, index: int, text: str) -> None:
        """Insert a note; consecutive notes form one block."""
        follows_note = index > 0 and self._items[index - 1].entry.kind is EntryKind.NOTE
        self.insert(index, TranscriptEntry(EntryKind.NOTE, text, has_gap=not follows_note))

    def take_back(self) -> None:
        """Remove the last question and everything below it."""
        questions = [index for index, item in enumerate(self._items) if item.entry.kind is EntryKind.QUESTION]
        if questions:
            self.replace_from(questions[-1], ())

    def load(self, entries: Iterable[TranscriptEntry]) -> None:
        self._follows = True
        self.replace_from(0, entries)

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._follows = True
        self._settle()

    def grow(self, grows: bool) -> None:
        """Set if an answer is being written at the end."""
        self._grows = grows
        self._settle()

    # ---- laying out
    @property
    def _width(self) -> int:
        return max(self.scrollable_content_region.width - MARGIN - 1, 1)

    def _height_of(self, item: _Item) -> int:
        return estimated_height(item.entry, self._width, self._view) if item.rows is None else len(item.rows)

    def _lay_out(self, index: int) -> int:
        """Render the rows of an item if there are none. Return its height."""
        item = self._items[index]
        self._laid_out.pop(item, None)
        self._laid_out[item] = None
        if item.rows is None:
            item.rows = [self._painted(row) for row in rows_of(item.entry, self._width, self._view)]
            self._tops.resize(index, len(item.rows))
        return len(item.rows)

    def _painted(self, row: Row) -> Strip:
        """Return the row in the widget's style and width, as one strip, because each strip has half a dozen caches."""
        styled = Segment.apply_style([MARGIN_SEGMENT, *row], self._base_style)
        return Strip(Segment.adjust_line_length(list(styled), self.size.width, self._base_style), self.size.width)

    def _settle(self) -> None:
        """Lay out what is in view, keep it in place, and set the length of the whole."""
        if not self.is_attached or not self.size.height:
            return
        y = self._settled_end() if self._follows else self._settled_middle()
        self._forget_oldest()
        self._set_length(max(self._tops.total, y + self.size.height if self._follows else 0))
        if y != self.scroll_offset.y:
            self.scroll_to(y=y, animate=False, force=True)

    def _settled_end(self) -> int:
        missing, index = self.size.height, len(self)
        while missing > 0 and index > 0:
            index -= 1
            missing -= self._lay_out(index)
        needed, now = max(self._tops.total - self.size.height, 0), self.scroll_offset.y
        if not self._grows or needed == 0:
            return needed
        return now if needed <= now <= needed + self._leap else needed + self._leap

    @property
    def _leap(self) -> int:
        """The rows left free below a growing answer after scrolling, so that one redraw serves all of them."""
        return min(MAX_LEAP, self.size.height // 4)

    def _set_length(self, num_rows: int) -> None:
        """Set `virtual_size` without laying out the whole screen, since nothing else moves."""
        if num_rows != self.virtual_size.height:
            self.set_reactive(Transcript.virtual_size, Size(self._width + MARGIN, num_rows))
            self.vertical_scrollbar.window_virtual_size = num_rows

    def _settled_middle(self) -> int:
        """Return the scroll offset that keeps the first row in view.

        An item that is laid out only now keeps its last row where it was estimated.
        """
        if not self._items:
            return 0
        y = self.scroll_offset.y
        index = self._tops.item_at(y)
        below = self._tops.top(index + 1) - y
        is_known = self._items[index].rows is not None
        height = self._lay_out(index)
        if not is_known:
            y = self._tops.top(index + 1) - min(below, height)
        shown = self._tops.top(index + 1) - y
        while shown < self.size.height and index + 1 < len(self):
            index += 1
            shown += self._lay_out(index)
        return max(min(y, self._tops.total - self.size.height), 0)

    def _forget_oldest(self) -> None:
        """Drop the rows of items that were not needed lately, none of them in view; their heights stay known."""
        num_kept = max(MAX_LAID_OUT, self.size.height)  # an item in view has at least one row there
        for item in list(self._laid_out)[: max(len(self._laid_out) - num_kept, 0)]:
            del self._laid_out[item]
            item.rows = None

    def _forget_rows(self) -> None:
        self._laid_out.clear()
        for index, item in enumerate(self._items):
            item.rows = None
            self._tops.resize(index, self._height_of(item))
        self._settle()
        self.refresh()

    # ---- called by Textual
    def render_line(self, y: int) -> Strip:
        row_number = y + self.scroll_offset.y
        strip = self._row(row_number)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(row_number)) is not None:
            strip = self._selected(strip, span)
        return strip.apply_offsets(0, row_number)

    @property
    def _base_style(self) -> Style:
        if self._base is None:
            self._base = self.rich_style
        return self._base

    def _row(self, row_number: int) -> Strip:
        (row,) = self._rows(row_number, 1)
        return row

    def _rows(self, first: int, count: int) -> list[Strip]:
        """Return `count` rows from `first` on; what is not laid out, or is behind the end, is blank."""
        found: list[Strip] = []
        if self._items and first < self._tops.total:
            index = self._tops.item_at(first)
            offset = first - self._tops.top(index)
            while len(found) < count and index < len(self):
                rows = self._items[index].rows
                known = rows if rows is not None else [self._blank] * self._tops.height(index)
                found += known[offset : offset + count - len(found)]
                index, offset = index + 1, 0
        return found + [self._blank] * (count - len(found))

    @property
    def _blank(self) -> Strip:
        if self._empty.cell_length != self.size.width or self._empty_style is not self._base_style:
            self._empty, self._empty_style = Strip.blank(self.size.width, self._base_style), self._base_style
        return self._empty

    def _selected(self, strip: Strip, span: tuple[int, int]) -> Strip:
        start, end = span
        end = strip.cell_length if end == -1 else end
        style = self.screen.get_component_rich_style("screen--selection")
        parts = list(strip.divide([start, end, strip.cell_length]))
        return Strip.join([part.apply_style(style) if i == 1 else part for i, part in enumerate(parts)])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the text under the mouse's selection, as it is shown, and the string to end it with."""
        lines = [
            row.text
            for index, item in enumerate(self._items)
            for row in item.rows or [Strip([])] * self._tops.height(index)
        ]
        start, end = (self._in_characters(offset, lines) for offset in selection)
        text = Selection(start, end).extract("\n".join(lines))
        return "\n".join(line.rstrip().removeprefix(" " * MARGIN) for line in text.split("\n")), "\n"

    def _in_characters(self, offset: Offset | None, lines: list[str]) -> Offset | None:
        """Convert an offset in cells to one in characters; wide characters have two cells."""
        if offset is None or offset.y >= len(lines):
            return offset
        return Offset(index_at_cell(lines[offset.y], offset.x), offset.y)

    def _select_word(self, x: int, row_number: int) -> None:
        """Select the word in this cell; between two words, select nothing."""
        for word in re.finditer(r"\S+", self._row(row_number).text):
            begin, end = (cell_len(word.string[:index]) for index in word.span())
            if begin <= x < end:
                self.screen.selections = {self: Selection(Offset(begin, row_number), Offset(end, row_number))}

    def _select_row(self, row_number: int) -> None:
        width = cell_len(self._row(row_number).text)
        self.screen.selections = {self: Selection(Offset(0, row_number), Offset(width, row_number))}

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self.size.height:
            self._follows = round(new_value) >= self._tops.total - self.size.height
            if not self._follows:
                self._settle()

    def on_resize(self, event: events.Resize) -> None:
        if self._laid_out_width != self._width:
            self._laid_out_width = self._width
            self._forget_rows()
        else:
            self._settle()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._base is not None and self._base != self.rich_style:
            self._base = None
            self._forget_rows()

    def on_click(self, event: events.Click) -> None:
        """Select a word at a double click, a row at a triple one; Textual would select the whole conversation.

        A single click on the title of a thought posts ThoughtClicked.
        """
        row_number = event.y + self.scroll_offset.y
        if event.chain > 1:
            event.prevent_default()
            event.stop()
            if event.chain == 2:
                self._select_word(event.x, row_number)
            else:
                self._select_row(row_number)
            return
        if self._items and row_number < self._tops.total:
            index = self._tops.item_at(row_number)
            entry = self._items[index].entry
            if entry.kind is EntryKind.THOUGHT and row_number == self._tops.top(index) + entry.has_gap:
                self.post_message(self.ThoughtClicked())
