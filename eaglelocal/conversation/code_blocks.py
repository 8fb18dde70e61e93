"""Find the fenced code blocks of an answer. Pure.

The blocks of a conversation are numbered from 1, in their order; the chat screen shows the number above each block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from eaglelocal.conversation.conversation import Turn
from eaglelocal.core.records import dataclass

_INDENT = r"(?:[ \t]|[-*+] |\d{1,9}[.)] )*"  # with the marks of list items
_FENCE = re.compile(rf"^(?P<indent>{_INDENT})(?P<fence>`{{3,}}|~{{3,}})(?P<about>[^`\n]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FencedCode:
    """A fenced code block: the first word after its fence, and what is inside, without the block's indentation."""

    language: str
    code: str


def count_code_blocks(text: str) -> int:
    return len(find_code_blocks(text)) if "```" in text or "~~~" in text else 0


def number_next_code(turns: Iterable[Turn]) -> int:
    """Return the number of the first code block after these turns."""
    return 1 + sum(count_code_blocks(text) for turn in turns for text in turn.texts)


def find_code_blocks(text: str) -> list[FencedCode]:
    """Return the fenced blocks of a Markdown text, in order; the last one even if its end is missing."""
    blocks: list[FencedCode] = []
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif _closes(fence, opening):
            blocks.append(_cut_out(opening, text[opening.end() + 1 : max(fence.start() - 1, opening.end() + 1)]))
            opening = None
    return blocks if opening is None else [*blocks, _cut_out(opening, text[opening.end() + 1 :])]


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    return fence["fence"].startswith(opening["fence"]) and not fence["about"].strip() and not fence["indent"].strip()


def _cut_out(opening: re.Match[str], inside: str) -> FencedCode:
    """Return the block whose lines are indented as its fence is, where a list's mark counts as blanks."""
    indent = " " * len(opening["indent"])
    code = "\n".join(line.removeprefix(indent) for line in inside.split("\n"))
    return FencedCode((opening["about"].split() or [""])[0], code)
