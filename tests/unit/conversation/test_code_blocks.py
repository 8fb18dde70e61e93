"""Fenced code blocks of answers: how many, in which language, and what is copied of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.conversation.code_blocks import FencedCode, count_code_blocks, find_code_blocks, number_next_code
from eaglelocal.conversation.conversation import ToolRound, Turn
from eaglelocal.tui.transcript.entries import EntryKind, make_entries


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no code, `a` only", []),
        ("```python\na = 1\n\nb = 2\n```\nor\n~~~~\n```\n~~~~", [("python", "a = 1\n\nb = 2"), ("", "```")]),
        ("```\n```", [("", "")]),
        ("```\n\n```", [("", "")]),
        ("1. one\n   ```sh -x\n   ls\n     -l\n   ```\n2. ```\n   b\n   ```", [("sh", "ls\n  -l"), ("", "b")]),
        ("> ```\n> ```", []),  # quotes have no numbers
        ("```js\ncut o", [("js", "cut o")]),
        ("```", [("", "")]),
        ("``` a `b` ```", []),
        ("````md\n```\nx\n```\n````", [("md", "```\nx\n```")]),
    ],
)
def test_blocks_are_found_with_their_language(text: str, found: list[tuple[str, str]]) -> None:
    assert find_code_blocks(text) == [FencedCode(*each) for each in found]


@given(st.text("`~ab \n>-1.", max_size=60), st.text("`~ab \n>-1.", max_size=60))
def test_a_fence_of_its_own_is_counted_behind_any_text(before: str, inside: str) -> None:
    assert count_code_blocks(before) == len(find_code_blocks(before))
    longest = "`" * 61
    whole = f"{longest}x\n{inside}\n{longest}"
    assert find_code_blocks(whole) == [FencedCode("x", inside)]


def test_texts_before_calls_of_tools_have_numbers_too() -> None:
    block = "```\ncode\n```\n"
    turn = Turn("q", block, rounds=(ToolRound((), block),))
    assert number_next_code([turn, Turn("q", "none")]) == 3
    entries = [entry for entry in make_entries([turn, turn]) if entry.kind is EntryKind.ANSWER]
    assert [entry.first_code for entry in entries] == [1, 2, 3, 4]
