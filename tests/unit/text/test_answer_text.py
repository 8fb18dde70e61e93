"""Detokenizer and answers: shown text is never changed later, and all text is shown in the end."""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.text.answer_text import AnswerPiece, AnswerText, Detokenizer, Pieces


@dataclass
class TableVocabulary:
    """Token i stands for pieces[i]; counts how often it is asked."""

    pieces: Sequence[bytes]
    chat_template: str | None = None
    bos_text: str = ""
    eos_text: str = ""
    control_texts: tuple[str, ...] = ()
    num_asked: int = 0

    @property
    def n_tokens(self) -> int:
        return len(self.pieces)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raise NotImplementedError(text)

    def piece(self, token: int) -> bytes:
        self.num_asked += 1
        return self.pieces[token]

    def is_end(self, token: int) -> bool:
        return False


def decode(data: bytes) -> str:
    """Return the text of a whole answer: without the first bytes of a character that it was cut in."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data)


def shown(pieces: Sequence[bytes]) -> list[str]:
    detokenizer = Detokenizer(Pieces(TableVocabulary(pieces)))
    return [*(detokenizer.push(token) for token in range(len(pieces))), detokenizer.flush()]


def chunks(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


nasty_bytes = st.lists(
    st.one_of(
        st.sampled_from(["a", "é", "€", "😀", "\U0010ffff", "\x00"]).map(str.encode),
        st.binary(min_size=1, max_size=2),
        st.sampled_from(
            [b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90", b"\xf8", b"\xe0\x80"]
        ),
    ),
    max_size=12,
).map(b"".join)


@given(nasty_bytes, st.lists(st.integers(0, 1000), max_size=10))
def test_all_pieces_together_are_the_whole_decode(data: bytes, cuts: list[int]) -> None:
    assert "".join(shown(chunks(data, cuts))) == data.decode(errors="replace")


@given(nasty_bytes)
def test_what_is_shown_is_final_and_as_long_as_can_be(data: bytes) -> None:
    """Whatever comes next, the shown text stays; and what is held back is the start of one character."""
    sofar = ""
    for end, text in enumerate(shown([bytes([byte]) for byte in data])[:-1], start=1):
        sofar += text
        for following in (b"", b"a", b"\x80", b"\xbf\xbf\xbf", b"\xf0"):
            assert (data[:end] + following).decode(errors="replace").startswith(sofar)
        held = data[:end].decode(errors="replace")[len(sofar) :]
        surrogate = data[:end][-2:-1] == b"\xed" and data[:end][-1] >= 0xA0  # Python decides these a byte late
        assert held in ("", "\ufffd") or (surrogate and held == "\ufffd\ufffd")


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_character_in_two_tokens(cut: int) -> None:
    face = "😀".encode()
    assert shown([face[:cut], face[cut:], b"!"]) == ["", "😀", "!", ""]


def test_an_unfinished_character_before_other_text_is_a_replacement() -> None:
    """Where a control token follows, for example."""
    assert shown([b"a", b"\xe2\x82"]) == ["a", "", "\ufffd"]


def test_a_broken_character_does_not_swallow_what_follows() -> None:
    assert shown([b"\xe2\x82", b"abc"]) == ["", "\ufffdabc", ""]


def test_control_tokens_are_silent_and_do_not_break_a_character() -> None:
    assert shown([b"\xc3", b"", b"\xa9"]) == ["", "", "é", ""]


def test_the_vocabulary_is_asked_once_a_token() -> None:
    vocabulary = TableVocabulary([b"x", b"\xff"])
    pieces = Pieces(vocabulary)
    for _ in range(3):
        detokenizer = Detokenizer(pieces)
        assert detokenizer.push(0) + detokenizer.push(1) == "x\ufffd"
    assert vocabulary.num_asked == 2


def test_plain_pieces_are_cheap() -> None:
    """The bound is 2 us; the best of ten rounds, as the machine may be busy."""
    detokenizer = Detokenizer(Pieces(TableVocabulary([b" word"])))
    best_s = min(_time_of_pushes(detokenizer, 2_000) for _ in range(10))
    assert best_s / 2_000 < 2e-6


def _time_of_pushes(detokenizer: Detokenizer, num_pushes: int) -> float:
    started = time.perf_counter()
    for _ in range(num_pushes):
        detokenizer.push(0)
    return time.perf_counter() - started


# ---- answers
def answer(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[str, str | None]:
    text = AnswerText(Pieces(TableVocabulary(pieces)), stops)
    seen = ""
    for token in range(len(pieces)):
        piece = text.push(token)
        seen += piece.text
        if piece.stopped:
            assert text.finish().text == ""
            return seen, piece.stop
    return seen + text.finish().text, None


@given(nasty_bytes, st.lists(st.integers(0, 1000), max_size=10))
def test_an_answer_without_a_stop_is_the_whole_decode(data: bytes, cuts: list[int]) -> None:
    assert answer(chunks(data, cuts), ()) == (decode(data), None)


@pytest.mark.parametrize("stops", [(), ("END",)])
@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"so ", b"\xf0\x9f\x98"], "so "),  # cut in an emoji
        ([b"so ", b"\xf0", b"\x9f\x98"], "so "),
        ([b"\xf0\x9f\x98\x80", b"\xc3"], "\U0001f600"),
        ([b"a\xffb\x80", b"\xe2\x82"], "a\ufffdb\ufffd"),  # bytes that are no characters stay
        ([b"a\xe2\x82b"], "a\ufffdb"),
        ([b"a\xff"], "a\ufffd"),
    ],
)
def test_an_answer_that_was_cut_in_a_character_ends_before_it(
    pieces: list[bytes], text: str, stops: tuple[str, ...]
) -> None:
    assert answer(pieces, stops) == (text, None)


@given(nasty_bytes, st.text(alphabet="aé€😀", min_size=1, max_size=3), nasty_bytes, st.lists(st.integers(0, 999)))
def test_an_answer_ends_before_its_stop(before: bytes, stop: str, after: bytes, cuts: list[int]) -> None:
    data = before + stop.encode() + after
    whole = decode(data)
    assert stop in whole  # a valid character always survives its neighbours
    assert answer(chunks(data, cuts), [stop]) == (whole[: whole.index(stop)], stop)


@given(nasty_bytes, st.text(alphabet="aé€", min_size=1, max_size=3), st.lists(st.integers(0, 999)))
def test_where_an_answer_is_cut_does_not_matter(data: bytes, stop: str, cuts: list[int]) -> None:
    assert answer(chunks(data, cuts), [stop]) == answer([data], [stop])


def test_a_stop_across_tokens_and_inside_characters() -> None:
    text = AnswerText(Pieces(TableVocabulary([b"fin \xe2", b"\x82", b"\xac\xe2\x82", b"\xac!"])), ["€€"])
    assert [text.push(token) for token in range(4)] == [
        AnswerPiece("fin "),
        AnswerPiece(""),
        AnswerPiece(""),
        AnswerPiece("", "€€"),
    ]
    assert text.finish().text == ""


def test_finish_gives_what_was_held_back() -> None:
    text = AnswerText(Pieces(TableVocabulary([b"EN", b"\xe2"])), ["END"])
    assert (text.push(0).text, text.push(1).text) == ("", "")
    assert text.finish().text == "EN"


def test_tokens_after_a_stop_add_nothing() -> None:
    text = AnswerText(Pieces(TableVocabulary([b"a.b", b"c"])), ["."])
    assert text.push(0) == AnswerPiece("a", ".")
    assert text.push(1) == AnswerPiece("", ".")
    assert text.finish().text == ""
