"""Limits on the size, number and duration of request bodies, each tested on both sides of the limit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import tracemalloc
from functools import partial

import httpx
import pytest
from doubles.raw_server_client import connected, exchange, read_answer, request
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until
from starlette.types import Message, Receive, Scope, Send

from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.server.app import PATHS, TABLES
from eaglelocal.server.content import MAX_IMAGES_BYTES
from eaglelocal.server.middleware import (
    CONVERSATION_PATHS,
    LARGE_BYTES,
    MAX_BODY_BYTES,
    MAX_CONVERSATION_BYTES,
    MAX_LARGE,
    MAX_VALUES,
    PLACE_BYTES,
    BodyMiddleware,
    num_places,
)
from eaglelocal.server.schema import MAX_TEXT_CHARS

JSON = {"content-type": "application/json"}


NUM_PICTURES = 3
MAX_PICTURE = MAX_IMAGES_BYTES // NUM_PICTURES // 3 * 4  # characters of base64


def with_pictures(size: int) -> bytes:
    """A session of so many bytes, of which a tool's screenshots take as much as they may."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [picture] * NUM_PICTURES}
    asked = [{"type": "text", "text": "say well"}]
    turns = [{"role": "user", "content": [result]}, {"role": "user", "content": asked}]
    body = json.dumps({"max_tokens": 9, "messages": turns})
    length = min((size - len(body)) // NUM_PICTURES // 4 * 4, MAX_PICTURE)
    return body.replace('"data": ""', f'"data": "{"A" * length}"').encode().ljust(size)


def post(server: Server, path: str, body: bytes) -> httpx.Response:
    return server.http.post(path, content=body, headers=JSON)


@pytest.mark.parametrize("size", [LARGE_BYTES, LARGE_BYTES + 1, MAX_CONVERSATION_BYTES])
def test_a_session_with_pictures_is_answered(actor: Server, size: int) -> None:
    answer = post(actor, "/v1/messages", with_pictures(size))
    assert answer.status_code == 200
    assert answer.json()["content"][0]["text"] == "well"


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("/v1/messages", MAX_CONVERSATION_BYTES),
        ("/v1/chat/completions", MAX_CONVERSATION_BYTES),
        ("//v1/v1/messages", MAX_CONVERSATION_BYTES),
        ("/v1/completions", MAX_BODY_BYTES),  # has no pictures
        ("/v1/embeddings", MAX_BODY_BYTES),
        ("/nowhere", MAX_BODY_BYTES),
    ],
)
def test_a_byte_more_is_refused_before_it_comes(actor: Server, path: str, size: int) -> None:
    answer = exchange(actor.port, request(path, b"", f"Content-Length: {size + 1}"))
    assert (answer.status, answer.error["type"]) == (413, "invalid_request_error")
    assert f"larger than {size} bytes" in answer.error["message"]


def test_bodies_with_pictures_go_where_pictures_are_read() -> None:
    assert CONVERSATION_PATHS <= PATHS


@pytest.mark.parametrize(("size", "status"), [(LARGE_BYTES, 200), (LARGE_BYTES + 1, 413)])
def test_what_is_large_must_say_so(actor: Server, size: int, status: int) -> None:
    """With chunks the length is not known in advance."""
    body = with_pictures(size)
    head = request("/v1/messages", b"", "Transfer-Encoding: chunked", "Content-Type: application/json")
    with connected(actor.port) as sock:
        with contextlib.suppress(OSError):  # it has answered, and hung up
            sock.sendall(head + b"%x\r\n" % size + body + b"\r\n0\r\n\r\n")
        assert read_answer(sock).status in {status, status if status == 200 else 0}


@pytest.mark.parametrize(("count", "status"), [(MAX_VALUES - 100, 200), (MAX_VALUES + 1, 413)])
def test_large_bodies_hold_texts_rather_than_values(actor: Server, count: int, status: int) -> None:
    values = b"0," * count
    more = json.dumps("x" * (LARGE_BYTES + 1)).encode()
    body = b'{"messages": [{"role": "user", "content": "say x"}], "ignored": [' + values + more + b"]}"
    assert post(actor, "/v1/chat/completions", body).status_code == status
    small = b'{"messages": [{"role": "user", "content": "say x"}], "ignored": [' + values + b"0]}"
    assert post(actor, "/v1/chat/completions", small).status_code == 200


