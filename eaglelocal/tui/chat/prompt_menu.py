"""The menu over the prompt: a window of rows, one of which may be highlighted. The prompt passes keys to it."""

from __future__ import annotations

from rich.cells import cell_len
from textual import events
from textual.message import Message

from eaglelocal.tui.chat.menu_rows import Menu, MenuRow, MenuSources, make_menu
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.styled_lines import Line, Role, StyledSpan, cut_line, fit_line, make_line

MAX_ROWS = 8
MIN_ABOVE = 3  # rows of the screen that stay visible above the menu
MARK = "> "  # of the highlighted row
FRAME = 2  # cells of the border at both ends, and rows


class PromptMenu(LinesWidget):
    """A menu for the text before the cursor, above the line `anchor`."""

    DEFAULT_CSS = """
    PromptMenu {
        display: none; position: absolute; overlay: screen; border: round $primary; background: $surface; padding: 0 1;
        border-subtitle-color: $text-muted;
        &:ansi { background: ansi_default; }
    }
    """

    class RowClicked(Message):
        """A row was clicked."""

    def __init__(self, sources: MenuSources) -> None:
        super().__init__(id="menu")
        self._sources = sources
        self._menu: Menu | None = None
        self._highlighted: int | None = None
        self._top = 0  # index of the first row that is shown
        self._closed_for: str | None = None  # the text for which the user closed it

    # ---- for the prompt
    @property
    def is_open(self) -> bool:
        return self._menu is not None

    @property
    def rows(self) -> tuple[MenuRow, ...]:
        return () if self._menu is None else self._menu.rows

    @property
    def begin(self) -> int:
        """The index of the part of the text that a row replaces."""
        return 0 if self._menu is None else self._menu.begin

    @property
    def highlighted(self) -> MenuRow | None:
        """The row that Enter takes."""
        return None if self._highlighted is None else self.rows[self._highlighted]

    def show_for(self, typed: str) -> None:
        """Show the menu for a text before the cursor, unless the user closed it for the text's beginning."""
        if self._closed_for is not None and not typed.startswith(self._closed_for):
            self._closed_for = None
        self._menu = None if self._closed_for is not None else make_menu(typed, self._sources)
        self._highlighted = None if self._menu is None else self._menu.first
        self.draw()

    def close(self, typed: str | None = None) -> None:
        """Close the menu; for a text that is given, it stays closed while more is typed."""
        self._menu, self._highlighted, self._closed_for = None, None, typed
        self.draw()

    def move(self, step: int) -> None:
        """Highlight the next row, or the one before, as through a ring."""
        start = -1 if self._highlighted is None and step > 0 else self._highlighted or 0
        self._highlighted = (start + step) % len(self.rows)
        self.draw()

    # ---- drawing
    def draw(self) -> None:
        """Draw the menu where it belongs, above the status line."""
        self.display = self._menu is not None
        if self._menu is None or not self.is_mounted:
            return
        bottom = self.app.query_one("#status").region.y
        total = len(self.rows)
        num_shown = max(min(total, MAX_ROWS, bottom - FRAME - MIN_ABOVE), 1)
        width = self.app.size.width
        self._top = scroll_to(self._highlighted or 0, self._top, num_shown, total)
        self.styles.width, self.styles.height = width, num_shown + FRAME
        self.styles.offset = (0, max(bottom - num_shown - FRAME, 0))
        self.show_lines(format_menu(self._menu, self._highlighted, self._top, num_shown, width - 2 * FRAME))
        place = f"{(self._highlighted or 0) + 1}/{total}  " if total > num_shown else ""
        usage = self._menu.usage if self.highlighted is None else self.highlighted.usage
        keys = "tab" if self.highlighted is None else "enter"
        self.show_titles(usage if total else "", f"{place}{keys} takes one, esc closes" if total else "")

    def on_click(self, event: events.Click) -> None:
        """Choose the row that is clicked."""
        event.stop()
        index = self._top + event.get_content_offset_capture(self).y
        if index < len(self.rows):
            self._highlighted = index
            self.post_message(self.RowClicked())


def scroll_to(index: int, top: int, num_shown: int, num_rows: int) -> int:
    """Return the first row to show so that row `index` is in view, as near to `top` as possible."""
    least, most = index - num_shown + 1, min(index, max(num_rows - num_shown, 0))
    return max(min(top, most), least, 0)


def format_menu(menu: Menu, highlighted: int | None, top: int, num_shown: int, width: int) -> list[Line]:
    """Return the lines of the rows from `top` on, `width` cells wide; or how the command is used."""
    if not menu.rows:
        return [cut_line(make_line((menu.usage, "quiet")), width)]
    widths = (max(cell_len(row.name) for row in menu.rows), max(cell_len(row.value) for row in menu.rows))
    shown = menu.rows[top : top + num_shown]
    return [format_row(row, widths, width, is_highlighted=top + n == highlighted) for n, row in enumerate(shown)]


def format_row(row: MenuRow, widths: tuple[int, int], width: int, *, is_highlighted: bool) -> Line:
    """Return name, purpose and present value in columns; a mark says that the row is highlighted.

    widths: of the longest name and value.
    """
    name_width = min(widths[0], width - len(MARK))
    value_width = min(widths[1], width // 4)
    about_width = width - len(MARK) - name_width - (value_width + 2 if row.value else 0)
    columns: tuple[tuple[str, Role, int], ...] = (
        ((MARK if is_highlighted else " " * len(MARK)), "text", len(MARK)),
        (row.name, "strong", name_width),
        (f"  {row.about}" if row.about else "", "quiet", about_width),
        (f"  {row.value}" if row.value else "", "accent", value_width + 2),
    )
    spans = [span for text, role, cells in columns for span in cut_line(make_line((text, role)), max(cells, 0))]
    line = fit_line(tuple(spans), width)
    return tuple(StyledSpan(span.text, "selected") for span in line) if is_highlighted else line
