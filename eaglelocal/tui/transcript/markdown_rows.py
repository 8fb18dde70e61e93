"""Render Markdown as rows of styled text, and find the blocks of a growing text, of which only the last may change.

Pure: text and width in, rows out. HTML, link definitions, and formulas that do not fit into a line of text are shown as
written, so that no word of a model vanishes. Line breaks are kept, as in a poem.
"""

from __future__ import annotations

import copy
import itertools
import re
from functools import lru_cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from pygments.lexer import Lexer
from pygments.lexers import get_all_lexers, get_lexer_by_name
from pygments.lexers.special import TextLexer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import BlockQuote, CodeBlock, Heading, ListItem, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax

from eaglelocal.tui.transcript.formulas import convert_formula
from eaglelocal.tui.transcript.text_rows import Appearance, Row, get_console, sanitize_text, trim_rows

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
