"""Read the body of a request before its route runs, in bounded memory and time."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglelocal.core.request import LOCAL
from eaglelocal.server.http_errors import Problem, unavailable
from eaglelocal.server.middleware.refusal import refuse

MAX_BODY_BYTES = 32 * 2**20
MAX_CONVERSATION_BYTES = 96 * 2**20  # 64 MiB of images are 90 MiB of base64 with line breaks, plus texts
CONVERSATION_PATHS = frozenset(
    (
        *("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
        *("/api/chat", "/api/generate", "/apply-template"),
    )
)
LARGE_BYTES = 4 * 2**20  # larger bodies contain images
MAX_LARGE = 8  # places for such bodies, held from the first byte until the answer ends
PLACE_BYTES = 32 * 2**20  # a body takes one place for each started piece of this size
MAX_VALUES = 2**20  # of JSON values in a large body: this many take 0.1 s and 100 MB to parse
MAX_QUOTED_CHARS = 40
BODY_TIMEOUT_S = 20.0  # for bodies that are not large


class BodyMiddleware:
    """Reads the whole body before the route runs, in bounded memory and time, so that no route waits for a slow client.

    Large bodies need a Content-Length, are limited in number (the larger, the fewer), and may contain long texts
    but not many values: JSON is parsed in the event loop, because a thread would hold the GIL as long.

    is_shared  several keys: none may hold more than half of the places for large bodies
    """

    def __init__(self, app: ASGIApp, *, timeout_s: float = BODY_TIMEOUT_S, is_shared: bool = False) -> None:
        self._app, self._timeout_s = app, timeout_s
        self._share = MAX_LARGE // 2 if is_shared else MAX_LARGE
        self._large: Counter[str] = Counter()  # places taken, by owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        if problem := encoding_problem(Headers(scope=scope)):
            await refuse(scope, send, problem, close=True)
            return
        length = parse_length(Headers(scope=scope).get("content-length", "0"))
        max_bytes = MAX_CONVERSATION_BYTES if scope["path"] in CONVERSATION_PATHS else MAX_BODY_BYTES
        owner, places = scope.get("state", {}).get("owner", LOCAL), num_places(length)
        if problem := self._problem(length, max_bytes, owner):
            await refuse(scope, send, problem, close=True)
            return
        self._large[owner] += places
        try:
            await self._call_with_body(scope, receive, send, length)
        finally:
            self._large[owner] -= places

    def _problem(self, length: int, max_bytes: int, owner: str) -> Problem | None:
        if length > max_bytes:
            return too_large(f"the body is larger than {max_bytes} bytes")
        places = num_places(length)
        if places and (self._large.total() + places > MAX_LARGE or self._large[owner] + places > self._share):
            return unavailable(f"too many requests of more than {LARGE_BYTES} bytes are in progress")
        return None

    async def _call_with_body(self, scope: Scope, receive: Receive, send: Send, length: int) -> None:
        timeout_s = self._timeout_s * max(1, length / LARGE_BYTES)
        try:
            async with asyncio.timeout(timeout_s):
                body = await self._read(length, receive)
        except TimeoutError:
            await refuse(scope, send, Problem(408, f"the body did not arrive within {timeout_s:g} s"), close=True)
        except Problem as problem:
            await refuse(scope, send, problem, close=True)
        else:
            if body is not None:
                receive = replay_body(body, receive)
                del body  # the answer may take minutes, and the route does not keep the body either
                await self._app(scope, receive, send)

    async def _read(self, length: int, receive: Receive) -> bytes | None:
        """Return the body; None if the client has disconnected. Raises Problem (413)."""
        parts, size, max_bytes = [], 0, max(length, LARGE_BYTES)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > max_bytes:
                raise too_large(f"a body of more than {max_bytes} bytes needs a Content-Length")
            parts.append(part)
            if not message.get("more_body", False):
                break
        body = b"".join(parts)
        if size > LARGE_BYTES and num_values(body) > MAX_VALUES:
            raise too_large(f"the body holds more than {MAX_VALUES} values")
        return body


def too_large(what: str) -> Problem:
    return Problem(413, what, code="request_too_large")


def num_places(length: int) -> int:
    """Return how many places for large bodies a body takes; 0 if it is not large."""
    return -(-length // PLACE_BYTES) if length > LARGE_BYTES else 0


def num_values(body: bytes) -> int:
    """Return an upper bound of the number of JSON values; punctuation inside strings counts too."""
    return 1 + sum(body.count(sign) for sign in (b",", b"[", b"{"))


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body in one message, then the server's messages (the disconnect)."""
    unsent: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return unsent.pop() if unsent else await receive()

    return receive_again


def parse_length(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 2**63


def encoding_problem(headers: Headers) -> Problem | None:
    """Return a Problem that names the encoding of a compressed body, which could expand to any size; else None."""
    given = ",".join(headers.getlist("content-encoding"))
    codings = [coding.strip() for coding in given.split(",") if coding.strip()]
    if all(coding.lower() == "identity" for coding in codings):
        return None
    named = ", ".join(codings)[:MAX_QUOTED_CHARS]
    what = f"Content-Encoding {named} is not supported: send the body uncompressed"
    return Problem(415, what, code="unsupported_encoding", headers={"Accept-Encoding": "identity"})
