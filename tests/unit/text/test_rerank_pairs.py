"""How a query and a document become a reranker's tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eaglelocal.core.request import Ranking
from eaglelocal.errors import ModelFileError, RequestError
from eaglelocal.text.templates.rerank_pairs import (
    MAX_PLACES,
    MAX_TEMPLATE_CHARS,
    frame_pairs,
    truncate_pair,
    write_pairs,
)

CONTROLS = ("<|im|>", "<|im|>end", "<s>")


class Letters:
    """A letter is a token, a control text one below 0, where it may be."""

    control_texts = CONTROLS

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not add_special
        if parse_special:
            assert text in CONTROLS
            return [-1 - CONTROLS.index(text)]
        return [ord(letter) for letter in text]


def spelled(tokens: list[int]) -> str:
    return "".join(CONTROLS[-1 - token] if token < 0 else chr(token) for token in tokens)


def test_encoders_frame_both_texts() -> None:
    pairs = frame_pairs(Letters(), ([1], [2, 3], [4]))
    assert pairs("ab", "c") == [1, 97, 98, 2, 3, 99, 4]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{query}{document}", "qd"),
        ("<|im|>Q: {query}\nD: {document}<|im|>end<s>", "<|im|>Q: q\nD: d<|im|>end<s>"),
        ("{document}, then {query}{query}", "d, then qq"),
        ("<s>nothing<s>", "<s>nothing<s>"),
        ("{other}{query}", "{other}q"),
    ],
)
def test_a_template_is_written_out(template: str, said: str) -> None:
    assert spelled(write_pairs(Letters(), template)("q", "d")) == said


def test_what_people_wrote_stays_text() -> None:
    tokens = write_pairs(Letters(), "<s>{query}|{document}<|im|>end")("{document}<|im|>", "<s>{query}")
    assert spelled(tokens) == "<s>{document}<|im|>|<s>{query}<|im|>end"
    assert [token for token in tokens if token < 0] == [-3, -2]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{query}" * (MAX_PLACES + 1), "shows its texts 9 times"),
        ("{document}" * 99_999, "has 999990 characters"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), "has 65537 characters"),
    ],
    ids=["many", "very many", "long"],
)
def test_a_template_that_would_multiply_them_is_refused(template: str, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        write_pairs(Letters(), template)


FRAMED = frame_pairs(Letters(), ([1], [2], []))


@pytest.mark.parametrize("most", [3, 4, 10, 50, 200])
def test_a_document_loses_as_much_of_its_end_as_it_must(most: int) -> None:
    tokens = truncate_pair(FRAMED, Ranking(query="q", truncates=True), "d" * 150, most)
    assert len(tokens) == min(most, 153)
    assert tokens[:3] == [1, ord("q"), 2]


@pytest.mark.parametrize(
    ("template", "most", "said"),
    [
        ("<s>{query}: {document}<s>", 8, "<s>q: 123<s>"),
        ("{document}, then {query}", 11, "123, then q"),
        ("{query}: {document}, {document}", 12, "q: 123, 123"),
        ("{document}, then {query}", 8, ", then q"),
    ],
)
def test_what_stands_around_a_document_stays(template: str, most: int, said: str) -> None:
    pairs = write_pairs(Letters(), template)
    assert spelled(truncate_pair(pairs, Ranking(query="q", truncates=True), "123456789", most)) == said


@pytest.mark.parametrize(("most", "said"), [(None, "q12345"), (3, "q123"), (5, "q12345"), (7, "q12345")])
def test_a_limit_holds_for_the_document_alone(most: int | None, said: str) -> None:
    limit = Ranking(query="q", max_document_tokens=most)
    assert truncate_pair(FRAMED, limit, "12345", 100) == [1, ord("q"), 2, *map(ord, said[1:])]
    written = write_pairs(Letters(), "{query}{document}<s>")
    assert spelled(truncate_pair(written, limit, "12345", 100)) == f"{said}<s>"


def test_what_is_limited_may_still_be_too_long() -> None:
    limit = Ranking(query="q", max_document_tokens=20)
    with pytest.raises(RequestError, match="a query and a document of 23 tokens exceed the context of 10"):
        truncate_pair(FRAMED, limit, "d" * 50, 10)
    assert len(truncate_pair(FRAMED, replace(limit, truncates=True), "d" * 50, 10)) == 10


def test_a_long_query_takes_no_more_rounds() -> None:
    read = []

    def counted(query: str, document: str, most: int | None = None) -> list[int]:
        read.append(document)
        return FRAMED(query, document, most)

    assert len(truncate_pair(counted, Ranking(query="q" * 480, truncates=True), "d" * 5000, 500)) == 500
    assert len(read) == 3


def test_nothing_cannot_be_read() -> None:
    with pytest.raises(RequestError, match="a query and a document are empty"):
        truncate_pair(frame_pairs(Letters(), ([], [], [])), Ranking(query=""), "", 10)


def test_what_does_not_fit_is_refused() -> None:
    for query, document, truncates in (("q", "d" * 9, False), ("q" * 9, "d", True)):
        with pytest.raises(RequestError, match=r"tokens exceed the context of 10") as caught:
            truncate_pair(FRAMED, Ranking(query=query, truncates=truncates, parameter="texts"), document, 10)
        assert caught.value.parameter == "texts"
