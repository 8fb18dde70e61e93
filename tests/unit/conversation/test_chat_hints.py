"""Hints of errors in a chat name its commands."""

from __future__ import annotations

import pytest

from eaglelocal.conversation.chat_hints import COMMANDS, word_for_chat
from eaglelocal.conversation.slash_commands import COMMANDS as SLASH_COMMANDS


@pytest.mark.parametrize(
    ("hint", "worded"),
    [
        ("--draft auto", "/draft auto"),
        ("`--draft none`", "`/draft none`"),
        ("--max-tokens 99", "/set max_tokens 99"),
        ("--draft auto or --ctx 4096", "/draft auto or eaglelocal chat --ctx 4096"),
        ("eaglelocal chat --target demo", "/model demo"),
        ("eaglelocal chat --target demo --mmproj x.gguf", "eaglelocal chat --target demo --mmproj x.gguf"),
        ("eaglelocal pull qwen3-8b", "eaglelocal pull qwen3-8b"),
        ("is the server running, and this its address?", "is the server running, and this its address?"),
        ("", ""),
    ],
)
def test_a_hint_names_what_the_chat_knows(hint: str, worded: str) -> None:
    assert word_for_chat(hint) == worded


def test_the_commands_of_hints_are_commands() -> None:
    assert {command.split()[0] for command in COMMANDS.values()} <= SLASH_COMMANDS.keys()
