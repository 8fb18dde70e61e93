"""The client of other servers, against a small one on the loopback interface."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest
from doubles.loopback_server import Script, serving, words

from eaglelocal.client.answer import Reply, stream
from eaglelocal.client.http_client import HttpClient, parse_url
from eaglelocal.client.http_stream import NO_ID, StreamedAnswer, chat_body, data_lines, refusal
from eaglelocal.core.events import Tokens
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EagleLocalError, EngineError, RequestError, UsageError

PARAMS = SamplingParams(temperature=0.0, max_tokens=9, seed=3)
TIMINGS = {"predicted_n": 21, "predicted_ms": 2000.0, "draft_n": 30, "draft_n_accepted": 15, "cache_n": 2}


def question(name: str = "q", **changes: object) -> ChatRequest:
    given = {"messages": (Message("user", "hi"),), **changes}
    return ChatRequest(id=name, params=PARAMS, **given)  # type: ignore[arg-type]


def asked(script: Script, request: ChatRequest | None = None, *, key: str = "") -> Reply:
    with serving(script) as url, HttpClient(url, api_key=key) as client:
        client.start()
        return stream(client, request or question()).result()


def test_an_answer_arrives_piece_by_piece_with_its_figures() -> None:
    reply = asked(Script(words("one", " two", " three")))
    assert reply.text == "one two three"
    assert [piece.token for piece in reply.pieces] == [NO_ID] * 3
    finished = reply.finished
    assert (finished.reason, finished.prompt_tokens, finished.completion_tokens) == ("stop", 7, 3)
    assert finished.timings.ttft_s >= 0
    assert finished.speculation.reason == "not told by the server"


def test_figures_of_llama_cpp_are_preferred() -> None:
    finished = asked(Script(words("one", " two", timings=TIMINGS))).finished
    assert finished.completion_tokens == 21
    assert finished.timings.decode_tok_s == pytest.approx(10.0)
    assert finished.timings.decode_s == pytest.approx(2.0)
    assert (finished.speculation.draft_tokens, finished.speculation.accepted_tokens) == (30, 15)
    assert finished.speculation.acceptance_length == pytest.approx(20 / 5)


def test_what_is_sent() -> None:
    script = Script(words("x"))
    asked(script, key="secret")
    assert script.paths == ["/v1/models", "/v1/chat/completions"]
    assert script.keys == ["Bearer secret"] * 2
    (body,) = script.bodies
    assert body["model"] == "loopback-model"
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.0, 9, 3)
    assert (body["stream"], body["cache_prompt"]) == (True, False)


def test_token_ids_and_raw_text_go_to_completions() -> None:
    path, body = chat_body(question(messages=(), tokens=(1, 2)), "m", extensions=False)
    assert (path, body["prompt"]) == ("/completions", [1, 2])
    assert "cache_prompt" not in body
    assert chat_body(question(messages=(), text="once"), "m", extensions=True)[1]["prompt"] == "once"


def test_completions_are_read_as_well() -> None:
    chunks = [{"choices": [{"text": "once"}]}, {"choices": [{"text": " more", "finish_reason": "length"}]}]
    reply = asked(Script(chunks), question(messages=(), tokens=(1,)))
    assert (reply.text, reply.finished.reason, reply.finished.completion_tokens) == ("once more", "length", 2)


def test_a_server_that_minds_unknown_fields_is_asked_without_them() -> None:
    script = Script(words("x"), minds_extensions=True)
    with serving(script) as url, HttpClient(url) as client:
        client.start()
        assert stream(client, question("a")).result().text == "x"
        assert stream(client, question("b")).result().text == "x"
    assert ["cache_prompt" in body for body in script.bodies] == [True, False, False]


@pytest.mark.parametrize(
    ("status", "error", "kind", "said"),
    [
        (400, {"error": {"message": "too long"}}, RequestError, "400: too long"),
        (401, {"error": {"message": "no key"}}, RequestError, "401: no key"),
        (404, "not here", RequestError, "404: not here"),
        (500, "", EngineError, "answers 500"),
        (503, {"error": "loading"}, EngineError, "503: loading"),
    ],
)
def test_refusals_are_errors_in_words(status: int, error: object, kind: type[EagleLocalError], said: str) -> None:
    with pytest.raises(kind, match=said):
        asked(Script(status=status, error=error))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script([*words("x")[:2], {"error": {"message": "out of memory"}}]), "broke off: out of memory"),
        (Script(words("x")[:2], is_cut=True), "in the middle"),
        (Script([]), "in the middle"),
        (Script(models={"data": []}), "names no model"),
        (Script(models=[1]), "JSON object"),
        (Script(models="<html>"), "JSON object"),
    ],
)
def test_what_a_server_does_wrong_is_said(script: Script, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        asked(script)


def test_nobody_there_is_said_before_anything_is_asked() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        client = HttpClient(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(EngineError, match="cannot reach"):
            client.start()


def hung_up(end: Callable[[HttpClient], None]) -> Reply:
    """The answer of a server that would go on, ended after its first words."""
    with serving(Script(words("half", " an")[:3], hangs=True)) as url, HttpClient(url) as client:
        client.start()
        answer = stream(client, question())
        for event in answer:
            if isinstance(event, Tokens) and event.text == " an":
                end(client)
                break
        return answer.result()


def test_cancel_ends_an_answer_with_what_was_said() -> None:
    reply = hung_up(lambda client: client.cancel("q"))
    assert (reply.text, reply.finished.reason) == ("half an", "cancelled")


def test_close_ends_what_still_runs() -> None:
    assert hung_up(lambda client: client.close()).finished.reason == "cancelled"


def test_unknown_ids_are_ignored_and_known_ones_refused() -> None:
    with serving(Script(words("half")[:2], hangs=True)) as url, HttpClient(url) as client:
        client.cancel("nobody")
        answer = stream(client, question())
        with pytest.raises(RequestError, match="still running"):
            client.submit(question(), lambda event: None)
        answer.cancel()
        assert answer.result().finished.reason == "cancelled"


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", "/v1"),
        ("localhost:8080", "localhost:8080", "/v1"),
        ("https://host/v1/", "host", "/v1"),
        ("http://host/openai", "host", "/openai/v1"),
    ],
)
def test_addresses(url: str, host: str, path: str) -> None:
    parts = parse_url(url)
    assert (parts.netloc, parts.path) == (host, path)


@pytest.mark.parametrize("url", ["", "ftp://host", "http://", "http://host:x", "http://u:p@host", "http://host?x=1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="is not the address"):
        parse_url(url)


def test_lines_of_a_stream() -> None:
    lines = [b": hi\n", b"\n", b"event: x\n", b"data: {}\r\n", b"data:1\n", b"data: [DONE]\n", b"data: late\n"]
    assert list(data_lines(lines)) == ["{}", "1"]


@pytest.mark.parametrize("data", ["1", "[]", "{", "null", '"x"'])
def test_what_is_no_chunk_is_an_error(data: str) -> None:
    with pytest.raises(EngineError, match="no JSON object"):
        StreamedAnswer().take(data, 0.0)


@pytest.mark.parametrize("chunk", [{}, {"choices": 1}, {"choices": [None]}, {"choices": [{"delta": []}]}, {"usage": 3}])
def test_chunks_without_text_are_passed_over(chunk: dict[str, object]) -> None:
    answer = StreamedAnswer()
    assert answer.take(json.dumps(chunk), 0.0) == ()
    assert answer.finished("q").completion_tokens == 0


def test_thoughts_are_text_too() -> None:
    chunk = {"choices": [{"delta": {"reasoning_content": "hm", "content": None}}]}
    (piece,) = StreamedAnswer().take(json.dumps(chunk), 0.0)
    assert piece.text == "hm"


def test_a_refusal_that_is_no_json_is_quoted() -> None:
    assert "502: <html>" in refusal("http://x", 502, b"<html>").message
