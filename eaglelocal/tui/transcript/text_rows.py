"""Render plain text as rows of styled text that cannot control the terminal, in ASCII on request.

Pure: text and width in, rows out. Only the terminal's 16 colors are used, so its theme decides what they look like.
Quick to import; Markdown, which is not, is in text_rows.py.
"""

from __future__ import annotations

import copy
import io
import itertools
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from pygments.lexer import Lexer
from pygments.lexers import get_all_lexers, get_lexer_by_name
from pygments.lexers.special import TextLexer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import BlockQuote, CodeBlock, Heading, ListItem, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import clean_text
from eaglelocal.tui.transcript.formulas import convert_formula

Row = list[Segment]

TAB = "    "
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


# ---- markdown rows: render Markdown as rows of styled text, and find the blocks of a growing text, of which only the
# last may change
#
# Pure: text and width in, rows out. HTML, link definitions, line ends, and formulas that do not fit into a line of
# text are shown as written: no word of a model vanishes, and its line breaks are kept, as in a poem.
# `\(x\)`, `\[x\]`, `$$x$$` and `$x$`, but not prices such as $5 and $10
_FORMULA = re.compile(
    r"\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\]|\$\$.{1,2000}?\$\$|\$(?=[^\s$])[^$\n]{0,500}(?<=[^\s\\])\$(?!\w)", re.DOTALL
)

FORMULAS = "formulas"  # key in the environment of the parser's rules: convert formulas to text


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _PlainCode(CodeBlock):
    """A code block, highlighted in the terminal's colors on its own background, indented by two."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(
            code,
            find_lexer(self.lexer_name),
            theme=self.theme,
            word_wrap=True,
            padding=(0, 2),
            background_color="default",
        )


class _DottedItem(ListItem):
    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        """Yield `1.` where rich has a bare number, in as many cells, also for an item that is still empty."""
        rendered = [*super().render_number(console, options, number, last_number)]
        number_segment, *rest = rendered or [Segment(""), Segment.line()]
        assert isinstance(number_segment, Segment)
        yield Segment(f"{number}.".rjust(len(f"{last_number}.")) + " ", number_segment.style)
        yield from rest


class _MarkdownDocument(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
        "blockquote_open": BlockQuote,
        "list_item_open": _DottedItem,
    }


@lru_cache(maxsize=2)
def _cached_document(code_theme: str) -> _MarkdownDocument:
    """Return a document to copy: constructing one also builds a parser, which is slower than rendering a paragraph."""
    return _MarkdownDocument("", code_theme=code_theme, hyperlinks=False)


def _make_document(text: str, code_theme: str, *, formulas: bool) -> _MarkdownDocument:
    document = copy.copy(_cached_document(code_theme))
    document.parsed = _get_parser().parse(text, {FORMULAS: formulas})
    return document


@lru_cache(maxsize=64)
def find_lexer(name: str) -> Lexer:
    """Return the lexer of a language; code in an unknown one is shown without colors.

    Plugins are left out: each unknown name would search the disk for them, as `p` does while `python` is being written.
    """
    return get_lexer_by_name(name) if name.lower() in _list_languages() else TextLexer()


@lru_cache(maxsize=1)
def _list_languages() -> frozenset[str]:
    return frozenset(alias.lower() for _, aliases, _, _ in get_all_lexers(plugins=False) for alias in aliases)


@lru_cache(maxsize=1)
def _get_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    parser.inline.ruler.before("escape", "formula", _parse_formula)
    parser.core.ruler.push("line_ends", _keep_line_ends)
    return parser.disable(["html_block", "html_inline", "reference"])


def _parse_formula(state: StateInline, silent: bool) -> bool:
    """Parse a formula, as an inline rule: nothing in it is Markdown."""
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.push("text", "", 0).content = convert_formula(found[0]) if state.env.get(FORMULAS) else found[0]
    state.pos = found.end()
    return True


def _keep_line_ends(state: StateCore) -> None:
    """Turn soft line breaks into hard ones, as a core rule."""
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


def render_markdown(text: str, width: int, appearance: Appearance, *, formulas: bool = True) -> list[Row]:
    """Return the text as rows of at most `width` cells, at least one row.

    formulas: convert them to text, where characters exist for that.
    """
    theme = "ansi_dark" if appearance.is_dark else "ansi_light"
    document = _make_document(sanitize_text(text), theme, formulas=formulas and not appearance.is_ascii)
    options = get_console().options.update(width=max(width, 1), no_wrap=False)
    return trim_rows(get_console().render_lines(document, options, pad=False), appearance)


def measure_blocks(text: str) -> list[int]:
    """Return the lengths of a text's top-level blocks in characters, which add up to all of it.

    `Hello.\\n\\n- one` gives [8, 5]. In a growing text only the last block may still change.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    tokens = _get_parser().parse(text.replace("\r", " "))  # the parser would end a line there too
    begins = [token.map[0] for token in tokens if token.map and token.level == 0 and token.nesting >= 0]
    edges = [0, *begins[1:], len(lines)]
    return [sum(map(len, lines[low:high])) for low, high in itertools.pairwise(edges)]
