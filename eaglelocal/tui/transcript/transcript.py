"""The transcript: a scrolling column of entries, of any length, of which only those in view are laid out.

It draws lines and has no child widgets, so scrolling through fifty thousand tokens costs as much as one screen. While
it shows the end it follows new text; scrolled up, it stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Region, Size
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBarRender
from textual.selection import Selection
from textual.strip import Strip

from eaglelocal.conversation.ask import LOOP_LINE, AskResult, left_out_line
from eaglelocal.conversation.conversation import ToolRound, Turn
from eaglelocal.core.amounts import count_noun
from eaglelocal.errors import Cancelled, EagleLocalError
from eaglelocal.tui.transcript.entries import (
    FOLDED,
    EntryKind,
    LiveAnswer,
    RenderOptions,
    TranscriptEntry,
    describe_end,
    estimate_height,
    is_long_question,
    make_call_entries,
    make_entries,
    make_error_entry,
    make_figures_entries,
    make_question,
    render_entry,
)
from eaglelocal.tui.transcript.stops import (
    Stop,
    find_neighbor,
    list_stops,
    read_stop,
)
from eaglelocal.tui.transcript.text_rows import Appearance, Row, put_over, to_characters
from eaglelocal.tui.transcript.transcript_layout import TranscriptLayout, find_last_stop, find_stop_rows

MAX_SPARE_ROWS = 5
MARGIN = 1  # cells left of the text; one more stays free right of it
MARGIN_SEGMENT = Segment(" " * MARGIN)
MAX_TEXT_COLUMNS = 100  # longer lines are hard to read
STOP_SIGN, ASCII_STOP_SIGN = "▌", "|"  # in the margin of what one stands on
CONTEXT_ROWS = 1  # shown above a stop that was out of view


class AsciiScrollbar(ScrollBarRender):
    """A scrollbar of whole cells, drawn with colors only."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]


