"""aiohttp middlewares in front of the browser monitor: Host, Origin and API key, decided by server/access.py.

textual-serve admits everybody, and each page runs a program that can cancel requests. So the Host is checked (DNS
rebinding), then the Origin (other sites' pages must not open our WebSocket), then the key if any are configured: it
is given once, as /?key=KEY, and kept as a cookie (HttpOnly, SameSite=Strict).
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from eaglelocal.server.access import Access, ApiKeys, host_refusal, origin_refusal

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self' data:; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
ASK_FOR_KEY = (
    '<!DOCTYPE html><title>eaglelocal</title><form action="/"><label>key of the server: '
    '<input name="key" type="password" autofocus></label> <button>open</button></form>'
)


class Visits:
    """Random cookie tokens, one for each API key, valid while this process runs; cookies never hold the key."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        self._tokens = tuple((secrets.token_urlsafe(32), key) for _, key in keys.by_name)

    def __bool__(self) -> bool:
        """Return whether visitors need a key."""
        return bool(self._keys)

    def token_of(self, key: str) -> str | None:
        """Return the token of a key, None if it is unknown. Compares with all keys: timing reveals nothing."""
        given, found = key.encode("utf-8", "surrogateescape"), None
        for token, known in self._tokens:
            if hmac.compare_digest(given, known.encode()):
                found = token
        return found

    def key_of(self, token: str) -> str | None:
        """Return the key that a token stands for, None if the token is unknown."""
        given, found = token.encode("utf-8", "surrogateescape"), None
        for known, key in self._tokens:
            if hmac.compare_digest(given, known.encode()):
                found = key
        return found


def doors(access: Access, visits: Visits, cookie: str) -> list[Middleware]:
    """Return the middlewares, outermost first. `cookie`: its name, which must differ between servers on one host."""
    return [with_headers, host_door(access), key_door(visits, cookie)]


@web.middleware
async def with_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add security headers to every response, refusals included: nothing is loaded from elsewhere, no framing."""
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        response = refusal
    if not response.prepared:
        response.headers.update(HEADERS)
    if isinstance(response, web.HTTPException):
        raise response
    return response


def host_door(access: Access) -> Middleware:
    @web.middleware
    async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
        if any(len(request.headers.getall(name, ())) > 1 for name in ("Host", "Origin")):
            raise web.HTTPBadRequest(text="a request has one Host and one Origin\n")
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if not access.admits_host(host):
            raise Misdirected(text=f"{host_refusal(host)}\n")
        if origin is not None and not access.admits_origin(origin, host):
            raise web.HTTPForbidden(text=f"{origin_refusal(origin)}\n")
        return await handler(request)

    return door


def key_door(visits: Visits, cookie: str) -> Middleware:
    @web.middleware
    async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not visits:
            return await handler(request)
        if request.path == "/" and "key" in request.query:
            raise remembered(request, visits.token_of(request.query["key"]), cookie)
        if visits.key_of(request.cookies.get(cookie, "")) is None:
            raise refused(request)
        return await handler(request)

    return door


def remembered(request: web.Request, token: str | None, cookie: str) -> web.HTTPException:
    """Return a redirect to the same page without the key in its URL that sets the cookie; a 401 if `token` is None."""
    if token is None:
        return refused(request)
    rest = urlencode([(name, value) for name, value in request.query.items() if name != "key"])
    there = web.HTTPSeeOther(f"/?{rest}" if rest else "/", headers={"Cache-Control": "no-store"})
    there.set_cookie(cookie, token, httponly=True, samesite="Strict", secure=is_https(request), path="/")
    return there


def refused(request: web.Request) -> web.HTTPException:
    return web.HTTPUnauthorized(text=ASK_FOR_KEY, content_type="text/html", headers={"Cache-Control": "no-store"})


def is_https(request: web.Request) -> bool:
    """Return whether the visitor uses HTTPS, perhaps through a proxy that ends TLS."""
    return request.headers.get("X-Forwarded-Proto", request.scheme) == "https"


class Misdirected(web.HTTPClientError):
    status_code = 421
