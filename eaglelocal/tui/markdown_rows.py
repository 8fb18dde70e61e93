"""Markdown as rows of styled text, and the cut between what of a growing text is finished and what may still change.

Pure: text and width in, rows out. HTML and link definitions are shown as they are written: a model's words never
vanish. Colours are the sixteen of the terminal, so that every theme decides what they look like.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import BlockQuote, CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.theme import Theme

Row = list[Segment]

TAB = "    "
# A model's text must not steer the terminal.
_HARMLESS: dict[int, str] = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_HARMLESS |= {ord("\n"): "\n", ord("\t"): TAB, ord("\r"): ""}
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
class Ink:
    """With what rows are drawn."""

    is_dark: bool = True
    is_ascii: bool = False


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _PlainCode(CodeBlock):
    """Highlighted in the terminal's colours, on its own background, indented by two."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(
            code,
            self.lexer_name,
            theme=self.theme,
            word_wrap=True,
            padding=(0, 2),
            background_color="default",
        )


class _Document(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
        "blockquote_open": BlockQuote,
    }

    def __init__(self, text: str, code_theme: str) -> None:
        super().__init__("", code_theme=code_theme, hyperlinks=False)
        self.parsed = _parser().parse(text)


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["html_block", "html_inline", "reference"])


@lru_cache(maxsize=1)
def _console() -> Console:
    """Renders into nothing; it only knows styles."""
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="truecolor", theme=STYLES, legacy_windows=False, width=80
    )


def harmless(text: str) -> str:
    """Without control characters but line feeds; tabs become blanks."""
    return text.translate(_HARMLESS)


def markdown_rows(text: str, width: int, ink: Ink) -> list[Row]:
    """At most `width` cells a row, at least one row."""
    console = _console()
    document = _Document(harmless(text), "ansi_dark" if ink.is_dark else "ansi_light")
    options = console.options.update(width=max(width, 1), no_wrap=False)
    rows = [_visible(row) for row in console.render_lines(document, options, pad=False)]
    return _shaped(rows, ink)


def plain_rows(text: str, width: int, ink: Ink, style: str = "") -> list[Row]:
    """Words wrapped, lines kept, nothing interpreted."""
    from rich.text import Text

    console = _console()
    options = console.options.update(width=max(width, 1))
    rows = console.render_lines(Text(harmless(text), style=style, overflow="fold"), options, pad=False)
    return _shaped([_visible(row) for row in rows], ink)


def block_lengths(text: str) -> list[int]:
    """How a text is cut between its top-level blocks: characters of each, together all.

    `Hello.\\n\\n- one` gives [8, 5].
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    tokens = _parser().parse(text.replace("\r", " "))  # the parser ends lines there too
    begins = [token.map[0] for token in tokens if _begins_block(token) and token.map]
    edges = [0, *begins[1:], len(lines)]
    return [sum(map(len, lines[low:high])) for low, high in itertools.pairwise(edges)]


def finished_length(text: str) -> int:
    """Characters of a growing Markdown text that stand: all blocks but the last, which may go on."""
    return sum(block_lengths(text)[:-1])


def _begins_block(token: Token) -> bool:
    return token.level == 0 and token.nesting >= 0 and token.map is not None


def _visible(row: Sequence[Segment]) -> Row:
    return [segment for segment in row if segment.text and not segment.control]


def _shaped(rows: list[Row], ink: Ink) -> list[Row]:
    """Without empty rows at either end; in ASCII mode without the characters that only draw."""
    while len(rows) > 1 and not _text(rows[-1]).strip():
        rows.pop()
    while len(rows) > 1 and not _text(rows[0]).strip():
        rows.pop(0)
    if ink.is_ascii:
        rows = [[Segment(s.text.translate(_ASCII), s.style) for s in row] for row in rows]
    return rows or [[]]


def _text(row: Row) -> str:
    return "".join(segment.text for segment in row)
