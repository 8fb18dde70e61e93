"""Long pastes: their placeholders, which are never cut."""

from __future__ import annotations

import base64
import hashlib

import pytest

from eaglelocal.tui.chat.text_marks import MAX_CHARS, MAX_LINES, TextMarks, estimate_tokens

LONG = "\n".join("abcdefghi")  # nine lines
MARK = "[9 lines, ~6 tokens]"
BASE64 = base64.b64encode(b"".join(hashlib.sha256(bytes([i])).digest() for i in range(64))).decode()


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("", ""),
        ("short", "short"),
        ("\n" * (MAX_LINES - 1) + "x", "\n" * (MAX_LINES - 1) + "x"),
        ("\n" * MAX_LINES + "x", "[9 lines, ~1 tokens]"),
        (LONG + "\n", MARK),
        ("x" * MAX_CHARS, "x" * MAX_CHARS),
        ("x" * MAX_CHARS + "y", "[1001 characters, ~1 001 tokens]"),
    ],
)
def test_what_is_long_is_folded_and_comes_out_whole(text: str, folded: str) -> None:
    folding = TextMarks()
    assert folding.fold(text) == folded
    assert folding.unfold(f"a {folded} b") == f"a {text} b"


@pytest.mark.parametrize(
    ("text", "counts"),  # of SmolLM2 and Gemma 3
    [
        ("line 7: def f7(x): return x * 7  # some odd text: ünïcödé 漢字 🎉\n" * 60, (2220, 1800)),
        ("模型在每一步生成多个候选词,然后由目标模型一次验证。" * 10, (430, 160)),
        ("The quick brown fox jumps over the lazy dog, and nobody knows why. " * 10, (151, 151)),
        (", ".join(f"[{number}, {number * 3.17:.2f}]" for number in range(60)), (674, 674)),
        (BASE64, (2212, 1923)),
    ],
    ids=["signs", "Chinese", "English", "numbers", "base64"],
)
def test_tokens_are_estimated_rather_too_high(text: str, counts: tuple[int, int]) -> None:
    assert 0.9 * max(counts) <= estimate_tokens(text) <= 4.5 * min(counts)


def test_what_was_counted_of_other_scripts_says_little_of_letters() -> None:
    assert estimate_tokens("word " * 100, tokens_per_char=1.4) == 250


def test_each_paste_has_its_own_mark() -> None:
    folding, other = TextMarks(), LONG.upper()
    assert [folding.fold(text) for text in (LONG, other, LONG)] == [MARK, "[9 lines, ~6 tokens, 2]", MARK]
    assert folding.unfold(f"{MARK}[9 lines, ~6 tokens, 2]{MARK}") == LONG + other + LONG
    assert folding.unfold("[8 lines, ~6 tokens]") == "[8 lines, ~6 tokens]"
    assert folding.fold_known(f"a {other}{LONG} b") == f"a [9 lines, ~6 tokens, 2]{MARK} b"


@pytest.mark.parametrize("known", [LONG, LONG + "\n"])
@pytest.mark.parametrize("around", ["{}", "explain {}", "{} b"])
def test_what_was_sent_is_folded_again(known: str, around: str) -> None:
    folding = TextMarks()
    typed = around.format(folding.mark(known, "[notes.md, 9 lines]"))
    assert folding.fold_known(folding.unfold(typed).strip("\n")) == typed


@pytest.mark.parametrize(
    ("begin", "end", "changed"),
    [
        (0, 1, (0, 1)),
        (2, 2, (2, 2)),  # before it
        (3, 3, (22, 22)),  # in it: behind it
        (22, 22, (22, 22)),
        (21, 22, (2, 22)),
        (2, 3, (2, 22)),
        (0, 5, (0, 22)),
        (10, 24, (2, 24)),
        (22, 24, (22, 24)),
    ],
)
def test_a_mark_changes_as_a_whole(begin: int, end: int, changed: tuple[int, int]) -> None:
    folding = TextMarks()
    text = f"a {folding.fold(LONG)} b"
    assert text[2:22] == MARK
    assert folding.widen(text, begin, end) == changed
