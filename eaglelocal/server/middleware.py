"""ASGI middlewares in front of the routes: each answers a request with an error, or passes it on.

A request passes them in this order (app.py): path, access log (access_log.py), Host and Origin, CORS, API key, body,
call limit. They are plain ASGI, so that streams pass unchanged; only HTTP comes to them. access.py decides who may do
what.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglelocal.core.request import LOCAL
from eaglelocal.server.access import SAFE_METHODS, Access, find_key, host_refusal, origin_refusal
from eaglelocal.server.access_log import current_record
from eaglelocal.server.chat_page import asks_for_page
from eaglelocal.server.http_errors import AUTHENTICATION, INVALID, PERMISSION, RATE_LIMIT, Problem, unavailable
from eaglelocal.server.server_state import OwnerPlaces


def refusal(scope: Scope, problem: Problem, *, close: bool = False) -> Response:
    """Return the response for a refused request, in the format of the API at its path."""
    problem = current_record().refuse(problem)
    closing = {"connection": "close"} if close else {}  # else the rest of the body would be parsed as another request
    return JSONResponse(problem.body(scope["path"]), problem.status, {**problem.headers, **closing})


# ---- api key: require an API key, where keys are used
OPEN_PATHS = frozenset({"/health", "/v1/health"})


class ApiKeyMiddleware:
    """Requires a known key if keys are used; puts its name into `scope["state"]["owner"]`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._keys, self._operators = app, access.keys, access.operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = self._keys.find_owner(find_key(Headers(scope=scope))) if self._keys else LOCAL
        is_operator = current_record().is_operator = owner in self._operators
        scope.setdefault("state", {}).update(owner=owner or "", is_operator=is_operator)
        if owner is None and scope["path"] not in OPEN_PATHS and not asks_for_page(scope):
            what = "this server needs a valid API key: Authorization: Bearer KEY, or x-api-key: KEY"
            app: ASGIApp = refusal(scope, Problem(401, what, AUTHENTICATION, code="invalid_api_key"))
        else:
            app = self._app
        await app(scope, receive, send)


# ---- host check: refuse requests for another Host, and those from foreign web pages
VERSIONS = ("1.0", "1.1")
SINGLE_HEADERS = ("host", "origin", "authorization", "x-api-key", "content-length", "transfer-encoding")
FOREIGN_SITES = ("cross-site", "same-site")  # values of sec-fetch-site, by which a browser names the sending page
MAX_HEAD_BYTES = 32 * 2**10


class HostMiddleware:
    """Refuses requests for another Host (DNS rebinding) and those from foreign web pages."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope, Headers(scope=scope))
        app = refusal(scope, problem, close=problem.status in (400, 431, 505)) if problem else self._app
        await app(scope, receive, send)

    def _problem(self, scope: Scope, headers: Headers) -> Problem | None:
        if scope["http_version"] not in VERSIONS:
            return Problem(505, "this server supports HTTP 1.0 and 1.1", INVALID)
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
            return Problem(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes", code="headers_too_large")
        if problem := find_ambiguity(headers):
            return problem
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._access.checks_host and not self._access.admits_host(host):
            return Problem(421, host_refusal(host), PERMISSION)
        if origin is not None and not self._access.admits_origin(origin, host):
            return Problem(403, origin_refusal(origin), PERMISSION)
        if origin is None and scope["method"] not in SAFE_METHODS and headers.get("sec-fetch-site") in FOREIGN_SITES:
            return Problem(403, "pages of other sites may not send requests", PERMISSION)
        return None


def find_ambiguity(headers: Headers) -> Problem | None:
    """Return a Problem for a request that a proxy may parse differently: two lengths, or a repeated header."""
    if "content-length" in headers and "transfer-encoding" in headers:
        return Problem(400, "a request may have Content-Length or Transfer-Encoding, not both", code="invalid_http")
    for name in SINGLE_HEADERS:
        if len(headers.getlist(name)) > 1:
            return Problem(400, f"the header {name} occurs more than once", code="invalid_http")
    return None


# ---- call limit: share the connections among the owners of keys
class CallLimitMiddleware:
    """Limits the calls of each owner that are answered at once, so that no key takes the connections of the others.

    It comes after BodyMiddleware: a connection that still sends its body can be evicted (connections.py).
    """

    def __init__(self, app: ASGIApp, num_connections: int, *, is_shared: bool) -> None:
        self._app, self._places = app, CallPlaces(num_connections, is_shared=is_shared)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        with ExitStack() as held:
            try:
                if scope["path"] not in OPEN_PATHS:
                    held.enter_context(self._places.admit(scope["state"]["owner"]))
            except Problem as problem:
                app = refusal(scope, problem)
            await app(scope, receive, send)


class CallPlaces(OwnerPlaces):
    """Places for calls that are answered."""

    def _refusal(self, count: int, num_held: int) -> Problem:
        what = f"{num_held} requests are in progress, and there can be no more"
        if self.is_shared:  # without the number of connections that others leave
            what = f"this key has {num_held} requests in progress, and may have no more: the rest is for other keys"
        return Problem(429, what, RATE_LIMIT, code="too_many_requests", headers={"Retry-After": "2"})


# ---- normalize path: normalize request targets and paths
#
# Clients that use a proxy send an absolute URL (`GET http://127.0.0.1:8421/v1/models HTTP/1.1`), which every server
# must accept (RFC 9112, 3.2.2): its host then replaces the Host header. Hosts are checked later.
_ADDRESS = re.compile(rb"https?://([^/]*)", re.IGNORECASE)
_BASE = re.compile("/+(v1/+)*")


class PathMiddleware:
    """Normalizes targets that are whole URLs, and paths from base URLs with an extra slash or /v1. It comes first, so
    that all checks see the path that is routed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = normalize_target(scope)
        await self._app({**scope, "path": normalize_path(scope["path"])}, receive, send)


