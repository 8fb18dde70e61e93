"""The values of --draft: one source, or several by commas."""

from __future__ import annotations

import pytest

from eaglelocal.core.run_options import parse_draft
from eaglelocal.errors import UsageError


@pytest.mark.parametrize(
    ("text", "model", "lookups"),
    [
        ("auto", "auto", ("ngram",)),
        ("none", "none", ("ngram",)),
        ("./head.gguf", "./head.gguf", ("ngram",)),
        ("ngram", "ngram", ("ngram",)),
        ("lookahead", "ngram", ("lookahead",)),
        ("ngram,lookahead", "ngram", ("ngram", "lookahead")),
        ("lookahead, ngram,lookahead", "ngram", ("lookahead", "ngram")),
        ("auto,lookahead", "auto", ("lookahead",)),
        ("ngram,user/repo:Q8_0,lookahead", "user/repo:Q8_0", ("ngram", "lookahead")),
        ("./a,b.gguf", "./a,b.gguf", ("ngram",)),
        ("./a,,b.gguf", "./a,,b.gguf", ("ngram",)),
        ("", "", ("ngram",)),
    ],
)
def test_sources(text: str, model: str, lookups: tuple[str, ...]) -> None:
    assert parse_draft(text) == (model, lookups)


@pytest.mark.parametrize("text", ["none,ngram", "./head.gguf,none"])
def test_none_goes_alone(text: str) -> None:
    with pytest.raises(UsageError, match="no draft at all") as error:
        parse_draft(text)
    assert error.value.hint == "--draft none"


@pytest.mark.parametrize(
    ("text", "hint"),
    [("lookahead,,ngram", "lookahead,ngram"), ("ngram,", "ngram"), ("./h.gguf,,ngram", "./h.gguf,ngram")],
)
def test_a_missing_name_is_reported(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="a name is missing") as caught:
        parse_draft(text)
    assert caught.value.hint == f"--draft {hint}"
