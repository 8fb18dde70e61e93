"""Declare routes, and answer requests with them.

    routes = RouteTable("OpenAI", ErrorReply)

    @routes.add("POST", "/v1/embeddings", reply=EmbeddingReply)
    async def embeddings(body: EmbeddingBody, server: ServerState, owner: str) -> Response: ...

A function takes its arguments by name: `body`, whose type is the body's model, `server`, `owner` (the name of the
request's API key), `is_operator` (see Access.operators), `request`, parameters of the path, and those of the query,
which have a default.

Any body is parsed as JSON, as llama-server and Ollama do: `curl -d` sends another Content-Type. So the type of a body
protects nothing: HostMiddleware keeps out the forms of foreign pages. A body is released before its answer starts,
unless the response keeps it: with its parsed JSON it may take hundreds of megabytes, and the answer minutes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property
from inspect import Parameter, signature
from types import MappingProxyType
from typing import TypeVar, get_type_hints

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from eaglelocal.core.records import dataclass
from eaglelocal.server.http_errors import NOT_FOUND, Problem, to_problem
from eaglelocal.server.json_body import validate_body
from eaglelocal.server.middleware import refusal
from eaglelocal.server.server_state import ServerState

Reply = Response | BaseModel | Mapping[str, object]
Handler = Callable[..., Awaitable[Reply]]
HandlerT = TypeVar("HandlerT", bound=Handler)
Others = Mapping[int, type[BaseModel]]


@dataclass(frozen=True)
class ApiRoute:
    """A route, with the descriptions of its replies for the OpenAPI document.

    path    with Starlette's parameters: /v1/models/{name:path}
    reply   the type of the reply: a model, a union, str for a plain text; None: there is only a stream
    stream  the media type of a streamed reply; "": it is never streamed
    others  models of replies with another status
    """

    method: str
    path: str
    handle: Handler
    reply: object = None
    stream: str = ""
    others: Others = field(default_factory=dict)

    @property
    def is_documented(self) -> bool:
        """Return whether the document lists the route. A route without a reply is another spelling of a listed one."""
        return self.reply is not None or bool(self.stream)

    @cached_property
    def body(self) -> type[BaseModel] | None:
        return get_type_hints(self.handle).get("body")

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        return signature(self.handle).parameters

    @cached_property
    def query(self) -> Mapping[str, str]:
        return {name: one.default for name, one in self.parameters.items() if one.default is not Parameter.empty}


class RouteTable:
    """The routes of one dialect, filled by decorators.

    tag    the dialect's name in the OpenAPI document
    error  the model of its errors
    """

    def __init__(self, tag: str, error: type[BaseModel]) -> None:
        self.tag, self.error = tag, error
        self.routes: list[ApiRoute] = []

    def add(
        self, method: str, path: str, *, reply: object = None, stream: str = "", others: Others = MappingProxyType({})
    ) -> Callable[[HandlerT], HandlerT]:
        """Declare a route."""

        def declare(handle: HandlerT) -> HandlerT:
            self.routes.append(ApiRoute(method, path, handle, reply=reply, stream=stream, others=others))
            return handle

        return declare


Methods = dict[str, ApiRoute]  # the routes of one path, by method


class ApiRouter:
    """The ASGI application that answers by routes: it comes behind BodyMiddleware, which passes bodies on whole.

    Starlette's router would compare a path with each route in turn; here a table has those without parameters.
    """

    def __init__(self, routes: Iterable[ApiRoute], server: ServerState) -> None:
        self._server = server
        self._by_path: dict[str, Methods] = {}
        for route in routes:
            self._by_path.setdefault(route.path, {})[route.method] = route
        templates = [path for path in self._by_path if "{" in path]
        self._patterns = [(compile_path(path)[0], self._by_path.pop(path)) for path in templates]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._respond(scope, receive)
        except Exception as error:
            response = refusal(scope, to_problem(error))
        await response(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        methods, in_path = self._find(scope["path"])
        if not methods:
            return self._redirect(scope)
        route = methods.get(scope["method"])
        if route is None:
            raise Problem(405, "Method Not Allowed", headers={"Allow": ", ".join(methods)})
        request = Request(scope)
        given = {"request": request, "server": self._server, **scope["state"], **in_path}
        given |= {name: request.query_params.get(name, default) for name, default in route.query.items()}
        if route.body is not None:
            sent = (await receive())["body"]  # whole
            given["body"] = validate_body(route.body, sent)
        return to_response(await route.handle(**{name: given[name] for name in route.parameters}))

    def _find(self, path: str) -> tuple[Methods, dict[str, str]]:
        """Return the routes of a path, none if it is unknown, and the parameters in it."""
        if path in self._by_path:
            return self._by_path[path], {}
        for pattern, methods in self._patterns:
            if found := pattern.match(path):
                return methods, found.groupdict()
        return {}, {}

    def _redirect(self, scope: Scope) -> Response:
        """Return a redirect to the same path with or without a slash at its end. Raises Problem (404)."""
        path = scope["path"]
        other = path.rstrip("/") if path.endswith("/") else f"{path}/"
        if self._find(other)[0]:
            return RedirectResponse(str(URL(scope={**scope, "path": other})))
        if f"/v1{path}" in self._by_path:
            what = f"there is no {path} here, but /v1{path}: the base URL of OpenAI's clients ends with /v1"
            raise Problem(404, what, NOT_FOUND)
        raise Problem(404, "Not Found", NOT_FOUND)


def to_response(reply: Reply) -> Response:
    """Return the response; a model or mapping becomes JSON, numbers that are not finite become null."""
    if isinstance(reply, Response):
        return reply
    return Response(to_json(reply, inf_nan_mode="null"), media_type="application/json")
