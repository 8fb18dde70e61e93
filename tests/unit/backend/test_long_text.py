"""Texts with long runs are split into parts: no text is lost, no run is long, no control token is cut in two."""

from __future__ import annotations

import re

import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.backend.vocabulary import WINDOW, split_long_runs

TOO_LONG = re.compile("|".join(rf"{kind}{{{2 * WINDOW}}}" for kind in (r"\S", r"\s", r"[\r\n/]", r"[.\x1c]")))
runs = st.tuples(
    st.sampled_from(["x", "\u00e9", "\u4e2d", ".", " ", "\n", "<", "<|end|>", "a b", "//\n", ".\x1c"]),
    st.integers(0, 9000),
)
texts = st.lists(runs, max_size=4).map(lambda found: "".join(text * count for text, count in found))


@examples(150)
@given(texts)
def test_parts_are_the_text_without_its_long_runs(text: str) -> None:
    parts = split_long_runs(text)
    assert "".join(parts) == text
    assert not any(map(TOO_LONG.search, parts))


@examples(150)
@given(texts, st.integers(1, 12))
def test_no_control_token_is_cut_in_two(text: str, shift: int) -> None:
    text = "y" * shift + text
    words = ("<|end|>", "<|")
    parts = split_long_runs(text, words)
    assert "".join(parts) == text
    assert sum(part.count("<|end|>") for part in parts) == text.count("<|end|>")


@pytest.mark.parametrize("text", ["", "x", "word " * 4000, "x" * (WINDOW - 1), ("x" * (WINDOW - 1) + " ") * 3])
def test_what_is_usual_stays_whole(text: str) -> None:
    assert split_long_runs(text) == [text]
