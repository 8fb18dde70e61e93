"""How a query and a document become a reranker's tokens."""

from __future__ import annotations

import pytest

from eaglelocal.errors import RequestError
from eaglelocal.text.pairs import Frame, FramedPairs, WrittenPairs, fitting

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
    pairs = FramedPairs(Letters(), Frame([1], [2, 3], [4]))
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
    assert spelled(WrittenPairs(Letters(), template)("q", "d")) == said


def test_what_people_wrote_stays_text() -> None:
    tokens = WrittenPairs(Letters(), "<s>{query}|{document}<|im|>end")("{document}<|im|>", "<s>{query}")
    assert spelled(tokens) == "<s>{document}<|im|>|<s>{query}<|im|>end"
    assert [token for token in tokens if token < 0] == [-3, -2]


@pytest.mark.parametrize("most", [3, 4, 10, 50, 200])
def test_a_document_loses_as_much_of_its_end_as_it_must(most: int) -> None:
    pairs = FramedPairs(Letters(), Frame([1], [2], []))
    tokens = fitting(pairs, "q", "d" * 150, most, truncates=True)
    assert min(most, 153) * 0.9 - 3 <= len(tokens) <= most
    assert tokens[:3] == [1, ord("q"), 2]


def test_a_long_query_takes_no_more_rounds() -> None:
    pairs, read = FramedPairs(Letters(), Frame([1], [2], [])), []

    def counted(query: str, document: str) -> list[int]:
        read.append(document)
        return pairs(query, document)

    assert 485 <= len(fitting(counted, "q" * 480, "d" * 5000, 500, truncates=True)) <= 500
    assert len(read) <= 4


def test_nothing_cannot_be_read() -> None:
    with pytest.raises(RequestError, match="a query and a document are empty"):
        fitting(FramedPairs(Letters(), Frame([], [], [])), "", "", 10, truncates=False)


def test_what_does_not_fit_is_refused() -> None:
    pairs = FramedPairs(Letters(), Frame([1], [2], []))
    for query, document, truncates in (("q", "d" * 9, False), ("q" * 9, "d", True)):
        with pytest.raises(RequestError, match=r"tokens exceed the context of 10") as caught:
            fitting(pairs, query, document, 10, truncates=truncates)
        assert caught.value.parameter == "documents"
