"""Normalize request targets and paths."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from eaglelocal.server.request_encoding import normalize_target

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
