"""Send a response, whole or as a stream, over ASGI's `send`."""

from __future__ import annotations

import time

from starlette.types import Send

from eaglelocal.server.answer_encoder import dump_json

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class ResponseWriter:
    """Sends one response: `send_json`, or `start_stream`, `write` and `end_stream`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False
        self.written_at = 0.0  # monotonic seconds

    async def start_stream(self, text: str, media_type: str) -> None:
        self.has_started = True
        await self._start(200, {"content-type": media_type, **STREAM_HEADERS})
        await self.write(text)

    async def write(self, text: str) -> None:
        self.written_at = time.monotonic()
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def end_stream(self, text: str) -> None:
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": False})

    async def send_json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        """Send a whole response. `value`: JSON as bytes, or a value to be encoded."""
        body = value if isinstance(value, bytes) else dump_json(value).encode()
        self.has_started = True
        await self._start(
            status, {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
