"""Spellings of control tokens are hidden while a template runs and restored afterwards, whatever surrounds them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.text.templates.literal_text import HiddenSpellings, Spellings, build_longest_pattern

CONTROLS = ("<|a|>", "<|ab|>", "</s>", "[X]", "[X]]")
SPELLINGS = Spellings(CONTROLS)
parts = st.sampled_from(
    [*CONTROLS, "<", "|", "<|", "a", "b", "|>", "[", "X", "]", " ", "\n", "\ue000", "0", "\ue001", "</"]
)
texts = st.lists(parts, max_size=12).map("".join)


@given(st.lists(texts, min_size=1, max_size=4))
def test_texts_side_by_side_spell_nothing_and_come_back_whole(said: list[str]) -> None:
    literals = HiddenSpellings(SPELLINGS)
    rendered = "".join(map(literals.hide, said))
    spans = list(literals.pieces(rendered))
    assert "".join(span for span, _ in spans) == "".join(said)
    assert not any(control in span for span, hidden in spans if not hidden for control in CONTROLS)


@given(texts)
def test_trimming_does_not_uncover_anything(said: str) -> None:
    literals = HiddenSpellings(SPELLINGS)
    spans = list(literals.pieces(literals.hide(said).strip() + "|a|>"))
    assert not any(control in span for span, hidden in spans if not hidden for control in CONTROLS)


@given(
    st.sets(st.text("ab<|", min_size=1, max_size=6), min_size=1, max_size=12),
    st.text("ab<|", max_size=12),
    st.integers(0, 4),
)
def test_the_expression_finds_the_longest(texts: set[str], said: str, levels: int) -> None:
    match = re.match(build_longest_pattern(sorted(texts), levels), said)
    assert (match[0] if match else None) == max(filter(said.startswith, texts), key=len, default=None)


def test_values_are_hidden_throughout() -> None:
    literals = HiddenSpellings(SPELLINGS)
    hidden = literals.hide_all({"</s>": ["</s>", 1, None, True, {"k": "x</s>"}]})
    assert "</s>" not in repr(hidden)
    assert isinstance(hidden, dict) and next(iter(hidden.values()))[1:4] == [1, None, True]  # type: ignore[index]


def test_without_control_tokens_nothing_is_hidden_but_our_own_marks() -> None:
    literals = HiddenSpellings(Spellings())
    assert literals.hide("<|a|> [X]") == "<|a|> [X]"
    assert literals.hide("\ue000") != "\ue000"
