"""ASGI middlewares in front of the routes: path, Host, origin, CORS, key, size and time of the body, in this order.

Plain ASGI, so that streams pass unchanged. Decisions are in access.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglelocal.server.access import LOCAL, Access, host_refusal, key_in, origin_refusal
from eaglelocal.server.encodings import encoding_problem, with_plain_target
from eaglelocal.server.errors import AUTHENTICATION, PERMISSION, Problem, unavailable

OPEN_PATHS = frozenset({"/health", "/v1/health"})
ANTHROPIC_PATHS = ("/v1/messages",)
OLLAMA_PATHS = ("/api/",)
VERSIONS = ("1.0", "1.1")
SINGLE_HEADERS = ("host", "origin", "authorization", "x-api-key", "content-length", "transfer-encoding")
MAX_HEAD_BYTES = 32 * 2**10
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
BODY_TIMEOUT_S = 20.0  # for bodies that are not large
MAX_LOGGED_BYTES = 200

_BASE = re.compile("/+(v1/+)*")
_log = logging.getLogger("eaglelocal.server")


class PathDoor:
    """Normalizes targets that are whole URLs, and paths from base URLs with an extra slash or /v1. It comes first, so
    that all checks see the path that is routed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = with_plain_target(scope)
            scope = {**scope, "path": routed_path(scope["path"])}
        await self._app(scope, receive, send)


class HostDoor:
    """Refuses requests for another Host (DNS rebinding) and those from foreign web pages."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(scope["http_version"], Headers(scope=scope))):
            await refuse(scope, send, problem, close=problem.status in (400, 431, 505))
        else:
            await self._app(scope, receive, send)

    def _problem(self, version: str, headers: Headers) -> Problem | None:
        if version not in VERSIONS:
            return Problem(505, "this server speaks HTTP 1.0 and 1.1")
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
            return Problem(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes", code="headers_too_large")
        if problem := ambiguity(headers):
            return problem
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._access.checks_host and not self._access.admits_host(host):
            return Problem(421, host_refusal(host), PERMISSION)
        if origin is not None and not self._access.admits_origin(origin, host):
            return Problem(403, origin_refusal(origin), PERMISSION)
        return None


class KeyDoor:
    """Requires a known key if keys are used; puts its name into `scope["state"]["owner"]`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._keys, self._operators = app, access.keys, access.operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        owner = self._keys.owner(key_in(Headers(scope=scope))) if self._keys else LOCAL
        state(scope)["owner"], state(scope)["is_operator"] = owner or "", owner in self._operators
        if owner is None and scope["path"] not in OPEN_PATHS:
            problem = Problem(
                401, "a valid API key is needed: Authorization: Bearer KEY", AUTHENTICATION, code="invalid_api_key"
            )
            await refuse(scope, send, problem)
        else:
            await self._app(scope, receive, send)