TEXT = "x" * (MAX_TEXT_CHARS // 2)


@pytest.mark.parametrize("more", ["", "x" * 100], ids=["all", "more"])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/messages", "messages"),
        ("/v1/responses", "input"),
        ("/v1/completions", "prompt"),
        ("/v1/embeddings", "input"),
        ("/api/chat", "messages"),
        ("/api/embed", "input"),
    ],
)
def test_texts_beyond_any_context_are_not_given_to_the_engine(actor: Server, path: str, field: str, more: str) -> None:
    texts = [TEXT, TEXT[:-20] + more, "say x"]
    is_talk = path.endswith(("chat/completions", "chat", "messages", "responses"))
    asked = [{"role": "user", "content": text} for text in texts] if is_talk else texts
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    answer = actor.http.post(path, json={field: asked, limit: 1})
    if not more:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert "characters, more than any context holds" in answer.text


HALF = len(TEXT)


@pytest.mark.parametrize(
    ("path", "prompts", "suffix", "status"),
    [
        ("/v1/completions", "x" * HALF, HALF, 200),
        ("/v1/completions", "x" * HALF, HALF + 1, 400),
        ("/v1/completions", ["say x"] * 2, HALF - 5, 200),
        ("/v1/completions", ["say x"] * 2, HALF - 4, 400),  # it stands behind each
        ("/api/generate", "x" * HALF, HALF + 1, 400),
    ],
)
def test_what_stands_after_an_answer_is_given_too(
    actor: Server, path: str, prompts: object, suffix: int, status: int
) -> None:
    asked = {"prompt": prompts, "suffix": "x" * suffix, "max_tokens": 1, "stream": False}
    answer = actor.http.post(path, json=asked)
    assert answer.status_code == status
    assert ("more than any context holds" in answer.text) is (status == 400)


@pytest.mark.parametrize(("more", "status"), [(-100, 200), (100, 400)])
def test_values_of_the_template_are_given_too(actor: Server, more: int, status: int) -> None:
    answer = actor.ask("say x", chat_template_kwargs={"a": TEXT, "b": "x" * (HALF + more)})
    assert answer.status_code == status


def test_few_large_bodies_are_here_at_once() -> None:
    head = request("/v1/messages", b"", "Content-Type: application/json", f"Content-Length: {LARGE_BYTES + 1}")
    with served(directed()) as server, contextlib.ExitStack() as held:
        for _ in range(MAX_LARGE):
            held.enter_context(connected(server.port)).sendall(head + b"{")
        wait_until(lambda: exchange(server.port, head).status == 503, "no more are taken")
        refused = exchange(server.port, head)
        assert (refused.error["type"], b"retry-after: 5" in refused.head.lower()) == ("overloaded_error", True)
        assert server.ask("say x").status_code == 200  # what is small has its place
        held.close()
        wait_until(
            lambda: post(server, "/v1/messages", with_pictures(LARGE_BYTES + 1)).status_code == 200, "there is room"
        )


