"""Base URLs as people write them: paths that mean the same, and every check sees the path that is routed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from doubles.raw_server_client import RawAnswer, exchange, request
from doubles.running_server import Server, directed, served

from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.server.middleware import normalize_path

KEY = "k" * 20
MESSAGES = [{"role": "user", "content": "say x"}]


@pytest.mark.parametrize(
    ("path", "routed"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("///v1///chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1//v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("//health", "/health"),
        ("/v1/v1/health", "/v1/health"),
        ("/health", "/health"),
        ("/v1", "/v1"),
        ("/v1/", "/v1/"),
        ("/", "/"),
        ("//", "/"),
        ("", ""),
        ("*", "*"),
        ("/v1/models//home/me/x.gguf", "/v1/models//home/me/x.gguf"),
        ("/v1/models/v1/v1/x", "/v1/models/v1/v1/x"),
        ("/v11//x", "/v11//x"),
        ("/x/v1/v1/models", "/x/v1/v1/models"),
    ],
)
def test_the_path_that_is_meant(path: str, routed: str) -> None:
    assert normalize_path(path) == routed
    assert normalize_path(routed) == routed


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "//v1//"])
def test_clients_of_anthropic_may_say_the_version_or_not(actor: Server, base: str) -> None:
    body = json.dumps({"model": "", "max_tokens": 9, "messages": MESSAGES}).encode()
    answer = exchange(actor.port, request(f"{base}/v1/messages", body))
    assert (answer.status, json.loads(answer.body)["content"][0]["text"]) == (200, "x")


@pytest.mark.parametrize("base", ["/v1", "/v1/", "//v1", "/v1/v1"])
def test_clients_of_openai_may_end_the_base_with_a_slash(actor: Server, base: str) -> None:
    answer = exchange(actor.port, request(f"{base}/chat/completions", json.dumps({"messages": MESSAGES}).encode()))
    assert (answer.status, json.loads(answer.body)["choices"][0]["message"]["content"]) == (200, "x")


def test_the_clients_themselves(actor: Server) -> None:
    openai, anthropic = actor.openai(), actor.anthropic()
    openai.base_url, anthropic.base_url = f"{actor.url}/v1//", f"{actor.url}/v1/"
    messages: Any = MESSAGES
    assert openai.chat.completions.create(model="", messages=messages).choices[0].message.content == "x"
    assert anthropic.messages.create(model="", max_tokens=9, messages=messages).stop_reason == "end_turn"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with served(directed(access=Access(keys=ApiKeys((("anna", KEY),))))) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("//health", 200),
        ("/v1//models", 401),
        ("/v1/v1/models", 401),
        ("//v1//metrics", 401),
        ("//metrics", 401),
        ("/health//metrics", 401),
        ("//health/../metrics", 401),
        ("/v1/v1/health/../models", 401),
        ("//evil.example/..", 401),
    ],
)
def test_no_way_of_writing_a_path_leads_around_the_key(guarded: Server, path: str, status: int) -> None:
    assert exchange(guarded.port, request(path, method="GET")).status == status


def test_refusals_have_the_shape_of_the_route_that_is_meant(guarded: Server) -> None:
    answer = exchange(guarded.port, request("/v1/v1/messages", b"{}"))
    assert (answer.status, json.loads(answer.body)["type"]) == (401, "error")


# ---- a whole address as target, as clients of proxies send it
def answered(server: Server, target: str, host: str = "127.0.0.1", method: str = "GET", body: bytes = b"") -> RawAnswer:
    head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return exchange(server.port, f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)


@pytest.mark.parametrize("scheme", ["http", "HTTP", "https"])
def test_a_target_may_be_a_whole_address(actor: Server, scheme: str) -> None:
    base = f"{scheme}://127.0.0.1:{actor.port}"
    models = answered(actor, f"{base}/v1/models")
    assert (models.status, json.loads(models.body)) == (200, actor.http.get("/v1/models").json())
    assert answered(actor, f"{base}/v1//v1/models").status == 200
    assert answered(actor, f"{base}/v1/models?x=http://y/z").status == 200
    assert {answered(actor, target).body for target in (base, f"{base}/")} == {answered(actor, "/").body}
    reply = answered(actor, f"{base}/v1/chat/completions", "x", "POST", json.dumps({"messages": MESSAGES}).encode())
    assert json.loads(reply.body)["choices"][0]["message"]["content"] == "x"


def test_of_a_whole_address_its_host_counts(actor: Server, guarded: Server) -> None:
    assert answered(actor, "http://evil.example/v1/models").status == 421
    assert answered(actor, f"http://127.0.0.1:{actor.port}@evil.example/v1/models").status == 421
    assert answered(actor, f"http://localhost:{actor.port}/v1/models", "evil.example").status == 200
    assert answered(actor, "http:///v1/models").status == 421
    assert answered(actor, f"http%3A//127.0.0.1:{actor.port}/v1/models").status in (400, 404)
    assert answered(guarded, f"http://127.0.0.1:{guarded.port}/v1/models").status == 401
    assert answered(guarded, f"http://127.0.0.1:{guarded.port}/health").status == 200
