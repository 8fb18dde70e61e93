"""Malformed bytes: a precise refusal or a clean close, and the next request is answered."""

from __future__ import annotations

import contextlib
import json
import logging
import socket

import pytest
from doubles.raw_server_client import connected, exchange, read_answer, request
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until

from eaglelocal.server import http_protocol
from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.middleware import BodyMiddleware
from eaglelocal.server.server_state import ServerLimits

BODY = json.dumps({"messages": [{"role": "user", "content": "say x"}]}).encode()
CHAT = request("/v1/chat/completions", BODY)


def is_well(server: Server) -> bool:
    return exchange(server.port, CHAT).status == 200


HEADS = {
    "no http": b"hello\r\n\r\n",
    "nothing but ends of lines": b"\r\n" * 50,
    "tls": bytes.fromhex("1603010200010001fc0303") + b"\x00" * 60,
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
    "negative length": b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n12345",
    "a length that is no number": b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5x\r\n\r\n12345",
    "a length without end": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 400 + b"\r\n\r\n",
    "garbage for chunks": request("/v1/completions", b"", "Transfer-Encoding: chunked") + b"zz\r\nhello\r\n",
    "an unknown coding": request("/v1/completions", b"", "Transfer-Encoding: gzip") + b"hello",
    "a header without colon": b"GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "nul in a header": b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
    "nul in the path": b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "letters beyond ascii in the path": "GET /ä HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
    "a giant header": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 300_000 + b"\r\n\r\n",
    "giant headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
    "a giant path": b"GET /" + b"x" * 300_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a length and a coding": request("/v1/completions", BODY, "Transfer-Encoding: chunked") + b"\r\n0\r\n\r\n",
    "a coding and a length": request("/v1/completions", b"", "Transfer-Encoding: chunked", "Content-Length: 5")
    + b"5\r\nhello\r\n0\r\n\r\n",
    "two origins": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\nOrigin: http://evil.example\r\n\r\n",
    "two hosts in version 1.0": b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "two keys": request("/v1/completions", BODY, "Authorization: Bearer a", "Authorization: Bearer b"),
    "two x-api-keys": request("/v1/completions", BODY, "X-Api-Key: a", "x-api-key: b"),
    "two codings": request("/v1/completions", b"", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "a header of 64 KiB": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2**16 + b"\r\n\r\n",
    "version 9": b"GET /v1/models HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
}


def test_a_version_of_the_future_is_refused(actor: Server) -> None:
    assert exchange(actor.port, HEADS["version 9"]).status == 505


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_broken_heads_are_refused(actor: Server, head: bytes) -> None:
    answer = exchange(actor.port, head, half_closes=True)
    assert answer.status in (0, 400, 431, 505)
    if answer.status:
        assert answer.error["type"] == "invalid_request_error"
        assert b"connection: close" in answer.head.lower()
    assert is_well(actor)


@pytest.mark.parametrize(
    "name",
    [
        *("a length and a coding", "a coding and a length", "two origins", "two hosts", "two hosts in version 1.0"),
        *("two keys", "two x-api-keys", "two codings", "a header of 64 KiB", "a giant header"),
        *("giant headers", "a giant path"),
    ],
)
def test_what_may_be_understood_otherwise_is_refused_and_closed(actor: Server, name: str) -> None:
    """Not left to a timeout: the answer is there, and behind it the end of the connection."""
    with connected(actor.port) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(HEADS[name])
        answer = read_answer(sock)
        assert answer.status in (400, 431)
        assert sock.recv(100) == b""


def test_a_folded_header_is_one_header(actor: Server) -> None:
    """As RFC 9112 allows: the fold is a space. So a folded Host is no name of ours."""
    head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n evil.example\r\n\r\n"
    assert exchange(actor.port, head).status == 421
    assert exchange(actor.port, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n").status == 200


# ---- answers that come before the request's end
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (request("/v1/completions", b"", "Content-Length: 40000000"), 413),
        (request("/v1/completions", b"", "Content-Length: 40000000", host="evil.example"), 421),
        (request("/v1/completions", b"", "Content-Length: 40000000", "Origin: http://evil.example"), 403),
        (request("/v1/completions", b"", "Content-Length: 40000000", "Authorization: a", "Authorization: b"), 400),
        (b"nonsense\r\n\r\n", 400),
    ],
    ids=["too large", "another host", "another page", "two keys", "no http"],
)
def test_a_client_that_keeps_sending_still_sees_the_answer(actor: Server, head: bytes, status: int) -> None:
    """As most clients do: the whole request first, then they read. A reset would take the answer from them."""
    with connected(actor.port) as sock:
        sock.sendall(head)
        for _ in range(600):
            sock.sendall(b"x" * 65536)
        assert read_answer(sock).status == status
    assert is_well(actor)


def test_a_client_without_a_key_that_keeps_sending_sees_401() -> None:
    keys = ApiKeys((("ann", "k" * 20),))
    with served(directed(access=Access(keys=keys))) as server, connected(server.port) as sock:
        sock.sendall(request("/v1/completions", b"", "Content-Length: 40000000"))
        for _ in range(600):
            sock.sendall(b"x" * 65536)
        assert read_answer(sock).status == 401


