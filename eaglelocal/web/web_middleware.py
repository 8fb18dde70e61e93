"""aiohttp middlewares in front of the browser pages: Host, Origin and API key, decided by server/access.py.

textual-serve admits everybody, and each page runs a program that can cancel requests. So the Host is checked (DNS
rebinding), then the Origin (other sites' pages must not open our WebSocket), then the API key if there are any: the
visitor gives it once, as ?key=KEY of any page, and a cookie (HttpOnly, SameSite=Strict) stands for it afterwards.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from eaglelocal.core.own_files import append_own
from eaglelocal.server.access import Access, ApiKeys, find_by_secret, host_refusal, origin_refusal

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self' data:; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
KEY_FORM = (
    '<!DOCTYPE html><title>eaglelocal</title><form action="{path}"><label>API key of the server: '
    '<input name="key" type="password" autofocus></label> <button>open</button></form>'
)


class KeyCookies:
    """Random cookie tokens, one for each API key, valid while this process runs; cookies never hold the key."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        self._tokens = tuple((secrets.token_urlsafe(32), key) for _, key in keys.by_name)

    def __bool__(self) -> bool:
        """Return True if visitors need a key."""
        return bool(self._keys)

    def find_token(self, key: str) -> str | None:
        """Return the token of a key, None if it is unknown."""
        return find_by_secret(key, ((known, token) for token, known in self._tokens))

    def find_key(self, token: str) -> str | None:
        """Return the key that a token stands for, None if the token is unknown."""
        return find_by_secret(token, self._tokens)


def make_middlewares(access: Access, cookies: KeyCookies, cookie: str, pages: Collection[str]) -> list[Middleware]:
    """Return the middlewares, outermost first.

    cookie  its name, which must differ between servers on one host
    pages   paths at which a visitor may give a key
    """
    return [headers_middleware, make_host_middleware(access), make_key_middleware(cookies, cookie, pages)]


@web.middleware
async def headers_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add security headers to every response, refusals included: nothing is loaded from elsewhere, no framing."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        response = error
    if not response.prepared:
        response.headers.update(SECURITY_HEADERS)
    if isinstance(response, web.HTTPException):
        raise response
    return response


def make_host_middleware(access: Access) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if any(len(request.headers.getall(name, ())) > 1 for name in ("Host", "Origin")):
            raise web.HTTPBadRequest(text="send exactly one Host header and at most one Origin header\n")
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if not access.admits_host(host):
            raise MisdirectedRequest(text=f"{host_refusal(host)}\n")
        if origin is not None and not access.admits_origin(origin, host):
            raise web.HTTPForbidden(text=f"{origin_refusal(origin)}\n")
        return await handler(request)

    return check


def make_key_middleware(cookies: KeyCookies, cookie: str, pages: Collection[str]) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not cookies:
            return await handler(request)
        page = request.path if request.path in pages else "/"  # never a path of the visitor's own in a redirect
        if request.path == page and "key" in request.query:
            raise make_login_redirect(request, page, cookies.find_token(request.query["key"]), cookie)
        if cookies.find_key(request.cookies.get(cookie, "")) is None:
            raise make_unauthorized(page)
        return await handler(request)

    return check


def make_login_redirect(request: web.Request, page: str, token: str | None, cookie: str) -> web.HTTPException:
    """Return a redirect to the same page without the key in its URL that sets the cookie; a 401 if `token` is None."""
    if token is None:
        return make_unauthorized(page)
    query = urlencode([(name, value) for name, value in request.query.items() if name != "key"])
    redirect = web.HTTPSeeOther(f"{page}?{query}" if query else page, headers={"Cache-Control": "no-store"})
    redirect.set_cookie(cookie, token, httponly=True, samesite="Strict", secure=is_https(request), path="/")
    return redirect


def make_unauthorized(page: str) -> web.HTTPException:
    """Return a 401 whose body asks for the key and sends it to `page`."""
    form = KEY_FORM.format(path=page)
    return web.HTTPUnauthorized(text=form, content_type="text/html", headers={"Cache-Control": "no-store"})


def is_https(request: web.Request) -> bool:
    """Return True if the visitor uses HTTPS, perhaps through a proxy that ends TLS."""
    return request.headers.get("X-Forwarded-Proto", request.scheme) == "https"


class MisdirectedRequest(web.HTTPClientError):
    status_code = 421


# ---- visitor folder: the folder of one visitor's chat, in the system's temporary folder, and the leftovers of killed
# chats
#
# eaglelocal-chat-RANDOM/.lock held by the process of the chat for as long as it runs
#
# A folder whose lock is free has no owner any more, whatever process ids say. Folders of earlier versions have no lock;
# only old and empty ones of these are removed. Only folders of the same user are looked at.
PREFIX, LOCK, UNLOCKED = "eaglelocal-chat-", ".lock", ".lock-to-be"
OLD_S = 86_400.0


@contextmanager
def open_visitor_folder() -> Iterator[Path]:
    """Make a folder for a chat, and remove it after the block. Those that killed chats left are removed first."""
    remove_stale_folders()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, (Path(name) / UNLOCKED).open("ab") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
            (Path(name) / UNLOCKED).rename(Path(name) / LOCK)  # no other process sees it before it is held
        yield Path(name)


def remove_stale_folders() -> None:
    """Remove the folders of chats that have ended. What cannot be removed stays."""
    now = time.time()
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            if (folder / LOCK).exists():
                _remove_unlocked(folder, LOCK)
            elif now - status.st_mtime > OLD_S:
                if (folder / UNLOCKED).exists():
                    _remove_unlocked(folder, UNLOCKED)
                else:
                    folder.rmdir()  # an empty one


def _remove_unlocked(folder: Path, name: str) -> None:
    """Remove a folder unless its chat still runs and holds the lock of this name. Raises OSError."""
    with append_own(folder / name) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
