"""The connection to a server behind a URL, for the SDK's client, with limits on what it may send."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from eaglelocal.tool_servers.pipe_transport import MAX_BYTES, FloodGuard
from eaglelocal.tool_servers.server_list import ServerSpec

CONNECT_S = 10.0


@asynccontextmanager
async def open_http(spec: ServerSpec) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of a connection by streamable HTTP: the SDK's `Transport`."""
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(CONNECT_S, read=None)  # calls have a limit of their own
    async with (
        httpx2.AsyncClient(transport=LimitedTransport(), headers=dict(spec.headers), timeout=timeout) as client,
        streamable_http_client(spec.url, http_client=client) as streams,
    ):
        yield streams


class LimitedTransport(httpx2.AsyncHTTPTransport):
    """A transport whose replies end with an error once they bring too much."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        body = LimitedBody(response.stream, is_stream=is_stream)
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=body, extensions=response.extensions
        )


class LimitedBody(httpx2.AsyncByteStream):
    """The body of a reply. A stream of events may last; how much it brings at once is limited."""

    def __init__(self, body: httpx2.AsyncByteStream, *, is_stream: bool) -> None:
        self._body, self._is_stream = body, is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        guard, num_bytes = FloodGuard(), 0
        async for chunk in self._body:
            num_bytes += len(chunk)
            if guard.add(len(chunk), time.monotonic()) or (num_bytes > MAX_BYTES and not self._is_stream):
                raise httpx2.ReadError(f"it sent more than {MAX_BYTES >> 20} MB at once")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()
