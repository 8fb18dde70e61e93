"""Routes that release the request's body before the answer starts.

FastAPI keeps a request until its answer ends, with the body's bytes and parsed JSON: for a large body hundreds of
megabytes, for minutes. So the body is read through a separate request object that nobody keeps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Scope

from eaglelocal.server.http_errors import Problem
from eaglelocal.server.json_body import read_body

# pydantic warns so when it builds a body on its first use (Body); FastAPI suppresses that only while routes are made
warnings.filterwarnings("ignore", "The 'alias' attribute with value 'body'")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BodyRequest(Request):
    """A request whose JSON is parsed by read_body."""

    async def json(self) -> Any:
        return read_body(await self.body())


class UntypedBodyRequest(BodyRequest):
    """A request whose Content-Type is not JSON: if the body is not JSON either, the error says what is expected."""

    async def json(self) -> Any:
        try:
            return await super().json()
        except ValueError as error:
            what = f"the body must be JSON, with Content-Type: application/json: {error}"
            raise Problem(415, what, code="invalid_json") from error


class BodyRoute(APIRoute):
    """A route that parses any body as JSON, as llama-server and Ollama do: `curl -d` sends another Content-Type.

    So the type of a body protects nothing: HostMiddleware keeps out the forms of foreign pages.
    """

    def get_route_handler(self) -> Handler:
        return release_body(super().get_route_handler())


def release_body(handle: Handler) -> Handler:
    async def handle_separately(request: Request) -> Response:
        has_json_type = is_json_type(request.headers.get("content-type", ""))
        kind = BodyRequest if has_json_type else UntypedBodyRequest
        return await handle(kind(set_json_type(request.scope), request.receive))

    return handle_separately


def is_json_type(content_type: str) -> bool:
    subtype = content_type.partition(";")[0].strip().lower().removeprefix("application/")
    return subtype == "json" or subtype.endswith("+json")


def set_json_type(scope: Scope) -> Scope:
    others = [header for header in scope["headers"] if header[0] != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}
