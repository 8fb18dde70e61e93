"""Streamed text replayed on a small terminal model: the text is the same, and lines break between words."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.cli.answer_stream import WordWrap

WORDS = st.lists(st.text("abcdefg", min_size=1, max_size=12), min_size=1, max_size=30)
CONTROL = re.compile(r"\x1b\[(\d*)([DK])|(\n)|(.)", re.DOTALL)


class Screen:
    """A terminal of `columns` that knows text, line feed, cursor back and erase to the end of the line."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[list[str]] = [[]]
        self.at = 0

    def play(self, text: str) -> list[str]:
        for number, control, feed, char in CONTROL.findall(text):
            if control == "D":
                self.at = max(0, self.at - int(number))
            elif control == "K":
                del self.lines[-1][self.at :]
            elif feed:
                self._next_line()
            else:
                self._print(char)
        return ["".join(line).rstrip() for line in self.lines]

    def _print(self, char: str) -> None:
        if self.at == self.columns:
            self._next_line()
        self.lines[-1][self.at :] = [char]
        self.at += 1

    def _next_line(self) -> None:
        self.lines.append([])
        self.at = 0


def shown(text: str, *, columns: int = 20, chunk: int = 3) -> list[str]:
    wrap = WordWrap(columns - 1)
    chunks = [text[at : at + chunk] for at in range(0, len(text), chunk)]
    return Screen(columns).play("".join(run for part in chunks for run, _ in wrap.feed(part, False)))


@given(WORDS, st.integers(1, 7), st.integers(14, 40))
def test_no_word_is_broken_or_lost(words: list[str], chunk: int, columns: int) -> None:
    lines = shown(" ".join(words), columns=columns, chunk=chunk)
    assert " ".join(lines).split() == words
    assert max(len(line) for line in lines) < columns


@given(WORDS, st.integers(14, 40))
def test_lines_are_as_full_as_they_can_be(words: list[str], columns: int) -> None:
    lines = shown(" ".join(words), columns=columns)
    for line, following in itertools.pairwise(lines):
        assert len(line) + 1 + len(following.split()[0]) > columns - 1


def test_line_feeds_stay() -> None:
    assert shown("a b\n\nc") == ["a b", "", "c"]


def test_code_keeps_its_lines() -> None:
    code = "x = some_function(with_arguments) # long"
    lines = shown(f"look:\n```python\n{code}\n```\nand then go on in words", columns=30)
    assert "".join(lines[2:4]) == code
    assert lines[-1] == "and then go on in words"


def test_a_word_longer_than_the_line_is_left_to_the_terminal() -> None:
    lines = shown("a " + "x" * 50 + " b", columns=20)
    assert "".join(lines).replace(" ", "") == "a" + "x" * 50 + "b"


def test_the_colour_of_a_word_moves_with_it() -> None:
    wrap = WordWrap(8)
    wrap.feed("one t", False)
    wrap.feed("wo", True)
    assert wrap.feed("xyz", False) == [
        ("x", False),
        ("\x1b[4D\x1b[K\n", False),
        ("t", False),
        ("w", True),
        ("o", True),
        ("x", False),
        ("y", False),
        ("z", False),
    ]


@pytest.mark.parametrize(("text", "width"), [("日本語 日本語 日本語", 13), ("é́ é é é é", 5)])
def test_wide_and_combining_characters_count_their_cells(text: str, width: int) -> None:
    lines = "".join(run for run, _ in WordWrap(width).feed(text, False)).split("\n")
    assert len(lines) > 1
