"""Routes whose bodies are gone when their answers begin.

FastAPI keeps a request until its answer ends, and in it the bytes that came and what JSON made of them: of a large one
hundreds of megabytes, for minutes. So what reads the body is a request of its own, which nobody keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Scope

from eaglelocal.server.json_body import read_body

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BodyRequest(Request):
    """A request whose body is read by read_body."""

    async def json(self) -> Any:
        return read_body(await self.body())


class BodyRoute(APIRoute):
    """Reads a body that says it is JSON."""

    def get_route_handler(self) -> Handler:
        return apart(super().get_route_handler(), lambda scope: scope)


class JsonRoute(APIRoute):
    """Reads a body as JSON whatever its type: Ollama does, so scripts and its own manual leave the type out."""

    def get_route_handler(self) -> Handler:
        return apart(super().get_route_handler(), as_json)


def apart(handle: Handler, read_as: Callable[[Scope], Scope]) -> Handler:
    async def handle_apart(request: Request) -> Response:
        return await handle(BodyRequest(read_as(request.scope), request.receive))

    return handle_apart


def as_json(scope: Scope) -> Scope:
    others = [header for header in scope["headers"] if header[0] != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}