@pytest.mark.parametrize(
    ("length", "places"),
    [
        *((0, 0), (LARGE_BYTES, 0), (LARGE_BYTES + 1, 1), (PLACE_BYTES, 1), (PLACE_BYTES + 1, 2)),
        *((MAX_CONVERSATION_BYTES, 3), (2**63, 2**63 // PLACE_BYTES)),
    ],
)
def test_the_larger_a_body_the_more_places_it_takes(length: int, places: int) -> None:
    assert num_places(length) == places


def test_few_bodies_of_the_largest_are_here_at_once() -> None:
    """So many as would take no more memory than the many of before."""
    lengths = (MAX_CONVERSATION_BYTES, MAX_CONVERSATION_BYTES, 2 * PLACE_BYTES)
    heads = [request("/v1/messages", b"", f"Content-Length: {length}") for length in lengths]
    refused = request("/v1/messages", b"", f"Content-Length: {LARGE_BYTES + 1}")
    with served(directed()) as server, contextlib.ExitStack() as held:
        for head in heads:
            held.enter_context(connected(server.port)).sendall(head + b"{")
        wait_until(lambda: exchange(server.port, refused).status == 503, "no more are taken")
        assert server.ask("say x").status_code == 200


KEYS = ApiKeys((("anna", "a-key-that-anna-has"), ("bert", "a-key-that-bert-has")))


def test_no_owner_holds_all_places_for_large_bodies_that_several_share() -> None:
    def head(key: str) -> bytes:
        length = f"Content-Length: {LARGE_BYTES + 1}"
        return request("/v1/messages", b"", "Content-Type: application/json", length, f"x-api-key: {key}")

    def is_full(server: Server, head: bytes) -> bool:
        return exchange(server.port, head).status == 503

    (_, anna), (_, bert) = KEYS.by_name
    with served(directed(access=Access(keys=KEYS), loads=False)) as server, contextlib.ExitStack() as held:
        for key in (anna, bert):
            for _ in range(MAX_LARGE // 2):
                held.enter_context(connected(server.port)).sendall(head(key) + b"{")
            wait_until(partial(is_full, server, head(key)), "no more are taken")
            if key == anna:
                one = held.enter_context(connected(server.port))
                one.sendall(head(bert) + b"{}" + b" " * (LARGE_BYTES - 1))
                assert read_answer(one).status == 400  # it was read


LONG = "A" * 3 * LARGE_BYTES
LONG_URL = f"data:image/png;base64,{LONG}"
SHOWN = [
    {"role": "user", "content": [{"type": "image_url", "image_url": LONG_URL}]},
    {"role": "user", "content": "forever"},
]
STREAMED = json.dumps({"messages": SHOWN, "stream": True}).encode()
GIVEN = with_pictures(2 * LARGE_BYTES).replace(b"say well", b"forever").replace(b"{", b'{"stream": true, ', 1)


@pytest.mark.parametrize(
    ("label", "path", "body"),
    [
        ("actor", "/v1/messages", GIVEN),
        ("actor", "/api/generate", json.dumps({"prompt": "forever", "unread": LONG}).encode()),
        ("seer", "/v1/messages", GIVEN),
        ("seer", "/api/generate", json.dumps({"prompt": "forever", "images": [LONG]}).encode()),
        ("seer", "/v1/chat/completions", STREAMED),
        ("seer", "/v1/responses", STREAMED.replace(b'"messages"', b'"input"', 1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_body_is_gone_while_its_answer_is_reported(label: str, path: str, body: bytes) -> None:
    """Its bytes, the parsed JSON and its pictures, whether the engine has them or they are not used."""
    with served(directed(label)) as server:
        gc.collect()
        tracemalloc.start()
        try:
            with server.http.stream("POST", path, content=body, headers=JSON) as answer:
                parts = answer.iter_raw()
                assert answer.status_code == 200 and next(parts)
                wait_until(lambda: tracemalloc.get_traced_memory()[0] < LARGE_BYTES, "it is released")
                assert tracemalloc.get_traced_memory()[1] > 2 * LARGE_BYTES  # it was there
                assert next(parts)
        finally:
            tracemalloc.stop()


def test_without_a_key_no_body_is_read() -> None:
    keys = ApiKeys((("anna", "a-key-that-anna-has"),))
    with served(directed(access=Access(keys=keys))) as server:
        head = request("/v1/messages", b"", f"Content-Length: {MAX_BODY_BYTES}")
        assert exchange(server.port, head).status == 401


async def passed(door: BodyMiddleware, length: int, delay_s: float) -> list[Message]:
    """What is sent to who sends a body of that length, as late as that."""
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(delay_s)
        return {"type": "http.request", "body": b"x" * length, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-length", str(length).encode())]
    await door({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
    return sent


@pytest.mark.parametrize(
    ("length", "delay_s", "is_late"),
    [(10, 0.0, False), (10, 0.6, True), (LARGE_BYTES * 4, 0.6, False), (LARGE_BYTES * 4, 1.5, True)],
)
def test_a_large_body_may_take_longer_but_not_for_ever(length: int, delay_s: float, is_late: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert len((await receive())["body"]) == length
        await send({"type": "http.response.start", "status": 200, "headers": []})

    first, *_ = asyncio.run(passed(BodyMiddleware(app, timeout_s=0.3), length, delay_s))
    assert first["status"] == (408 if is_late else 200)


# ---- compressed bodies
POSTS = tuple(
    sorted(
        route.path.replace("{request_id:path}", "x").replace("{digest}", "x")
        for table in TABLES
        for route in table.routes
        if route.method == "POST"
    )
)


@pytest.mark.parametrize("path", POSTS)
def test_a_compressed_body_is_refused_by_its_encoding(actor: Server, path: str) -> None:
    body = gzip.compress(b'{"prompt": "x"}')
    for encoding in ("gzip", "br", "identity, gzip", "x-unheard-of"):
        headers = {"content-type": "application/json", "content-encoding": encoding}
        answer = actor.http.post(path, content=body, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
        assert f"Content-Encoding {encoding} is not supported" in (
            error if isinstance(error, str) else error["message"]
        )


@pytest.mark.parametrize("encoding", ["", "identity", "Identity, identity"])
def test_a_body_that_is_as_it_is_may_say_so(actor: Server, encoding: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    assert actor.http.post("/v1/completions", content=b'{"prompt": "say x"}', headers=headers).status_code == 200
