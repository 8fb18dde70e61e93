"""Markdown as rows of styled text, and the cut between what of a growing text is finished and what may still change.

Pure: text and width in, rows out. HTML, link definitions and ends of lines are shown as they are written, and formulas
that are no line of text: a model's words never vanish, and it ends a line where it means to, as in a poem.
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
from markdown_it.token import Token
from pygments.lexer import Lexer
from pygments.lexers import get_all_lexers, get_lexer_by_name
from pygments.lexers.special import TextLexer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import BlockQuote, CodeBlock, Heading, ListItem, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax

from eaglelocal.tui.formulas import readable
from eaglelocal.tui.rows import Ink, Row, console, harmless, shaped

# `\(x\)`, `\[x\]`, `$$x$$` and `$x$`, but not what is said of $5 and $10
_FORMULA = re.compile(
    r"\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\]|\$\$.{1,2000}?\$\$|\$(?=[^\s$])[^$\n]{0,500}(?<=[^\s\\])\$(?!\w)", re.DOTALL
)

FORMULAS = "formulas"  # in what the parser hands to its rules: are they to be text?


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
            lexer_of(self.lexer_name),
            theme=self.theme,
            word_wrap=True,
            padding=(0, 2),
            background_color="default",
        )


class _DottedItem(ListItem):
    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        """`1.` where rich has a bare number, in as many cells; also of an item in which nothing stands yet."""
        numeral, *rest = [*super().render_number(console, options, number, last_number)] or [
            Segment(""),
            Segment.line(),
        ]
        assert isinstance(numeral, Segment)
        yield Segment(f"{number}.".rjust(len(f"{last_number}.")) + " ", numeral.style)
        yield from rest


class _Document(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
        "blockquote_open": BlockQuote,
        "list_item_open": _DottedItem,
    }


@lru_cache(maxsize=2)
def _empty_document(code_theme: str) -> _Document:
    """Each makes a parser of its own, which takes longer than to render a paragraph; so copies are made."""
    return _Document("", code_theme=code_theme, hyperlinks=False)


def _document(text: str, code_theme: str, *, formulas: bool) -> _Document:
    document = copy.copy(_empty_document(code_theme))
    document.parsed = _parser().parse(text, {FORMULAS: formulas})
    return document


@lru_cache(maxsize=64)
def lexer_of(name: str) -> Lexer:
    """Of a language; code in one that is unknown is shown without colours.

    Plugins are not asked: they are looked for on the disk, for each unknown name, and `p` is one while `python` comes.
    """
    return get_lexer_by_name(name) if name.lower() in _languages() else TextLexer()


@lru_cache(maxsize=1)
def _languages() -> frozenset[str]:
    return frozenset(alias.lower() for _, aliases, _, _ in get_all_lexers(plugins=False) for alias in aliases)


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.core.ruler.push("line_ends", _keep_line_ends)
    return parser.disable(["html_block", "html_inline", "reference"])


def _formula(state: StateInline, silent: bool) -> bool:
    """A rule of the parser: nothing in a formula is Markdown."""
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.push("text", "", 0).content = readable(found[0]) if state.env.get(FORMULAS) else found[0]
    state.pos = found.end()
    return True


def _keep_line_ends(state: StateCore) -> None:
    """Another rule."""
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


def markdown_rows(text: str, width: int, ink: Ink, *, formulas: bool = True) -> list[Row]:
    """At most `width` cells a row, at least one row. formulas: as text, where there are signs for that."""
    theme = "ansi_dark" if ink.is_dark else "ansi_light"
    document = _document(harmless(text), theme, formulas=formulas and not ink.is_ascii)
    options = console().options.update(width=max(width, 1), no_wrap=False)
    return shaped(console().render_lines(document, options, pad=False), ink)


def block_lengths(text: str) -> list[int]:
    """How a text is cut between its top-level blocks: characters of each, together all.

    `Hello.\\n\\n- one` gives [8, 5]. Of a growing text all blocks but the last stand; that one may go on.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    tokens = _parser().parse(text.replace("\r", " "))  # the parser ends lines there too
    begins = [token.map[0] for token in tokens if _begins_block(token) and token.map]
    edges = [0, *begins[1:], len(lines)]
    return [sum(map(len, lines[low:high])) for low, high in itertools.pairwise(edges)]


def _begins_block(token: Token) -> bool:
    return token.level == 0 and token.nesting >= 0 and token.map is not None
