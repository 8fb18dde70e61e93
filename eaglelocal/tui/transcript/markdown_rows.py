"""Render Markdown as rows of styled text, and find the blocks of a growing text, of which only the last may change.

Pure: text and width in, rows out. HTML, link definitions, and formulas that do not fit into a line of text are shown as
written, so that no word of a model vanishes. Line breaks are kept, as in a poem.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from pygments.lexer import Lexer
from pygments.lexers import get_all_lexers, get_lexer_by_name
from pygments.lexers.special import TextLexer
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import BlockQuote, CodeBlock, Heading, HorizontalRule, ListItem, Markdown, MarkdownElement
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax

from eaglelocal.conversation.code_blocks import find_code_blocks
from eaglelocal.tui.transcript.formulas import convert_formula
from eaglelocal.tui.transcript.text_rows import CODE_META, Appearance, Row, get_console, sanitize_text, trim_rows

# `\(x\)`, `\[x\]`, `$$x$$` and `$x$`, but not prices such as $5 and $10
_FORMULA = re.compile(
    r"\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\]|\$\$.{1,2000}?\$\$|\$(?=[^\s$])[^$\n]{0,500}(?<=[^\s\\])\$(?!\w)", re.DOTALL
)

FORMULAS, SIGNS = "formulas", "signs"  # keys in the environment of the parser's rules: convert them to characters
MAX_LABEL = 20  # characters of a code block's language
_DETAILS_END = re.compile(r" {0,3}</details>\s*")
_DETAILS = re.compile(r"</details>|(?:<details(?: open)?>\s*+)?(?:<summary>(?P<summary>.*?)</summary>)?")
_TASK = re.compile(r"\[([ xX])\]\s")
TASK_SIGNS = {" ": "☐", "x": "☑", "X": "☑"}


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _PlainCode(CodeBlock):
    """A code block, highlighted in the terminal's colors, indented by two, below its label."""

    label, number = "", 0

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _PlainCode:
        language = (token.info.split() or ["text"])[0]
        block = cls(language, markdown.code_theme)
        if token.type == "fence":
            block.number = token.meta.get(CODE_META, 0)
            block.label = f"{language[:MAX_LABEL]} #{block.number}" if block.number else language[:MAX_LABEL]
        return block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(
            str(self.text).rstrip(),
            find_lexer(self.lexer_name),
            theme=self.theme,
            word_wrap=True,
            padding=(0, 2),
        )
        rows = [*Segment.split_lines(console.render(code, options))]
        if self.label:
            style = console.get_style("code.label") + Style(meta={CODE_META: (self.number, len(rows) + 1)})
            yield Segment(set_cell_size(f"  {self.label}", min(cell_len(self.label) + 2, options.max_width)), style)
            yield Segment.line()
        for row in rows:
            yield from row
            yield Segment.line()


class _LineRule(HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style=console.get_style("markdown.hr"))


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
        "hr": _LineRule,
    }


@lru_cache(maxsize=2)
def _cached_document(code_theme: str) -> _MarkdownDocument:
    """Return a document to copy: constructing one also builds a parser, which is slower than rendering a paragraph."""
    return _MarkdownDocument("", code_theme=code_theme, hyperlinks=False)


def _make_document(text: str, code_theme: str, *, env: dict[str, object], first_code: int) -> _MarkdownDocument:
    document = copy.copy(_cached_document(code_theme))
    document.parsed = _get_parser().parse(text, env)
    _number_code([token for token in document.parsed if token.type == "fence"], text, first_code)
    return document


def _number_code(fences: Sequence[Token], text: str, first: int) -> None:
    """Give each fence the number that its code has for `/copy`; none if that would copy something else."""
    blocks = enumerate(find_code_blocks(text), first) if fences else ()
    numbered = [(number, block.code.strip()) for number, block in blocks]
    for fence in fences:
        content = fence.content.strip()
        while numbered:
            number, code = numbered.pop(0)
            if code == content:
                fence.meta[CODE_META] = number
                break


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
    parser.core.ruler.before("inline", "details", _convert_details)
    parser.core.ruler.before("inline", "tasks", _convert_tasks)
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


def _convert_details(state: StateCore) -> None:
    """Turn the summary of `<details>` into a bold line and drop the other tags, as a core rule.

    A line with any other text stays as it was written.
    """
    for token in state.tokens:
        if token.type == "inline" and "<" in token.content:
            lines = [_convert_detail(line, state.env) for line in token.content.split("\n")]
            token.content = "\n".join(line for line in lines if line is not None)


def _convert_detail(line: str, env: Mapping[str, object]) -> str | None:
    found = _DETAILS.fullmatch(line.strip()) if "<" in line else None
    if found is None:
        return line
    title = (found["summary"] or "").strip()
    return f"{'▾' if env.get(SIGNS) else '-'} **{title}**" if title else None


def _convert_tasks(state: StateCore) -> None:
    """Turn `[ ]` and `[x]` at the start of a list's item into a box, as a core rule."""
    for item, paragraph, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        is_item = item.type == "list_item_open" and paragraph.type == "paragraph_open"
        if is_item and state.env.get(SIGNS) and (task := _TASK.match(inline.content)):
            inline.content = f"{TASK_SIGNS[task[1]]} {inline.content[task.end() :]}"


def _keep_line_ends(state: StateCore) -> None:
    """Turn soft line breaks into hard ones, as a core rule."""
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


def render_markdown(
    text: str, width: int, appearance: Appearance, *, formulas: bool = True, first_code: int = 1
) -> list[Row]:
    """Return the text as rows of at most `width` cells, at least one row.

    formulas: convert them to text, where characters exist for that. first_code: the number of the first code block
    """
    theme = "ansi_dark" if appearance.is_dark else "ansi_light"
    env: dict[str, object] = {FORMULAS: formulas and not appearance.is_ascii, SIGNS: not appearance.is_ascii}
    document = _make_document(sanitize_text(text), theme, env=env, first_code=first_code)
    options = get_console().options.update(width=max(width, 1), no_wrap=False)
    return trim_rows(get_console().render_lines(document, options, pad=False), appearance)


def measure_blocks(text: str) -> list[int]:
    """Return the lengths of a text's top-level blocks in characters, which add up to all of it.

    `Hello.\\n\\n- one` gives [8, 5]. In a growing text only the last block may still change.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    tokens = _get_parser().parse(text.replace("\r", " "))  # the parser would end a line there too
    begins = [token.map[0] for token in tokens if token.map and token.level == 0 and token.nesting >= 0]
    begins = [line for line in begins if not _DETAILS_END.fullmatch(lines[line])]  # it has no rows of its own
    edges = [0, *begins[1:], len(lines)]
    return [sum(map(len, lines[low:high])) for low, high in itertools.pairwise(edges)]
