"""Routes that release the request's body before the answer starts.

FastAPI keeps a request until its answer ends, with the body's bytes and parsed JSON: for a large body hundreds of
megabytes, for minutes. So the body is read through a separate request object that nobody keeps.
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
    """A request whose JSON is parsed by read_body."""

    async def json(self) -> Any:
        return read_body(await self.body())


class BodyRoute(APIRoute):
    """A route that parses the body if its Content-Type is JSON."""

    def get_route_handler(self) -> Handler:
        return release_body(super().get_route_handler(), lambda scope: scope)


class JsonRoute(APIRoute):
    """A route that parses any body as JSON: Ollama does, and scripts for it omit the Content-Type."""

    def get_route_handler(self) -> Handler:
        return release_body(super().get_route_handler(), set_json_type)


def release_body(handle: Handler, change_scope: Callable[[Scope], Scope]) -> Handler:
    async def handle_separately(request: Request) -> Response:
        return await handle(BodyRequest(change_scope(request.scope), request.receive))

    return handle_separately


def set_json_type(scope: Scope) -> Scope:
    others = [header for header in scope["headers"] if header[0] != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}
