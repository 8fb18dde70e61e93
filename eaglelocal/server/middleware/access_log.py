"""Log one line for each request."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_LOGGED_BYTES = 200

_log = logging.getLogger("eaglelocal.server")


class AccessLogMiddleware:
    """Logs one line a request: method, path, status, owner, seconds. Never the content of request or answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at, status, path = time.perf_counter(), 0, encode_path(scope)

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note_status)
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
                    "owner": scope.get("state", {}).get("owner", ""),
                    "seconds": round(time.perf_counter() - started_at, 3),
                },
            )


def encode_path(scope: Scope) -> str:
    """Return the path percent-encoded, as sent: decoded, it could hold line breaks and terminal escapes."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "backslashreplace")
    return raw[:MAX_LOGGED_BYTES].decode("ascii", "backslashreplace")