class BodyDoor:
    """Reads the whole body before the route runs, in bounded memory and time, so that no route waits for a slow client.

    Large bodies need a Content-Length, are limited in number (the larger, the fewer), and may hold long texts but not
    many values: JSON is parsed in the event loop, because a thread would hold the GIL as long.

    is_shared  several keys: none may hold more than half of the places for large bodies
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        timeout_s: float = BODY_TIMEOUT_S,
        is_shared: bool = False,
    ) -> None:
        self._app, self._timeout_s = app, timeout_s
        self._share = MAX_LARGE // 2 if is_shared else MAX_LARGE
        self._large: Counter[str] = Counter()  # places taken, by owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        if problem := encoding_problem(Headers(scope=scope)):
            await refuse(scope, send, problem, close=True)
            return
        length = int_of(Headers(scope=scope).get("content-length", "0"))
        owner, places = state(scope).get("owner", LOCAL), num_places(length)
        if problem := self._problem(length, max_bytes_at(scope["path"]), owner):
            await refuse(scope, send, problem, close=True)
            return
        self._large[owner] += places
        try:
            await self._pass(scope, receive, send, length)
        finally:
            self._large[owner] -= places

    def _problem(self, length: int, max_bytes: int, owner: str) -> Problem | None:
        if length > max_bytes:
            return too_large(f"the body is larger than {max_bytes} bytes")
        places = num_places(length)
        if places and (self._large.total() + places > MAX_LARGE or self._large[owner] + places > self._share):
            return unavailable(f"too many requests of more than {LARGE_BYTES} bytes are being answered")
        return None

    async def _pass(self, scope: Scope, receive: Receive, send: Send, length: int) -> None:
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
                receive = replayed(body, receive)
                del body  # the answer may take minutes, and the route does not keep it either
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
                raise too_large(f"the body is larger than {max_bytes} bytes, and no Content-Length says so")
            parts.append(part)
            if not message.get("more_body", False):
                break
        body = b"".join(parts)
        if size > LARGE_BYTES and num_values(body) > MAX_VALUES:
            raise too_large(f"the body holds more than {MAX_VALUES} values")
        return body


class LogDoor:
    """Logs one line a request: method, path, status, owner, seconds. Never the content of request or answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at, status, path = time.perf_counter(), 0, logged_path(scope)

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            _log.info(
                "%s %s %s",
                scope["method"],
                path,
                status or "gone",
                extra={
                    "method": scope["method"],
                    "path": path,
                    "status": status,
                    "owner": state(scope).get("owner", ""),
                    "seconds": round(time.perf_counter() - started_at, 3),
                },
            )


def ambiguity(headers: Headers) -> Problem | None:
    """Return a Problem for a request that a proxy may have parsed differently: two lengths, or a repeated header."""
    if "content-length" in headers and "transfer-encoding" in headers:
        return Problem(400, "a request has Content-Length or Transfer-Encoding, not both", code="invalid_http")
    for name in SINGLE_HEADERS:
        if len(headers.getlist(name)) > 1:
            return Problem(400, f"the header {name} is there more than once", code="invalid_http")
    return None


def routed_path(path: str) -> str:
    """Normalize the start of a path: `//v1//v1/messages` -> `/v1/messages`. Later slashes may be a model name's."""
    base = _BASE.match(path)
    return path if base is None else ("/v1/" if base[1] else "/") + path[base.end() :]


def too_large(what: str) -> Problem:
    return Problem(413, what, code="request_too_large")


def max_bytes_at(path: str) -> int:
    return MAX_CONVERSATION_BYTES if path in CONVERSATION_PATHS else MAX_BODY_BYTES


def num_places(length: int) -> int:
    """Return how many places for large bodies a body takes; 0 if it is not large."""
    return -(-length // PLACE_BYTES) if length > LARGE_BYTES else 0


def num_values(body: bytes) -> int:
    """Return an upper bound of the number of JSON values; signs inside strings count too."""
    return 1 + sum(body.count(sign) for sign in (b",", b"[", b"{"))


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body in one message, then the server's messages (the disconnect)."""
    untold: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def told() -> Message:
        return untold.pop() if untold else await receive()

    return told


async def refuse(scope: Scope, send: Send, problem: Problem, *, close: bool = False) -> None:
    body = json.dumps(shaped(problem, scope["path"])).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **problem.headers}
    if close:  # else the rest of the body would be parsed as another request
        headers["connection"] = "close"
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def shaped(problem: Problem, path: str) -> dict[str, object]:
    """Return the JSON body of an error, in the format of the API at this path."""
    if path.startswith(OLLAMA_PATHS):
        return problem.ollama_body()
    return problem.anthropic_body() if path.startswith(ANTHROPIC_PATHS) else problem.body()


def state(scope: Scope) -> MutableMapping[str, Any]:
    found: MutableMapping[str, Any] = scope.setdefault("state", {})
    return found


def logged_path(scope: Scope) -> str:
    """Return the path percent-encoded, as sent: decoded, it could hold line breaks and terminal escapes."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "backslashreplace")
    return raw[:MAX_LOGGED_BYTES].decode("ascii", "backslashreplace")


def int_of(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 2**63
