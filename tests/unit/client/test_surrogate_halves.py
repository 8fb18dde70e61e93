"""Surrogate pairs split over two chunks, and lone halves, in everything that another server sends."""

from __future__ import annotations

import contextlib
import json

import pytest
from doubles.loopback_server import Script
from doubles.loopback_server import serving as serving_words
from doubles.pages_server import Page, llama_pages, serving

from eaglelocal.client.client import stream
from eaglelocal.client.http_client import HttpClient
from eaglelocal.client.http_connection import HttpReply
from eaglelocal.client.http_stream import StreamedAnswer, read_error_message, read_speculation
from eaglelocal.core.events import Tokens
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.errors import EngineError

EAGLE, HALF = "\U0001f985", "\ufffd"


def chunk(reason: str | None = None, **delta: str) -> str:
    return json.dumps({"choices": [{"delta": delta, "finish_reason": reason}]})


def answer(*chunks: str, is_split: bool = True) -> tuple[str, str]:
    """(thoughts, text)"""
    streamed = StreamedAnswer(is_split=is_split)
    pieces = [*(piece for each in chunks for piece in streamed.take(each, 1.0)), *streamed.flush(1.0)]
    for piece in pieces:
        f"{piece.text}{piece.reasoning}".encode()
    return "".join(piece.reasoning for piece in pieces), "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (("an ", "\ud83e", "\udd85", "!"), f"an {EAGLE}!"),
        (("\ud83e", "", "\udd85"), EAGLE),
        (("\ud83e\udd85",), EAGLE),
        (("\ud83e", "x"), f"{HALF}x"),
        (("x\udd85",), f"x{HALF}"),
        (("x", "\ud83e"), f"x{HALF}"),
    ],
)
def test_halves_of_two_chunks_are_one_character(parts: tuple[str, ...], text: str) -> None:
    for last in ([], [chunk("stop")]):
        assert answer(*(chunk(content=part) for part in parts), *last) == ("", text)
        assert answer(*(chunk(reasoning_content=part) for part in parts), *last) == (text, "")
        assert answer(*last, *(chunk(content=part) for part in parts)) == ("", text)


@pytest.mark.parametrize("is_ended", [True, False])
def test_half_a_character_at_the_end_of_a_stream_is_reported(is_ended: bool) -> None:
    words = [{"choices": [{"delta": {"content": "a\ud83e"}}]}, *([json.loads(chunk("stop"))] if is_ended else [])]
    texts: list[str] = []
    with serving_words(Script(words)) as url, HttpClient(url) as client:
        client.start()
        with contextlib.suppress(EngineError):
            for event in stream(client, ChatRequest(id="x", messages=(Message("user", "a"),))):
                texts += [piece.text for piece in event.pieces] if isinstance(event, Tokens) else []
    assert "".join(texts) == f"a{HALF}"


def test_half_a_thought_does_not_wait_for_the_answer() -> None:
    assert answer(chunk(reasoning="\ud83e"), chunk(content="\udd85"), chunk("stop")) == (HALF, HALF)
    assert answer(chunk(reasoning="\ud83e"), chunk(content="a"), chunk("stop"), is_split=False)[1] == f"{HALF}\n\na"


def test_the_reason_of_an_end_and_errors_are_text() -> None:
    streamed = StreamedAnswer()
    streamed.take(chunk("st\ud83e"), 1.0)
    streamed.make_finished("x").reason.encode()
    assert read_error_message({"error": {"message": "no \ud83e"}}) == f"no {HALF}"
    assert read_speculation({"reason": "\ud83e\udd85"}).reason == EAGLE


def test_what_monitors_read_is_text() -> None:
    assert HttpReply(200, {}, rb'{"\ud83e": ["\ud83e\udd85"]}').json() == {HALF: [EAGLE]}


def test_names_of_models_are_text() -> None:
    pages = llama_pages()
    pages.by_path["/v1/models"] = Page(json.dumps({"data": [{"id": "m\ud83e"}]}))
    with serving(pages):
        assert HttpClient(pages.url).start().target == f"m{HALF}"
