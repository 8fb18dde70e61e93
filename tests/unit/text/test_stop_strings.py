"""Stop strings are found wherever the text is cut; no text is held back without need."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.text.answer_text import StopMatcher

letters = st.text(alphabet="abé", max_size=30)
stop_lists = st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=4)


def first_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The definition, by trying every end in turn."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            hit = max(hits, key=len)
            return text[: end - len(hit)], hit
    return text, None


def could_begin_a_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of the text that is a proper beginning of a stop string."""
    lengths = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


def run(pieces: Sequence[str], stops: Sequence[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    text = ""
    for piece in pieces:
        emitted, hit = matcher.push(piece)
        text += emitted
        if hit is not None:
            assert matcher.flush() == ""
            return text, hit
    return text + matcher.flush(), None


@given(letters, stop_lists, st.lists(st.integers(0, 30), max_size=8))
def test_any_cutting_gives_what_the_definition_says(text: str, stops: list[str], cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(borders)]
    assert run(pieces, stops) == first_stop(text, stops)


@given(letters, stop_lists)
def test_no_more_is_held_back_than_could_begin_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end, char in enumerate(text, start=1):
        emitted, hit = matcher.push(char)
        shown += emitted
        if hit is not None:
            return
        assert len(shown) == end - could_begin_a_stop(text[:end], stops)


@pytest.mark.parametrize("cut", range(len("say STOP now")))
def test_a_stop_across_every_border(cut: int) -> None:
    text = "say STOP now"
    assert run([text[:cut], text[cut:]], ["STOP"]) == ("say ", "STOP")


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("xabcd", ["abcd", "bc"], ("xa", "bc")),  # the one that ends first
        ("xabc", ["c", "abc", "bc"], ("x", "abc")),  # the longest of those that end together
        ("aaab", ["aab"], ("a", "aab")),
        ("ababac", ["abac"], ("ab", "abac")),
        ("abab", ["abac"], ("abab", None)),
        ("", ["a"], ("", None)),
        ("abc", [], ("abc", None)),
        ("a\n\nb", ["\n\n"], ("a", "\n\n")),
    ],
)
def test_examples(text: str, stops: list[str], expected: tuple[str, str | None]) -> None:
    assert run([text], stops) == expected
    assert run(list(text), stops) == expected


def test_after_a_hit_nothing_more_comes() -> None:
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == ("a", ".")
    assert matcher.push("c") == ("", ".")
    assert matcher.flush() == ""


def test_a_hopeful_text_takes_linear_time() -> None:
    """With a matcher that starts again at every position this text would need 2.5e9 comparisons."""
    matcher = StopMatcher(["a" * 50_000 + "b"])
    started = time.perf_counter()
    shown = "".join(matcher.push("a" * 50)[0] for _ in range(2_000)) + matcher.flush()
    assert shown == "a" * 100_000
    assert time.perf_counter() - started < 5.0