def normalize_path(path: str) -> str:
    """Normalize the start of a path: `//v1//v1/messages` -> `/v1/messages`. Later slashes may be a model name's."""
    base = _BASE.match(path)
    return path if base is None else ("/v1/" if base[1] else "/") + path[base.end() :]


def normalize_target(scope: Scope) -> Scope:
    """Return the scope with an absolute URL as target replaced by its path, and its host as Host header."""
    target: bytes = scope.get("raw_path") or b""
    address = _ADDRESS.match(target)
    if address is None:
        return scope
    raw = target[address.end() :] or b"/"
    return {
        **scope,
        "path": unquote(raw.decode("ascii", "replace")),
        "raw_path": raw,
        "headers": [(b"host", address[1]), *_remove_host(scope["headers"])],
    }


def _remove_host(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Remove the first Host header only: a request with several is refused later."""
    at = next((i for i, (name, _) in enumerate(headers) if name.lower() == b"host"), len(headers))
    return [*headers[:at], *headers[at + 1 :]]


# ---- body: read the body of a request before its route runs, in bounded memory and time
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
        if scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        headers, owner = Headers(scope=scope), scope.get("state", {}).get("owner", LOCAL)
        stated = headers.get("content-length", "0")
        length = int(stated) if stated.isdecimal() and len(stated) < 19 else 2**63
        places = num_places(length)
        if problem := encoding_problem(headers) or self._length_problem(scope["path"], length, owner, places):
            await refusal(scope, problem, close=True)(scope, receive, send)
            return
        self._large[owner] += places
        try:
            await self._call_with_body(scope, receive, send, length)
        finally:
            self._large[owner] -= places

    def _length_problem(self, path: str, length: int, owner: str, places: int) -> Problem | None:
        max_bytes = MAX_CONVERSATION_BYTES if path in CONVERSATION_PATHS else MAX_BODY_BYTES
        if length > max_bytes:
            return too_large(f"the body is larger than {max_bytes} bytes")
        if places and (self._large.total() + places > MAX_LARGE or self._large[owner] + places > self._share):
            return unavailable(f"too many requests of more than {LARGE_BYTES} bytes are in progress")
        return None

    async def _call_with_body(self, scope: Scope, receive: Receive, send: Send, length: int) -> None:
        app, timeout_s = self._app, self._timeout_s * max(1, length / LARGE_BYTES)
        try:
            async with asyncio.timeout(timeout_s):
                receive = replay_body(await read_body(length, receive), receive)
        except TimeoutError:
            app = refusal(scope, Problem(408, f"the body did not arrive within {timeout_s:g} s"), close=True)
        except Problem as problem:
            app = refusal(scope, problem, close=True)
        except ClientDisconnect:
            return
        await app(scope, receive, send)


def num_places(length: int) -> int:
    """Return how many places for large bodies a body takes; 0 if it is not large."""
    return -(-length // PLACE_BYTES) if length > LARGE_BYTES else 0


async def read_body(length: int, receive: Receive) -> bytes:
    """Return the body. Raises Problem (413), and ClientDisconnect."""
    parts, size, max_bytes, is_whole = [], 0, max(length, LARGE_BYTES), False
    while not is_whole:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise too_large(f"a body of more than {max_bytes} bytes needs a Content-Length")
        parts.append(part)
        is_whole = not message.get("more_body", False)
    body = b"".join(parts)
    num_values = 1 + sum(body.count(sign) for sign in (b",", b"[", b"{"))  # at most: some may stand inside strings
    if size > LARGE_BYTES and num_values > MAX_VALUES:
        raise too_large(f"the body holds more than {MAX_VALUES} values")
    return body


def too_large(what: str) -> Problem:
    return Problem(413, what, code="request_too_large")


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body in one message, then the server's messages (the disconnect)."""
    unsent: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return unsent.pop() if unsent else await receive()

    return receive_again


def encoding_problem(headers: Headers) -> Problem | None:
    """Return a Problem that names the encoding of a compressed body, which could expand to any size; else None."""
    given = ",".join(headers.getlist("content-encoding"))
    codings = [coding.strip() for coding in given.split(",") if coding.strip()]
    if all(coding.lower() == "identity" for coding in codings):
        return None
    named = ", ".join(codings)[:MAX_QUOTED_CHARS]
    what = f"Content-Encoding {named} is not supported: send the body uncompressed"
    return Problem(415, what, code="unsupported_encoding", headers={"Accept-Encoding": "identity"})
