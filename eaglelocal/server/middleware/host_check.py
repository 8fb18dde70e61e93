"""Refuse requests for another Host, and those from foreign web pages."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from eaglelocal.server.access import Access, host_refusal, origin_refusal
from eaglelocal.server.http_errors import PERMISSION, Problem
from eaglelocal.server.middleware.refusal import refuse

VERSIONS = ("1.0", "1.1")
SINGLE_HEADERS = ("host", "origin", "authorization", "x-api-key", "content-length", "transfer-encoding")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
FETCH_SITE, FOREIGN_SITES = "sec-fetch-site", ("cross-site", "same-site")  # a browser's word on who sends a request
MAX_HEAD_BYTES = 32 * 2**10


class HostMiddleware:
    """Refuses requests for another Host (DNS rebinding) and those from foreign web pages."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(scope, Headers(scope=scope))):
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
    """Return a Problem for a request that a proxy may have parsed differently: two lengths, or a repeated header."""
    if "content-length" in headers and "transfer-encoding" in headers:
        return Problem(400, "a request may have Content-Length or Transfer-Encoding, not both", code="invalid_http")
    for name in SINGLE_HEADERS:
        if len(headers.getlist(name)) > 1:
            return Problem(400, f"the header {name} occurs more than once", code="invalid_http")
    return None
