"""Render plain text as rows of styled text that cannot control the terminal, in ASCII on request.

Pure: text and width in, rows out. Only the terminal's 16 colors are used, so its theme decides their look.
Quick to import; Markdown, which is slow to import, is in markdown_rows.py.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme
from textual.geometry import Offset
from textual.strip import Strip

from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import clean_text

Row = list[Segment]

TAB = "    "
CODE_META = "code"  # of the style of a code block's label: its number, and how many rows the block has with it
_FIRST_COLUMN = re.compile(r"\S(?:\S|\s(?!\s))*+\s{2,}+(?=\S)")
_ASCII = str.maketrans({"•": "*", "▌": "|", "─": "-", "━": "-", "│": "|", "┃": "|", "╺": "-", "╸": "-"})

STYLES = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.h5": "italic",
        "markdown.h6": "italic",
        "markdown.code": "cyan",
        "markdown.code_block": "none",
        "code.label": "dim",
        "markdown.block_quote": "dim",
        "markdown.link": "underline",
        "markdown.link_url": "underline",
        "markdown.item.bullet": "bold",
        "markdown.item.number": "bold",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
        "markdown.hr": "dim",
    }
)


@dataclass(frozen=True, slots=True)
class Appearance:
    """The background and the characters that rows are drawn for."""

    is_dark: bool = True
    is_ascii: bool = False


@lru_cache(maxsize=1)
def get_console() -> Console:
    """Return a console that prints nowhere; it renders segments with STYLES."""
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="truecolor", theme=STYLES, legacy_windows=False, width=80
    )


def sanitize_text(text: str) -> str:
    """Return the text cleaned as by `clean_text`, with blanks for tabs."""
    return clean_text(text).replace("\t", TAB)


def render_plain(text: str, width: int, appearance: Appearance, style: str = "") -> list[Row]:
    """Return the text as rows: words wrapped, lines kept, no markup interpreted."""
    options = get_console().options.update(width=max(width, 1))
    rows = get_console().render_lines(Text(sanitize_text(text), style=style, overflow="fold"), options, pad=False)
    return trim_rows(rows, appearance)


def render_columns(text: str, width: int, appearance: Appearance, style: str = "") -> list[Row]:
    """Return rows as `render_plain` does; if a line has two columns, the second one wraps below itself."""
    return [row for line in text.split("\n") for row in _render_line(line, width, appearance, style)]


def _render_line(line: str, width: int, appearance: Appearance, style: str) -> list[Row]:
    first = _FIRST_COLUMN.match(line)
    indent = first.end() if first and first.end() <= width // 2 else 0
    rows = render_plain(line[indent:], width - indent, appearance, style)
    begin = Segment(line[:indent], rows[0][0].style if rows[0] else None)
    return [[begin if number == 0 else Segment(" " * indent), *row] for number, row in enumerate(rows)]


def trim_rows(rows: Sequence[Sequence[Segment]], appearance: Appearance) -> list[Row]:
    """Return the rows without empty ones at either end; in ASCII mode, with drawing characters replaced."""
    visible = [[segment for segment in row if segment.text and not segment.control] for row in rows]
    while len(visible) > 1 and not join_row(visible[-1]).strip():
        visible.pop()
    while len(visible) > 1 and not join_row(visible[0]).strip():
        visible.pop(0)
    if appearance.is_ascii:
        visible = [[Segment(s.text.translate(_ASCII), s.style) for s in row] for row in visible]
    return visible or [[]]


def join_row(row: Row) -> str:
    return "".join(segment.text for segment in row)


def find_index_at_cell(text: str, cell: int) -> int:
    """Return the index of the first character that begins in this cell or after it."""
    return next((index for index in range(len(text)) if cell_len(text[:index]) >= cell), len(text))


def put_over(strip: Strip, style: Style) -> Strip:
    """Return the strip with a style over that of its segments, each of which has a background of its own."""
    return Strip(Segment.apply_style(strip, post_style=style), strip.cell_length)


def to_characters(offset: Offset | None, lines: list[str]) -> Offset | None:
    """Convert an offset in cells to one in characters; wide characters have two cells."""
    if offset is None or offset.y >= len(lines):
        return offset
    return Offset(find_index_at_cell(lines[offset.y], offset.x), offset.y)
