"""Long pastes: their placeholders, which are never cut."""

from __future__ import annotations

import pytest

from eaglelocal.tui.chat.text_marks import MAX_CHARS, MAX_LINES, TextMarks

LONG = "\n".join("abcdefghi")  # nine lines
MARK = "[pasted 9 lines]"


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("", ""),
        ("short", "short"),
        ("\n" * (MAX_LINES - 1) + "x", "\n" * (MAX_LINES - 1) + "x"),
        ("\n" * MAX_LINES + "x", MARK),
        (LONG + "\n", MARK),
        ("x" * MAX_CHARS, "x" * MAX_CHARS),
        ("x" * MAX_CHARS + "y", "[pasted 1001 characters]"),
    ],
)
def test_what_is_long_is_folded_and_comes_out_whole(text: str, folded: str) -> None:
    folding = TextMarks()
    assert folding.fold(text) == folded
    assert folding.unfold(f"a {folded} b") == f"a {text} b"


def test_each_paste_has_its_own_mark() -> None:
    folding, other = TextMarks(), LONG.upper()
    assert [folding.fold(text) for text in (LONG, other, LONG)] == [MARK, "[pasted 9 lines, 2]", MARK]
    assert folding.unfold(f"{MARK}[pasted 9 lines, 2]{MARK}") == LONG + other + LONG
    assert folding.unfold("[pasted 8 lines]") == "[pasted 8 lines]"
    assert folding.fold_known(f"a {other}{LONG} b") == f"a [pasted 9 lines, 2]{MARK} b"


@pytest.mark.parametrize(
    ("begin", "end", "changed"),
    [
        (0, 1, (0, 1)),
        (2, 2, (2, 2)),  # before it
        (3, 3, (18, 18)),  # in it: behind it
        (18, 18, (18, 18)),
        (17, 18, (2, 18)),
        (2, 3, (2, 18)),
        (0, 5, (0, 18)),
        (10, 20, (2, 20)),
        (18, 20, (18, 20)),
    ],
)
def test_a_mark_changes_as_a_whole(begin: int, end: int, changed: tuple[int, int]) -> None:
    folding = TextMarks()
    text = f"a {folding.fold(LONG)} b"
    assert text[2:18] == MARK
    assert folding.widen(text, begin, end) == changed