class Transcript(ScrollView):
    """A scroll view of entries, one below the other: finished ones, and after them the answer that still grows.

    Another thread pushes the pieces of the answer (LiveAnswer); everything else is for the screen's thread.
    """

    DEFAULT_CSS = """
    Transcript {
        height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: scroll;
        & > .transcript--stop { background: $block-cursor-background; }
        &:ansi > .transcript--stop { background: ansi_default; text-style: bold; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"transcript--stop"}

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.can_focus = False
        self.has_figures = True  # a line of figures stands below each answer, not only why it ended early
        self._live = LiveAnswer()
        self._tail = 0  # index of the entry from which the running answer may change
        self._layout = TranscriptLayout(self._render_entry, self._estimate_height)
        self._view = RenderOptions()
        self._follows = True
        self.is_growing = False  # an answer is being written at the end
        self._late: list[TranscriptEntry] = []  # that are added when it has ended
        self.stop: Stop | None = None  # where the user stands
        self._stop_rows = range(0)
        self._followed_before = True  # standing began
        self._laid_out_width = 0
        self._empty, self._empty_style = Strip([]), Style.null()
        self._base: Style | None = None  # cache of `rich_style`, which is slow; None after a change of style

    # ---- question and answer
    def note(self, text: str) -> None:
        """Show a note: above the growing answer, or below it once it has any text."""
        self._add_message(TranscriptEntry(EntryKind.NOTE, text), is_late=self._live.has_begun)

    def reply(self, reply: str | EagleLocalError) -> None:
        """Show what a command says, or an error; during an answer, below it."""
        entry = TranscriptEntry(EntryKind.NOTE, reply) if isinstance(reply, str) else make_error_entry(reply)
        self._add_message(entry, is_late=True)

    def add_rule(self, text: str) -> None:
        """Draw a rule across the transcript with a text in it."""
        self._add(TranscriptEntry(EntryKind.RULE, text))

    def _add_message(self, entry: TranscriptEntry, *, is_late: bool) -> None:
        """Add an entry that is no part of the growing answer. is_late: when that has ended."""
        if is_late and self.is_growing:
            self._late.append(entry)
        else:
            self._add(entry)

    def add_question(self, question: str, live: LiveAnswer, turn: int) -> None:
        """Add a question, whose answer grows in `live` from here on. turn: the index of its turn."""
        self._live = live
        self._tail = len(self._layout)  # an answer that failed at once has not set it
        self.follow()
        self._add(make_question(question, turn))
        self._set_growing(True)

    def draw_answer(self) -> None:
        """Show what has arrived of the answer since the last call."""
        if self._live.has_pieces:
            finished, growing = self._live.advance()
            self._replace_from(self._tail, [*finished, *growing])
            self._tail += len(finished)

    def add_calls(self, done: ToolRound, live: LiveAnswer) -> None:
        """Add the calls of tools that an answer ended with; it goes on in `live`."""
        self.draw_answer()
        self._tail = len(self._layout)
        for entry in make_call_entries(done):
            self._add(entry)
        self._live = live

    def end_answer(self, result: AskResult, turn: Turn | None, n_ctx: int) -> None:
        """Finish the answer, complete or not, with its figures or its error. n_ctx: tokens of the context."""
        self.draw_answer()
        self._tail = len(self._layout)
        self._set_growing(False)
        outcome = result.outcome
        if result.num_left_out:
            self.note(left_out_line(result.num_left_out, n_ctx))
        line = describe_end(outcome.finished, n_ctx, has_figures=self.has_figures)
        if outcome.finished is None and outcome.text:
            line = "the answer above is incomplete"
        for entry in make_figures_entries(turn, line):
            self._add(entry)
        if outcome.is_loop:
            self.note(f"{LOOP_LINE}; /retry asks again; `go on` continues")
        elif outcome.missing_text:
            self.note(outcome.missing_text)
        if isinstance(outcome.error, Cancelled):
            self.note(outcome.error.message)
        elif outcome.error is not None:
            self.reply(outcome.error)
        if not result.is_restored:  # else the turns that were cut come back in place of all this
            self._add_late()

    def _add_late(self) -> None:
        late, self._late = self._late, []
        for entry in late:
            self._add(entry)

    def replace_turns(self, index: int, turns: Iterable[Turn], first_code: int = 1) -> None:
        """Replace the turns from an index on. first_code: the number of the first code block in them."""
        entries = self._layout.entries
        found = (at for at in reversed(range(len(entries))) if entries[at].turn == index)
        self._live = LiveAnswer()
        self._replace_from(next(found, len(entries)), self._make_entries(turns, index, first_code))
        self._tail = len(self._layout)
        self._add_late()

    def _make_entries(self, turns: Iterable[Turn], index: int = 0, first_code: int = 1) -> list[TranscriptEntry]:
        return make_entries(turns, index, first_code, has_figures=self.has_figures)

    def fold_turns(self, summary: str, num_turns: int) -> None:
        """Replace the first `num_turns` turns, and what is above them, by a folded summary."""
        entries = self._layout.entries
        kept = (at for at, each in enumerate(entries) if each.kind is EntryKind.QUESTION and each.turn == num_turns)
        begin = next(kept, len(entries))
        folded = TranscriptEntry(
            EntryKind.SUMMARY, summary, title=f"summary of {count_noun(num_turns, 'earlier turn')}"
        )
        self._replace_from(0, [folded, *entries[begin:]])
        self._tail = len(self._layout)

    def replace_conversation(self, turns: Iterable[Turn]) -> None:
        """Replace everything by another conversation, and go to its end."""
        self.leave_stop()
        self._follows = True
        self._live = LiveAnswer()
        self._late = []
        self._replace_from(0, self._make_entries(turns))
        self._tail = len(self._layout)

    def _add(self, entry: TranscriptEntry) -> None:
        """Insert an entry above the growing answer; consecutive notes form one block."""
        if entry.kind is EntryKind.NOTE and self._tail > 0 and self._layout.entry(self._tail - 1).kind is entry.kind:
            entry = replace(entry, has_gap=False)
        self._replace_from(self._tail, [entry, *self._layout.entries[self._tail :]])
        self._tail += 1

    def _replace_from(self, index: int, entries: Sequence[TranscriptEntry]) -> None:
        """Replace all entries from an index on; those that stay the same are not laid out again, nor drawn."""
        old_rows, y = self._visible_rows(), self.scroll_offset.y
        self._layout.replace_from(index, entries)
        self._keep_stop()
        self._update_scroll()
        if self.scroll_offset.y != y:
            return  # scrolling draws everything
        if self.stop is not None:
            self.refresh()
            return
        pairs = zip(old_rows, self._visible_rows(), strict=True)
        changed = [row for row, (old, new) in enumerate(pairs) if old != new]
        if changed:
            self.refresh(Region(0, changed[0], self.size.width, changed[-1] - changed[0] + 1))

    # ---- view
    def restyle(self, appearance: Appearance, *, marks_drafted: bool) -> None:
        """Draw everything in another appearance, with drafted text marked or not."""
        if appearance.is_ascii:
            self.vertical_scrollbar.renderer = AsciiScrollbar  # type: ignore[misc]  # as in Textual's docstring
        self._change_view(replace(self._view, appearance=appearance, marks_drafted=marks_drafted))

    def toggle_thoughts(self) -> None:
        """Unfold or fold all thoughts, calls of tools, and long questions."""
        self._change_view(replace(self._view, shows_thoughts=not self._view.shows_thoughts))

    def _change_view(self, view: RenderOptions) -> None:
        if view != self._view:
            self._view = view
            self._lay_out_again()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self.leave_stop()
        self._follows = True
        self._update_scroll()

    def _set_growing(self, grows: bool) -> None:
        self.is_growing = grows
        self._update_scroll()

    # ---- standing on a turn
    def move_stop(self, step: int) -> None:
        """Stand on the stop before (step -1) or after (1) this one, at first on the last one in view.

        After the last stop, stop standing.
        """
        if self.stop is None:
            if (found := find_last_stop(self._layout, self.scroll_offset.y + self.size.height)) is not None:
                self._followed_before = self._follows
                self._stand_on(found)
            return
        found = find_neighbor(self._layout.entries, self.stop, step)
        if found is not None:
            self._stand_on(found)
        elif step > 0:
            self.follow()

    def leave_stop(self) -> None:
        """Stop standing, and follow the end again if that was so before."""
        if self.stop is not None:
            self.stop, self._stop_rows = None, range(0)
            self.refresh()
            if self._followed_before:
                self.follow()

    @property
    def stop_text(self) -> str:
        """The text that the user stands on, as it was written."""
        return "" if self.stop is None else read_stop(self._layout.entries, self.stop)

    @property
    def stop_question(self) -> TranscriptEntry | None:
        """The question that the user stands on, or whose answer it is."""
        return None if self.stop is None else self._layout.entry(self.stop.question)

    def _stand_on(self, stop: Stop) -> None:
        """Stand on a stop, and scroll there if it is not in view as a whole."""
        self.stop, self._follows = stop, False
        rows, y = find_stop_rows(self._layout, stop), self.scroll_offset.y
        if rows.start < y or min(rows.stop, rows.start + self.size.height) > y + self.size.height:
            self.scroll_to(y=max(rows.start - CONTEXT_ROWS, 0), animate=False, force=True, immediate=True)
        self._update_scroll()
        self.refresh()

    def _keep_stop(self) -> None:
        """Stay where the user stands after a change of entries, or on the same turn if that stop is gone."""
        if self.stop is None:
            return None
        entries, at = self._layout.entries, self.stop.question
        if at >= len(entries) or entries[at].kind is not EntryKind.QUESTION:
            return self.leave_stop()
        stops = list_stops(entries, at)
        self.stop = self.stop if self.stop in stops else stops[min(1, len(stops) - 1)]
        return None

    def _mark_stop(self, strip: Strip) -> Strip:
        sign = ASCII_STOP_SIGN if self._view.appearance.is_ascii else STOP_SIGN
        style = self.get_component_rich_style("transcript--stop", partial=True)
        return put_over(Strip([Segment(sign, self._base_style), *strip.crop(MARGIN)], strip.cell_length), style)

    # ---- rendering
    @property
    def _width(self) -> int:
        return max(min(self.scrollable_content_region.width - MARGIN - 1, MAX_TEXT_COLUMNS), 1)

    @property
    def _base_style(self) -> Style:
        if self._base is None:
            self._base = self.rich_style
        return self._base

    @property
    def _blank(self) -> Strip:
        if self._empty.cell_length != self.size.width or self._empty_style is not self._base_style:
            self._empty, self._empty_style = Strip.blank(self.size.width, self._base_style), self._base_style
        return self._empty

    def _estimate_height(self, entry: TranscriptEntry) -> int:
        return estimate_height(entry, self._width, self._view)

    def _render_entry(self, entry: TranscriptEntry) -> list[Strip]:
        return [self._make_strip(row) for row in render_entry(entry, self._width, self._view)]

    def _make_strip(self, row: Row) -> Strip:
        """Return the row in the widget's style and width, as one strip, because each strip has half a dozen caches."""
        styled = Segment.apply_style([MARGIN_SEGMENT, *row], self._base_style)
        return Strip(Segment.adjust_line_length(list(styled), self.size.width, self._base_style), self.size.width)

    # ---- scrolling
    def _update_scroll(self) -> None:
        """Lay out what is in view, keep it in place, and set the length of the whole."""
        if not self.is_attached or not self.size.height:
            return
        y = self._lay_out_end() if self._follows else self._lay_out_view()
        self._stop_rows = range(0) if self.stop is None else find_stop_rows(self._layout, self.stop)
        self._layout.drop_oldest_rows(self.size.height)  # an entry in view has at least one row there
        self._set_length(max(self._layout.num_rows, y + self.size.height if self._follows else 0))
        if y != self.scroll_offset.y:
            self.scroll_to(y=y, animate=False, force=True)

    def _lay_out_end(self) -> int:
        """Return the scroll offset that shows the end."""
        missing, index = self.size.height, len(self._layout)
        while missing > 0 and index > 0:
            index -= 1
            missing -= self._layout.lay_out(index)
        y, now = max(self._layout.num_rows - self.size.height, 0), self.scroll_offset.y
        if not self.is_growing or y == 0:
            return y
        return now if y <= now <= y + self._spare_rows else y + self._spare_rows

    @property
    def _spare_rows(self) -> int:
        """The rows left free below a growing answer after scrolling, so that one redraw serves all of them."""
        return min(MAX_SPARE_ROWS, self.size.height // 4)

    def _lay_out_view(self) -> int:
        """Return the scroll offset that keeps the first row in view.

        An entry that is laid out only now keeps its last row where it was estimated.
        """
        if not len(self._layout):
            return 0
        layout, y = self._layout, self.scroll_offset.y
        index = layout.index_at(y)
        below = layout.top(index + 1) - y
        was_laid_out = layout.is_laid_out(index)
        height = layout.lay_out(index)
        if not was_laid_out:
            y = layout.top(index + 1) - min(below, height)
        num_shown = layout.top(index + 1) - y
        while num_shown < self.size.height and index + 1 < len(self._layout):
            index += 1
            num_shown += layout.lay_out(index)
        return max(min(y, layout.num_rows - self.size.height), 0)

    def _set_length(self, num_rows: int) -> None:
        """Set `virtual_size` without laying out the whole screen, since nothing else moves."""
        if num_rows != self.virtual_size.height:
            self.set_reactive(Transcript.virtual_size, Size(self._width + MARGIN, num_rows))
            self.vertical_scrollbar.window_virtual_size = num_rows

    def _lay_out_again(self) -> None:
        self._layout.drop_all_rows()
        self._update_scroll()
        self.refresh()

    # ---- called by Textual
    def render_line(self, y: int) -> Strip:
        row_number = y + self.scroll_offset.y
        strip = self._row(row_number)
        if row_number in self._stop_rows:
            strip = self._mark_stop(strip)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(row_number)) is not None:
            strip = self._highlight(strip, span)
        return strip.apply_offsets(0, row_number)

    def _row(self, row_number: int) -> Strip:
        (row,) = self._layout.rows(row_number, 1, self._blank)
        return row

    def _visible_rows(self) -> list[Strip]:
        return self._layout.rows(self.scroll_offset.y, self.size.height, self._blank)

    def _highlight(self, strip: Strip, span: tuple[int, int]) -> Strip:
        start, end = span
        end = strip.cell_length if end == -1 else end
        style = self.screen.get_component_rich_style("screen--selection", partial=True)
        parts = list(strip.divide([start, end, strip.cell_length]))
        return Strip.join([put_over(part, style) if i == 1 else part for i, part in enumerate(parts)])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the text under the mouse's selection, as it is shown, and the string to end it with."""
        lines = [row.text for row in self._layout.rows(0, self._layout.num_rows, Strip([]))]
        start, end = (to_characters(offset, lines) for offset in selection)
        text = Selection(start, end).extract("\n".join(lines))
        return "\n".join(line.rstrip().removeprefix(" " * MARGIN) for line in text.split("\n")), "\n"

    def _select_word(self, x: int, row_number: int) -> None:
        """Select the word in this cell; between two words, select nothing."""
        for word in re.finditer(r"\S+", self._row(row_number).text):
            begin, end = (cell_len(word.string[:index]) for index in word.span())
            if begin <= x < end:
                self._select(row_number, begin, end)

    def _select(self, row_number: int, begin: int, end: int) -> None:
        self.screen.selections = {self: Selection(Offset(begin, row_number), Offset(end, row_number))}

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self.size.height:
            self._follows = self.stop is None and round(new_value) >= self._layout.num_rows - self.size.height
            if not self._follows:
                self._update_scroll()

    def on_resize(self, event: events.Resize) -> None:
        if self._laid_out_width != self._width:
            self._laid_out_width = self._width
            self._lay_out_again()
        else:
            self._update_scroll()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._base is not None and self._base != self.rich_style:
            self._base = None
            self._lay_out_again()

    def on_click(self, event: events.Click) -> None:
        """Select a word at a double click, a row at a triple one; Textual would select the whole conversation.

        A single click on the title of a thought or a call, or the last row of a long question, unfolds or folds all.
        """
        row_number = event.y + self.scroll_offset.y
        if event.chain > 1:
            event.prevent_default()
            event.stop()
            if event.chain == 2:
                self._select_word(event.x, row_number)
            else:
                self._select(row_number, 0, cell_len(self._row(row_number).text))
        elif len(self._layout) and row_number < self._layout.num_rows:
            index = self._layout.index_at(row_number)
            entry, top = self._layout.entry(index), self._layout.top(index)
            title = top + entry.has_gap if entry.kind in FOLDED else self._layout.top(index + 1) - 1
            if row_number == title and (entry.kind in FOLDED or is_long_question(entry, self._width)):
                self.toggle_thoughts()
