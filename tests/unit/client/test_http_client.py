"""The client of other servers, against a small one on the loopback interface."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest
from doubles.loopback_server import OUR_MODELS, SPECULATION, Script, our_words, serving, words
from doubles.timeouts import wait_until
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.client.client import CompleteAnswer, stream
from eaglelocal.client.http_client import HttpClient
from eaglelocal.client.http_connection import parse_url
from eaglelocal.client.http_server import choose_model, read_info
from eaglelocal.client.http_stream import NO_ID, Dialect, StreamedAnswer, build_request, data_lines, refusal
from eaglelocal.conversation.answer_stats import statistics_line
from eaglelocal.core.events import Finished, PromptProgress, Started, Tokens
from eaglelocal.core.request import ChatRequest, Image, Message, fixed_spec, parse_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.tools import Tool, ToolCall, ToolChoice, ToolUse, join_calls
from eaglelocal.errors import EagleLocalError, EngineError, RequestError, UsageError

PARAMS = SamplingParams(temperature=0.0, max_tokens=9, seed=3)
TIMINGS = {"predicted_n": 21, "predicted_ms": 2000.0, "draft_n": 30, "draft_n_accepted": 15, "cache_n": 2}


def question(name: str = "q", **changes: object) -> ChatRequest:
    given = {"messages": (Message("user", "hi"),), **changes}
    return ChatRequest(id=name, params=PARAMS, **given)  # type: ignore[arg-type]


def asked(script: Script, request: ChatRequest | None = None, *, key: str = "") -> CompleteAnswer:
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
    assert finished.speculation.reason == "not reported by the server"


def test_the_reading_of_a_prompt_is_told() -> None:
    progress = [{"choices": [], "prompt_progress": {"total": 9, "cache": 2, "processed": read}} for read in (2, 6)]
    with serving(Script([*progress, *words("x")])) as url, HttpClient(url, reuses_prompts=True) as client:
        client.start()
        events = list(client.stream(question()))
    assert events[:3] == [Started("q", 9, 2), PromptProgress("q", 2), PromptProgress("q", 6)]
    assert [type(event) for event in events[3:]] == [Tokens, Finished]


def test_without_a_count_of_tokens_there_is_no_speed() -> None:
    """The pieces of an answer are no tokens: some servers send all of it in two."""
    answer = StreamedAnswer(requested_at=0.0)
    for moment in (1.0, 2.0):
        answer.take(json.dumps({"choices": [{"delta": {"content": "many words"}}]}), moment)
    finished = answer.make_finished("q")
    assert finished.timings.decode_tok_s == 0.0 and "tok/s" not in statistics_line(finished)
    answer.take(json.dumps({"usage": {"completion_tokens": 4}}), 2.0)
    assert "2.0 tok/s" in statistics_line(answer.make_finished("q"))


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
    path, body = build_request(question(messages=(), tokens=(1, 2)), "m", Dialect(extensions=False))
    assert (path, body["prompt"]) == ("/completions", [1, 2])
    assert "cache_prompt" not in body
    assert build_request(question(messages=(), text="once"), "m", Dialect())[1]["prompt"] == "once"


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
        (Script([*words("x")[:2], {"error": {"message": "out of memory"}}]), "the server failed: out of memory"),
        (Script(words("x")[:2], is_cut=True), "before the end of the answer"),
        (Script([]), "before the end of the answer"),
        (Script(models={"data": []}), "lists no model"),
        (Script(models=[1]), "JSON object"),
        (Script(models="<html>"), "JSON object"),
    ],
)
def test_what_a_server_does_wrong_is_said(script: Script, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        asked(script)


def test_an_unreachable_server_is_reported_before_any_question() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        client = HttpClient(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(EngineError, match="cannot reach"):
            client.start()


def test_a_server_that_goes_and_comes_back_is_seen() -> None:
    with serving(Script(models=OUR_MODELS)) as url:
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        client = HttpClient(url)
        assert client.state == "loading"
        client.start()
        assert (client.snapshot().engine_pid, client.state) == (0, "ready")
    client.snapshot()
    assert client.state == "disconnected"
    with serving(Script(models=OUR_MODELS), port=port):
        client.snapshot()
        assert client.state == "ready"
    client.close()
    assert client.state == "closed"


def test_a_server_that_is_stopping_is_told_from_one_that_is_gone() -> None:
    script = Script(our_words("half", " an")[:2], models=OUR_MODELS, hangs=True)
    with serving(script) as url, HttpClient(url) as client:
        client.start()
        answer = stream(client, question())
        next(answer)
        script.is_draining = True
        client.snapshot()
        assert client.state == "draining"
        client.cancel("q")
        answer.result()
        client.snapshot()
        assert client.state == "disconnected"


def test_a_server_that_says_that_it_drains_is_believed() -> None:
    script = Script(models=OUR_MODELS, snapshot={"state": "draining"})
    with serving(script) as url, HttpClient(url, wait_s=60.0) as client:
        client.start()
        script.status, script.error = 503, {"error": {"message": "the server is being stopped", "code": "draining"}}
        answer = client.stream(question())
        wait_until(lambda: client.state == "draining", "it is noticed")
        answer.cancel()
        assert answer.result().finished.reason == "cancelled"


def test_an_answer_that_the_end_of_a_server_cuts_off_is_not_its_failure() -> None:
    script = Script([*our_words("half")[:1], {"error": {"message": "the engine was closed"}}], models=OUR_MODELS)
    for is_draining, said in ((False, "the engine was closed"), (True, "the server was stopped before the end")):
        with serving(script) as url, HttpClient(url, wait_s=60.0) as client:
            client.start()
            script.is_draining = is_draining
            with pytest.raises(EngineError, match=said):
                stream(client, question()).result()


def test_a_question_waits_for_a_server_that_was_restarted_with_another_model() -> None:
    with serving(Script(models={"data": [{"id": "first", "owned_by": "eaglelocal"}]})) as url:
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        client = HttpClient(url, wait_s=60.0)
        client.start()
    answer = stream(client, question())
    wait_until(lambda: client.state == "disconnected", "it is noticed")
    with serving(Script(words("x"), models={"data": [{"id": "second", "owned_by": "eaglelocal"}]}), port=port):
        assert answer.result().text == "x"
    assert client.info is not None and client.info.target == "second"


def test_a_question_that_waits_can_be_cancelled() -> None:
    with serving(Script()) as url:
        client = HttpClient(url, wait_s=60.0)
        client.start()
    answer = stream(client, question())
    answer.cancel()
    assert answer.result().finished.reason == "cancelled"


def hung_up(end: Callable[[HttpClient], None]) -> CompleteAnswer:
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
        ("8080", "127.0.0.1:8080", "/v1"),
        ("https://host/v1/", "host", "/v1"),
        ("http://host/openai", "host", "/openai/v1"),
    ],
)
def test_addresses(url: str, host: str, path: str) -> None:
    parts = parse_url(url)
    assert (parts.netloc, parts.path) == (host, path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host",
        "http://",
        "http://host:x",
        "http://u:p@host",
        "http://host?x=1",
        "http://[",
        "[::1",
        "http://]",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="is not the address"):
        parse_url(url)


def test_lines_of_a_stream() -> None:
    lines = [b": hi\n", b"\n", b"event: x\n", b"data: {}\r\n", b"data:1\n", b"data: [DONE]\n", b"data: late\n"]
    assert list(data_lines(lines)) == ["{}", "1"]


@pytest.mark.parametrize("data", ["1", "[]", "{", "null", '"x"'])
def test_what_is_no_chunk_is_an_error(data: str) -> None:
    with pytest.raises(EngineError, match="other than a JSON object"):
        StreamedAnswer().take(data, 0.0)


@pytest.mark.parametrize("chunk", [{}, {"choices": 1}, {"choices": [None]}, {"choices": [{"delta": []}]}, {"usage": 3}])
def test_chunks_without_text_are_passed_over(chunk: dict[str, object]) -> None:
    answer = StreamedAnswer()
    assert answer.take(json.dumps(chunk), 0.0) == ()
    assert answer.make_finished("q").completion_tokens == 0


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_are_text_too(name: str) -> None:
    chunk = {"error": None, "choices": [{"delta": {name: "hm", "content": None}}]}
    (piece,) = StreamedAnswer().take(json.dumps(chunk), 0.0)
    assert piece.text == "hm"


def test_what_came_with_the_first_piece_has_no_part_in_the_speed() -> None:
    """Servers tell several tokens at once, and proxies keep streams back."""
    answer = StreamedAnswer(requested_at=0.0)
    for moment in (2.1, 4.2):
        answer.take(json.dumps({"choices": [{"delta": {"content": "many words"}}]}), moment)
    answer.take(json.dumps({"usage": {"completion_tokens": 64}}), 4.2)
    assert answer.make_finished("q").timings.decode_tok_s == pytest.approx(32 / 2.1)


@pytest.mark.parametrize(("usage", "num"), [({"completion_tokens_details": {"reasoning_tokens": 7}}, 7), ({}, 0)])
def test_tokens_of_thinking_are_those_that_the_server_counts(usage: dict[str, object], num: int) -> None:
    answer = StreamedAnswer()
    answer.take(json.dumps({"usage": usage}), 0.0)
    assert answer.make_finished("q").reasoning_tokens == num


def test_a_refusal_that_is_no_json_is_quoted() -> None:
    assert "502: <html>" in refusal("http://x", 502, b"<html>").message


# ---- what is said beyond the plain
@pytest.mark.parametrize(("spec", "said"), [("auto", "auto"), ("off", "off"), ("pid", "pid"), ("3", 3)])
def test_only_servers_of_ours_are_reported_how_to_draft(spec: str, said: object) -> None:
    request = question(spec=parse_spec(spec))
    assert build_request(request, "m", Dialect(is_ours=True))[1]["spec"] == said
    assert "spec" not in build_request(request, "m", Dialect())[1]
    assert "spec" not in build_request(question(), "m", Dialect(is_ours=True))[1]


def test_only_servers_of_ours_are_asked_for_adapters() -> None:
    request = question(adapters=((0, 0.5), (1, 0.0)))
    said = [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.0}]
    assert build_request(request, "m", Dialect(is_ours=True))[1]["lora"] == said
    assert "lora" not in build_request(request, "m", Dialect())[1]
    assert "lora" not in build_request(question(), "m", Dialect(is_ours=True))[1]


def test_all_sampling_is_passed_on_and_only_where_it_is_not_the_default() -> None:
    params = SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        typical_p=0.8,
        repeat_penalty=1.2,
        repeat_last_n=9,
        frequency_penalty=0.3,
        presence_penalty=0.4,
        seed=1,
        max_tokens=5,
        stop=("END", "."),
        logit_bias=((3, -1.0),),
        ignore_eos=True,
    )
    request = ChatRequest(id="q", text="x", params=params)
    full = build_request(request, "m", Dialect(reuses_prompts=True))[1]
    expected = {
        name: full[name] for name in full.keys() - {"model", "stream", "stream_options", "prompt", "return_progress"}
    }
    assert expected == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "typical_p": 0.8,
        "repeat_penalty": 1.2,
        "repeat_last_n": 9,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.4,
        "seed": 1,
        "max_tokens": 5,
        "stop": ("END", "."),
        "logit_bias": {"3": -1.0},
        "ignore_eos": True,
    }
    open_too = replace(params, left_open=frozenset({"temperature", "top_k", "min_p"}))  # the server's to decide
    body = build_request(replace(request, params=open_too), "m", Dialect())[1]
    assert full.keys() - body.keys() == {"temperature", "top_k", "min_p", "return_progress"}
    neutral = build_request(ChatRequest(id="q", text="x"), "m", Dialect())[
        1
    ]  # or the model's makers would have their say
    assert (neutral["repeat_penalty"], neutral["repeat_last_n"]) == (1.0, 64)
    plain = build_request(ChatRequest(id="q", text="x"), "m", Dialect(extensions=False))[1]
    assert plain.keys() == {"model", "stream", "stream_options", "prompt", "temperature", "top_p"}


def test_a_server_of_ours_reports_all_figures() -> None:
    script = Script(our_words("one", " two", " three", drafted={1: True}), models=OUR_MODELS)
    reply = asked(script, question(spec=fixed_spec(3)))
    assert [piece.drafted for piece in reply.pieces] == [False, True, False]
    timings, expected = reply.finished.timings, reply.finished.speculation
    assert (timings.draft_s, timings.verify_s, timings.host_s, timings.decode_s) == (0.1, 0.3, 0.01, 0.5)
    assert timings.decode_tok_s == pytest.approx(4.0)
    assert (expected.state, expected.drafts, expected.draft_tokens, expected.accepted_tokens) == ("on", 4, 12, 7)
    assert expected.acceptance_length == SPECULATION["acceptance_length"]
    assert (expected.accepted_per_position, expected.speedup_estimate) == ((4, 2, 1), 1.5)
    assert script.bodies[0]["spec"] == 3


def test_a_step_of_several_tokens_is_as_many_pieces() -> None:
    """So that a screen can count them; the text is in the first."""
    chunk = {"choices": [{"text": "a b c"}], "drafted": [True, True, False]}
    pieces = StreamedAnswer().take(json.dumps(chunk), 0.0)
    assert [(piece.text, piece.token) for piece in pieces] == [("a b c", NO_ID), ("", NO_ID), ("", NO_ID)]


def test_a_piece_is_drafted_when_all_its_tokens_are() -> None:
    answer = StreamedAnswer()
    chunks = [{"choices": [{"text": "a"}], "drafted": flags} for flags in ([True, True], [True, False], [], "x")]
    assert [answer.take(json.dumps(chunk), 0.0)[0].drafted for chunk in chunks] == [True, False, False, False]
    assert answer.num_tokens == 4


def test_our_snapshot_is_read_and_its_absence_forgiven() -> None:
    expected = {
        "model": {"name": "demo", "target": "demo", "draft": "its own head", "n_ctx": 2048, "num_slots": 2},
        "engine": {"steps": 9, "host_s": 0.5, "speculation": SPECULATION},
        "restarts": 3,
    }
    script = Script(our_words("x"), models=OUR_MODELS, snapshot=expected)
    with serving(script) as url, HttpClient(url) as client:
        info = client.start()
        assert (info.target, info.draft, info.n_ctx, info.library) == ("demo", "its own head", 2048, url)
        assert client.takes_spec
        snapshot = client.snapshot()
        assert (snapshot.steps, snapshot.host_s, snapshot.speculation.drafts, client.restarts) == (9, 0.5, 4, 3)
        script.snapshot = None
        assert client.snapshot().steps == 0


@pytest.mark.parametrize(
    "expected", [{"model": 1, "engine": []}, {"model": {"name": "demo", "n_ctx": "x", "target": 1}}, [1], "<html>"]
)
def test_a_snapshot_of_another_shape_is_unknown(expected: object) -> None:
    with serving(Script(models=OUR_MODELS, snapshot=expected)) as url, HttpClient(url) as client:
        info = client.start()
        assert (info.target, info.n_ctx) == ("demo", 0)
        assert client.snapshot().steps == 0


def test_what_is_known_of_another_model_is_not_taken_for_the_wanted_one() -> None:
    models = {"data": [{"id": name, "owned_by": "eaglelocal", "max_model_len": None} for name in ("a", "b")]}
    expected = {"model": {"name": "a", "target": "the first", "draft": "its own head", "n_ctx": 2048}}
    with serving(Script(models=models, snapshot=expected)) as url:
        first, other = (HttpClient(url, model=name).start() for name in ("a", "b"))
    assert (first.target, first.draft, first.n_ctx) == ("the first", "its own head", 2048)
    assert (other.target, other.draft, other.draft_reason, other.n_ctx) == (
        "b",
        "none",
        "not reported by the server",
        0,
    )


def test_the_wanted_model_is_asked() -> None:
    script = Script(words("x"), models={"data": [{"id": "a"}, {"id": "b", "meta": {"n_ctx": 512}}]})
    with serving(script) as url, HttpClient(url, model="b") as client:
        assert (client.start().target, client.start().n_ctx) == ("b", 512)
        stream(client, question()).result()
        with pytest.raises(RequestError, match="has no model 'c'") as caught:
            HttpClient(url, model="c").start()
    assert script.bodies[0]["model"] == "b"
    assert caught.value.hint == "it has: a, b"


def test_a_bad_request_does_not_teach_that_extensions_are_minded() -> None:
    script = Script(words("x"), status=400, error={"error": {"message": "too long"}})
    with serving(script) as url, HttpClient(url) as client:
        client.start()
        with pytest.raises(RequestError, match="too long"):
            stream(client, question("a")).result()
        script.status = 200
        stream(client, question("b")).result()
    assert ["cache_prompt" in body for body in script.bodies] == [True, False, True]


def test_cached_prompts_are_used_where_nothing_is_measured() -> None:
    script = Script(words("x"))
    with serving(script) as url, HttpClient(url, reuses_prompts=True) as client:
        client.start()
        stream(client, question()).result()
    assert "cache_prompt" not in script.bodies[0]
    assert "top_k" in script.bodies[0]


def test_thoughts_stand_apart_from_the_answer() -> None:
    said: list[dict[str, object]] = [{"reasoning_content": "hm"}, {"reasoning_content": "m"}, {"content": "yes"}]
    chunks = [json.dumps({"choices": [{"delta": delta}]}) for delta in [*said, {"content": "!"}]]
    joined, split = StreamedAnswer(), StreamedAnswer(is_split=True)
    assert "".join(joined.take(chunk, 0.0)[0].text for chunk in chunks) == "hmm\n\nyes!"
    pieces = [split.take(chunk, 0.0)[0] for chunk in chunks]
    assert ("".join(p.reasoning for p in pieces), "".join(p.text for p in pieces)) == ("hmm", "yes!")


def test_a_server_that_vanishes_is_one_clear_error() -> None:
    with serving(Script(words("x"))) as url:
        client = HttpClient(url)
        client.start()
    with pytest.raises(EngineError, match=f"cannot reach {url}"):
        stream(client, question()).result()


@pytest.mark.parametrize(
    ("status", "error", "code", "parameter"),
    [
        (
            400,
            {"message": "m", "code": "context_length_exceeded", "param": "messages"},
            "context_length_exceeded",
            "messages",
        ),
        (400, {"message": "m", "code": 400}, "", ""),
        (400, {"code": 400, "type": "exceed_context_size_error"}, "context_length_exceeded", ""),
        (401, {"message": "m"}, "invalid_api_key", ""),
        (404, {"message": "m", "code": "model_not_found"}, "model_not_found", ""),
    ],
)
def test_a_refusal_keeps_the_servers_words(status: int, error: object, code: str, parameter: str) -> None:
    found = refusal("http://x", status, json.dumps({"error": error}).encode())
    assert isinstance(found, RequestError)
    assert (found.code, found.parameter) == (code, parameter)


def test_a_busy_server_may_be_asked_again() -> None:
    found = refusal("http://x", 429, b'{"error": {"message": "the queue is full"}}')
    assert isinstance(found, EngineError)
    assert "try again" in found.hint


PNG, GIF = b"\x89PNG\r\n\x1a\n", b"GIF89a"
PNG_URL, GIF_URL = "data:image/png;base64,iVBORw0KGgo=", "data:image/gif;base64,R0lGODlh"


@pytest.mark.parametrize(
    ("text", "images", "parts"),
    [
        ("hi", (), "hi"),
        ("hi", (Image(PNG),), [PNG_URL, "hi"]),
        ("", (Image(GIF),), [GIF_URL]),
        ("ab", (Image(PNG, 1),), ["a", PNG_URL, "b"]),
        ("ab", (Image(PNG, 1), Image(GIF, 1), Image(PNG, 2)), ["a", PNG_URL, GIF_URL, "b", PNG_URL]),
    ],
)
def test_pictures_are_sent_as_data_urls_where_they_stand(
    text: str, images: tuple[Image, ...], parts: str | list[str]
) -> None:
    asked_with = question(messages=(Message("user", text, images=images),))
    [message] = build_request(asked_with, "m", Dialect())[1]["messages"]  # type: ignore[misc]
    expected = message["content"]
    if isinstance(expected, list):
        expected = [part["text"] if part["type"] == "text" else part["image_url"]["url"] for part in expected]
    assert expected == parts


@pytest.mark.parametrize(
    ("expected", "sees"),
    [
        ({}, True),
        ({"loaded": True, "capabilities": []}, True),
        ({"loaded": True, "capabilities": ["completion", "multimodal"]}, True),
        ({"loaded": True, "capabilities": ["completion"]}, False),
        ({"loaded": False, "capabilities": ["completion"]}, True),  # what it reads is known when it is loaded
        ({"capabilities": "of another kind"}, True),
    ],
)
def test_a_server_may_read_images_unless_it_says_otherwise(expected: dict[str, object], sees: bool) -> None:
    assert read_info({"id": "m", **expected}, {}, "url").sees_images is sees


@pytest.mark.parametrize(
    ("models", "sees"),
    [
        ([{"name": "m", "capabilities": ["completion"]}], False),
        ([{"name": "m", "capabilities": ["completion", "multimodal"]}], True),
        ([{"name": "another", "capabilities": ["completion"]}], True),
        (["m", {"name": "m"}], True),
        ("m", True),
    ],
)
def test_llama_server_reports_in_a_second_list_whether_its_model_reads_images(models: object, sees: bool) -> None:
    entry = choose_model({"data": [{"id": "m"}], "models": models}, "", "url")
    assert read_info(entry, {}, "url").sees_images is sees


@pytest.mark.parametrize(
    ("capabilities", "wanted", "chosen"),
    [
        ([["embedding"], ["completion"], []], "", "b"),
        ([["embedding"], [], ["completion"]], "", "b"),  # not reported
        ([["embedding"]] * 3, "", "a"),
        ([["embedding"], ["completion"], []], "a", "a"),
        ([None, ["completion"], []], "", "a"),
    ],
)
def test_of_several_models_the_first_that_talks_is_taken(
    capabilities: list[list[str] | None], wanted: str, chosen: str
) -> None:
    data = [{"id": name, "capabilities": expected} for name, expected in zip("abc", capabilities, strict=True)]
    assert choose_model({"data": data}, wanted, "url")["id"] == chosen


# ---- tools
def test_tools_calls_and_results_are_sent_as_openai_has_them() -> None:
    call = ToolCall("c1", "now", '{"zone": "UTC"}')
    messages = (
        Message("user", "hi"),
        Message("assistant", "", "hm", (call,)),
        Message("tool", "noon", tool_call_id="c1"),
    )
    asked_for = question(messages=messages, tools=(Tool("now", "The time.", '{"type": "object"}'),))
    body = build_request(asked_for, "m", Dialect())[1]
    assert body["tools"] == [
        {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}}}
    ]
    assert "tool_choice" not in body
    function = {"name": "now", "arguments": '{"zone": "UTC"}'}
    assert body["messages"][1:] == [  # type: ignore[index]
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
    ]
    plain = build_request(asked_for, "m", Dialect(extensions=False))[1]
    assert "reasoning_content" not in plain["messages"][1]  # type: ignore[index]
    refused = replace(asked_for, tool_choice=ToolChoice(use=ToolUse.NONE))
    assert build_request(refused, "m", Dialect())[1]["tool_choice"] == "none"


def called(*deltas: object) -> list[ToolCall]:
    answer = StreamedAnswer(is_split=True)
    chunks = [json.dumps({"choices": [{"delta": {"tool_calls": delta}}]}) for delta in deltas]
    return join_calls(part for chunk in chunks for piece in answer.take(chunk, 0.0) for part in piece.calls)


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        (  # OpenAI, llama-server and ours
            (
                [{"index": 0, "id": "a", "type": "function", "function": {"name": "now", "arguments": ""}}],
                [{"index": 0, "function": {"arguments": '{"a"'}}],
                [{"index": 0, "function": {"arguments": ": 1}"}}],
                [{"index": 1, "id": "b", "function": {"name": "then", "arguments": "{}"}}],
            ),
            [ToolCall("a", "now", '{"a": 1}'), ToolCall("b", "then", "{}")],
        ),
        (  # whole calls without an index
            ([{"id": "a", "function": {"name": "now", "arguments": "{}"}}, {"function": {"name": "then"}}],),
            [ToolCall("a", "now", "{}"), ToolCall("call_1", "then", "")],
        ),
        (([{"index": 7, "function": {"name": "now", "arguments": "{}"}}],), [ToolCall("call_0", "now", "{}")]),
        (([{"index": 0, "function": {"arguments": "{}"}}],), []),  # no call has begun
        ((None, 3, [3], [{}], [{"function": []}], [{"index": "x", "function": {"name": 3}}]), []),
    ],
)
def test_calls_are_read_as_servers_send_them(deltas: tuple[object, ...], calls: list[ToolCall]) -> None:
    assert called(*deltas) == calls


JSON = st.recursive(
    st.none() | st.integers(-1, 3) | st.text(max_size=3), lambda each: st.lists(each, max_size=3), max_leaves=4
)
CALL = st.fixed_dictionaries(
    {},
    optional={
        "index": JSON,
        "id": JSON,
        "function": st.fixed_dictionaries({}, optional={"name": JSON, "arguments": JSON}) | JSON,
    },
)


@given(st.lists(st.lists(CALL | JSON, max_size=4), max_size=4))
def test_any_calls_can_be_joined(deltas: list[object]) -> None:
    ids = [call.id for call in called(*deltas)]
    assert all(ids)
