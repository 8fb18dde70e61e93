"""Answer a request with an error before any route runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from eaglelocal.core.request import LOCAL
from eaglelocal.server.access import Access, find_key, host_refusal, origin_refusal
from eaglelocal.server.active_call import OwnerPlaces
from eaglelocal.server.http_errors import AUTHENTICATION, PERMISSION, RATE_LIMIT, Problem
from eaglelocal.server.request_record import current_record

ANTHROPIC_PATHS = ("/v1/messages",)
OLLAMA_PATHS = ("/api/",)


async def refuse(scope: Scope, send: Send, problem: Problem, *, close: bool = False) -> None:
    problem = current_record().refuse(problem)
    body = json.dumps(error_body(problem, scope["path"])).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **problem.headers}
    if close:  # otherwise the rest of the body would be parsed as another request
        headers["connection"] = "close"
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def error_body(problem: Problem, path: str) -> dict[str, object]:
    """Return the JSON body of an error, in the format of the API at this path."""
    if path.startswith(OLLAMA_PATHS):
        return problem.ollama_body()
    return problem.anthropic_body() if path.startswith(ANTHROPIC_PATHS) else problem.openai_body()


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
        if owner is None and scope["path"] not in OPEN_PATHS:
            problem = Problem(
                401,
                "this server needs a valid API key: Authorization: Bearer KEY",
                AUTHENTICATION,
                code="invalid_api_key",
            )
            await refuse(scope, send, problem)
        else:
            await self._app(scope, receive, send)


# ---- host check: refuse requests for another Host, and those from foreign web pages
VERSIONS = ("1.0", "1.1")
SINGLE_HEADERS = ("host", "origin", "authorization", "x-api-key", "content-length", "transfer-encoding")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
FETCH_SITE, FOREIGN_SITES = (
    "sec-fetch-site",
    ("cross-site", "same-site"),
)  # a browser names the sending page
MAX_HEAD_BYTES = 32 * 2**10


class HostMiddleware:
    """Refuses requests for another Host (DNS rebinding) and those from foreign web pages."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if problem := self._problem(scope, Headers(scope=scope)):
            await refuse(scope, send, problem, close=problem.status in (400, 431, 505))
        else:
            await self._app(scope, receive, send)

    def _problem(self, scope: Scope, headers: Headers) -> Problem | None:
        if scope["http_version"] not in VERSIONS:
            return Problem(505, "this server supports HTTP 1.0 and 1.1")
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
            return Problem(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes", code="headers_too_large")
        if problem := find_ambiguity(headers):
            return problem
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._access.checks_host and not self._access.admits_host(host):
            return Problem(421, host_refusal(host), PERMISSION)
        if origin is not None and not self._access.admits_origin(origin, host):
            return Problem(403, origin_refusal(origin), PERMISSION)
        if origin is None and scope["method"] not in SAFE_METHODS and headers.get(FETCH_SITE) in FOREIGN_SITES:
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
        self._app, self._places = app, OwnerPlaces(num_connections, is_shared=is_shared)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            if scope["path"] not in OPEN_PATHS:
                try:
                    held.enter_context(self._places.hold(scope["state"]["owner"], self._problem))
                except Problem as problem:
                    await refuse(scope, send, problem)
                    return
            await self._app(scope, receive, send)

    def _problem(self, num_held: int) -> Problem:
        what = f"{num_held} requests are in progress, and there can be no more"
        if self._places.is_shared:  # without the number of connections that others leave
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
