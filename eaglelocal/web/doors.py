"""What a browser passes before it sees the monitor: Host, Origin, key. The decisions are the server's (access.py).

textual-serve asks nothing of who comes, and each page is a program that may end requests. So the Host is checked
(DNS rebinding), then the Origin (pages of others cannot open our socket), then the key where there are keys: said
once, as /?key=KEY, and remembered in a cookie that no script reads and no foreign page sends.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from eaglelocal.server.access import Access, Keys, host_refusal, origin_refusal

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
    """A token for each key, for as long as this program runs: the key itself is never put into a cookie."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._tokens = tuple((secrets.token_urlsafe(32), key) for _, key in keys.by_name)

    def __bool__(self) -> bool:
        """Is a key wanted?"""
        return bool(self._keys)

    def token_of(self, key: str) -> str | None:
        """None: that is no key of ours. All are compared in full, so that time tells nothing."""
        given, found = key.encode("utf-8", "surrogateescape"), None
        for token, known in self._tokens:
            if hmac.compare_digest(given, known.encode()):
                found = token
        return found

    def key_of(self, token: str) -> str | None:
        """None: that is no token of ours."""
        given, found = token.encode("utf-8", "surrogateescape"), None
        for known, key in self._tokens:
            if hmac.compare_digest(given, known.encode()):
                found = key
        return found


def doors(access: Access, visits: Visits, cookie: str) -> list[Middleware]:
    """In the order in which they are passed. `cookie`: its name, which must differ between servers of one host."""
    return [with_headers, host_door(access), key_door(visits, cookie)]


@web.middleware
async def with_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Nothing from elsewhere is loaded, and nobody frames us. Refusals are answers too."""
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
    """The same page without the key in its address."""
    if token is None:
        return refused(request)
    rest = urlencode([(name, value) for name, value in request.query.items() if name != "key"])
    there = web.HTTPSeeOther(f"/?{rest}" if rest else "/", headers={"Cache-Control": "no-store"})
    there.set_cookie(cookie, token, httponly=True, samesite="Strict", secure=is_https(request), path="/")
    return there


def refused(request: web.Request) -> web.HTTPException:
    return web.HTTPUnauthorized(text=ASK_FOR_KEY, content_type="text/html", headers={"Cache-Control": "no-store"})


def is_https(request: web.Request) -> bool:
    """A proxy with TLS may stand before us."""
    return request.headers.get("X-Forwarded-Proto", request.scheme) == "https"


class Misdirected(web.HTTPClientError):
    status_code = 421
