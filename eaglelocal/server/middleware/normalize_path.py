"""Normalize request targets and paths.

Clients that use a proxy send an absolute URL (`GET http://127.0.0.1:8421/v1/models HTTP/1.1`), which every server must
accept (RFC 9112, 3.2.2): its host then replaces the Host header. Hosts are checked later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_ADDRESS = re.compile(rb"https?://([^/]*)", re.IGNORECASE)
_BASE = re.compile("/+(v1/+)*")


class PathMiddleware:
    """Normalizes targets that are whole URLs, and paths from base URLs with an extra slash or /v1. It comes first, so
    that all checks see the path that is routed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = normalize_target(scope)
            scope = {**scope, "path": normalize_path(scope["path"])}
        await self._app(scope, receive, send)


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