def test_chunks_that_are_too_many_are_reported(actor: Server) -> None:
    with connected(actor.port) as sock:
        sock.sendall(request("/v1/chat/completions", b"", "Transfer-Encoding: chunked"))
        for _ in range(200):
            sock.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        assert read_answer(sock).status == 413


def test_a_client_of_httpx_sees_413(actor: Server) -> None:
    answer = actor.http.post("/v1/completions", content=b"x" * (40 * 2**20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_what_is_dropped_after_an_answer_is_bounded(actor: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "MAX_DROPPED_BYTES", 2**20)
    with connected(actor.port) as sock:
        sock.sendall(request("/v1/completions", b"", "Content-Length: 99999999"))
        with pytest.raises(OSError):
            for _ in range(1000):
                sock.sendall(b"x" * 65536)
    assert is_well(actor)


def test_a_client_that_sends_forever_after_an_answer_is_disconnected(
    actor: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.3)
    with connected(actor.port) as sock:
        sock.sendall(request("/v1/completions", b"", "Content-Length: 99999999"))
        assert read_answer(sock).status == 413
        assert drips_until_closed(sock, b"x" * 1000)


# ---- many connections
CROWDED = directed(limits=ServerLimits(num_connections=8))  # two are kept for /health


def test_idle_connections_make_room_for_those_who_ask() -> None:
    with served(CROWDED) as server, contextlib.ExitStack() as held:
        idle = [held.enter_context(connected(server.port)) for _ in range(30)]
        assert is_well(server)
        assert idle[0].recv(1) == b""  # the first ones had to go


def test_an_endless_body_is_disconnected_when_places_run_out() -> None:
    with served(CROWDED) as server, contextlib.ExitStack() as held:
        for _ in range(30):
            sock = held.enter_context(connected(server.port))
            sock.sendall(CHAT[:-1])
        assert is_well(server)


def test_with_all_places_busy_one_more_is_refused_but_gets_the_health() -> None:
    with served(CROWDED) as server:
        with contextlib.ExitStack() as held:
            for _ in range(6):
                held.enter_context(connected(server.port)).sendall(request("/v1/chat/completions", FOREVER))
            wait_until(lambda: len(server.serving.active) == 6, "all are being answered")
            for _ in range(10):
                held.enter_context(connected(server.port))
            for path in ("/v1/models", "/v1/events", "/healthy"):
                answer = exchange(server.port, request(path, method="GET"))
                assert (answer.status, answer.error["code"]) == (503, "unavailable")
                assert b"retry-after" in answer.head.lower()
            assert exchange(server.port, request("/health", method="GET")).status == 200
            assert len(server.serving.active) == 6
        wait_until(lambda: not server.serving.active, "they have gone")
        assert is_well(server)


def test_version_one_without_host_is_not_for_us(actor: Server) -> None:
    assert exchange(actor.port, b"GET /v1/models HTTP/1.0\r\n\r\n").status == 421


def test_version_one_is_answered(actor: Server) -> None:
    head = b"POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = exchange(actor.port, head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert answer.status == 200
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == "x"


def test_chunks_are_put_together(actor: Server) -> None:
    head = request("/v1/chat/completions", b"", "Transfer-Encoding: chunked", "Content-Type: application/json")
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    assert exchange(actor.port, head + chunks).status == 200


def test_chunks_without_end_are_too_much(actor: Server) -> None:
    """Its length is not stated."""
    head = request("/v1/chat/completions", b"", "Transfer-Encoding: chunked")
    with connected(actor.port) as sock:
        sock.sendall(head)
        try:
            for _ in range(200):
                sock.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        except OSError:  # it has answered, and hung up
            pass
        assert read_answer(sock).status in (0, 413)
    assert is_well(actor)


def test_a_length_that_is_too_large_is_refused_before_the_body_comes(actor: Server) -> None:
    answer = exchange(
        actor.port, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
    )
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert b"connection: close" in answer.head.lower()


def test_a_body_that_is_shorter_than_said(actor: Server) -> None:
    answer = exchange(actor.port, CHAT[:-5], half_closes=True)
    assert answer.status in (0, 400)
    assert is_well(actor)


def test_what_is_after_a_body_is_another_request(actor: Server) -> None:
    with connected(actor.port) as sock:
        sock.sendall(CHAT + b"garbage\r\n\r\n")
        assert read_answer(sock).status == 200
    assert is_well(actor)


def test_requests_in_one_go_are_answered_in_order(actor: Server) -> None:
    bodies = [json.dumps({"prompt": f"say number-{i}"}).encode() for i in range(5)]
    sent = b"".join(request("/v1/completions", body) for body in bodies)
    got = b""
    with connected(actor.port) as sock:
        sock.sendall(sent)
        while got.count(b'"finish_reason":"stop"') < 5:
            got += sock.recv(65536)
    places = [got.index(f"number-{i}".encode()) for i in range(5)]
    assert places == sorted(places)


def test_a_client_that_half_closes_is_still_answered(actor: Server) -> None:
    """Half closed: nothing more will come, but something may be read."""
    answer = exchange(actor.port, CHAT, half_closes=True)
    assert answer.status in (0, 200)
    actor.wait_until_idle()
    assert is_well(actor)


H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
FOREVER = json.dumps({"messages": [{"role": "user", "content": "forever"}]}).encode()


@pytest.mark.parametrize(
    ("headers", "then"),
    [
        ((), b""),
        (H2C, b""),
        ((), b"\r\n"),
        (H2C, b"\r\n"),
        ((), CHAT * 3),
        (("Content-Type: application/json", "Connection: Upgrade", "Upgrade: websocket"), CHAT),
    ],
    ids=["plain", "h2c", "an end of line", "h2c and an end of line", "more requests", "websocket and another"],
)
def test_a_disconnect_is_noticed_whatever_followed_the_request(
    actor: Server, headers: tuple[str, ...], then: bytes
) -> None:
    with connected(actor.port) as sock:
        sock.sendall(request("/v1/chat/completions", FOREVER, *headers))
        wait_until(lambda: actor.snapshot()["running"] == 1, "it is being answered")
        sock.sendall(then)
        assert is_well(actor)  # by now it has been read
        assert actor.snapshot()["running"] == 1
    actor.wait_until_idle()


def test_what_comes_ahead_of_its_turn_is_not_read_without_end(actor: Server) -> None:
    with connected(actor.port) as sock:
        sock.settimeout(0.5)
        sock.sendall(request("/v1/chat/completions", FOREVER))
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                sock.sendall(b"x" * 65536)
    actor.snapshot()
    for call, _ in list(actor.serving.active.values()):
        assert actor.loop is not None
        actor.loop.call_soon_threadsafe(call.cancel, Problem(503, "enough"))
    actor.wait_until_idle()


def test_an_offer_of_another_protocol_is_passed_over_in_silence(
    actor: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(actor.port) as sock:
        for _ in range(2):  # and the connection goes on
            sock.sendall(request("/v1/chat/completions", BODY, *H2C))
            assert read_answer(sock).status == 200
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_slow_heads_and_bodies_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(BodyMiddleware.__init__, "__kwdefaults__", {"max_bytes": 2**20, "timeout_s": 0.3})
    with served(directed()) as server:
        for sent, status in ((b"", 0), (b"GET / HT", 0), (CHAT.partition(BODY)[0] + b"{", 408)):
            with connected(server.port) as sock:
                sock.sendall(sent)
                assert read_answer(sock).status == status
        with connected(server.port) as sock:  # a byte now and then does not help
            assert drips_until_closed(sock, b"GET /v1/models HTTP/1.1\r\nX: " + b"y" * 1000)
        with connected(server.port) as sock:  # neither does an answer before
            sock.sendall(CHAT)
            assert read_answer(sock).status == 200
            assert drips_until_closed(sock, CHAT)
        assert is_well(server)


def drips_until_closed(sock: socket.socket, sent: bytes) -> bool:
    sock.settimeout(0.05)
    for byte in sent:
        try:
            sock.sendall(bytes([byte]))
            if not sock.recv(100):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_many_idle_connections_delay_no_other(actor: Server) -> None:
    idle = [socket.create_connection(("127.0.0.1", actor.port)) for _ in range(200)]
    try:
        assert is_well(actor)
    finally:
        for sock in idle:
            sock.close()


def test_no_text_of_a_question_is_in_logs_errors_or_figures(actor: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "xyzzy-plugh"
    scripts = (f"say {secret}", f"refuse {secret} code", f"fail full\nsay {secret}")
    for script in scripts:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            body = {"messages": [{"role": "user", "content": script}], "max_tokens": 5, "input": script, "x": secret}
            actor.http.post(path, json=body)
        actor.http.post("/v1/completions", json={"prompt": [script, 5], "stop": [secret, 7]})
        actor.http.post("/v1/completions", content=secret, headers={"content-type": "application/json"})
    actor.http.post("/v1/completions", content=f'{{"prompt": {secret}', headers={"Authorization": f"Bearer {secret}"})
    for path in ("/metrics", "/v1/snapshot", "/health"):
        assert secret not in actor.http.get(path).text
    assert secret not in caplog.text


def test_paths_cannot_write_lines_into_the_log(actor: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eaglelocal.server")
    exchange(actor.port, request("/v1/%0a00:00:00%20forged%1b[2J", method="GET"))
    exchange(actor.port, request("/" + "x" * 9000, method="GET"))

    def logged(begin: str) -> list[str]:
        """The fixture's own requests may be logged late."""
        return [line for line in (record.getMessage() for record in caplog.records) if line.startswith(begin)]

    wait_until(lambda: bool(logged("GET /v1/") and logged("GET /xxx")), "both are logged")
    assert logged("GET /v1/") == ["GET /v1/%0a00:00:00%20forged%1b[2J 404"]
    (long,) = logged("GET /xxx")
    assert len(long) < 300
