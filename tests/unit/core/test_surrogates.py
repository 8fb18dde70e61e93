from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.terminal_text import SurrogateJoiner, join_surrogates

HALF = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("given_text", "text"),
    [
        ("", ""),
        ("\ufeffplain \u00e9", "\ufeffplain \u00e9"),
        ("\ud83e\udd85", "\U0001f985"),
        ("\ud83e", HALF),
        ("\udd85", HALF),
        ("\ud83ea\udd85", f"{HALF}a{HALF}"),
        ("caf\udce9", f"caf{HALF}"),  # as Python reads a file name of Latin-1
    ],
)
def test_halves_are_joined_and_half_a_one_is_replaced(given_text: str, text: str) -> None:
    assert join_surrogates(given_text) == text


def test_a_half_waits_for_the_next_part() -> None:
    joiner = SurrogateJoiner()
    assert [joiner.feed("an \ud83e"), joiner.feed("\udd85!"), joiner.finish()] == ["an ", "\U0001f985!", ""]
    assert [joiner.feed("\ud83e"), joiner.feed(""), joiner.feed("x"), joiner.finish()] == ["", "", f"{HALF}x", ""]
    assert [joiner.feed("\ud83e"), joiner.finish(), joiner.finish()] == ["", HALF, ""]


CHARS = st.one_of(st.characters(), st.sampled_from("\ud83e\udd85\ud800\udfff"))


@given(st.lists(st.text(CHARS, max_size=4)))
def test_joined_parts_equal_the_whole(parts: list[str]) -> None:
    joiner = SurrogateJoiner()
    joined = "".join(map(joiner.feed, parts)) + joiner.finish()
    assert joined == join_surrogates("".join(parts))
    joined.encode()
