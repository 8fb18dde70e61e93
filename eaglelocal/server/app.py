"""The ASGI application: routes behind the middlewares of middleware/, and errors in the format of the API called."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from eaglelocal import __version__
from eaglelocal.errors import EagleLocalError
from eaglelocal.server import validation_errors
from eaglelocal.server.access import Access
from eaglelocal.server.anthropic import routes as anthropic
from eaglelocal.server.http_errors import NOT_FOUND, Problem, to_problem
from eaglelocal.server.llama_server import routes as llama_server
from eaglelocal.server.metrics import MetricGauges
from eaglelocal.server.middleware.access_log import AccessLogMiddleware
from eaglelocal.server.middleware.api_key import ApiKeyMiddleware
from eaglelocal.server.middleware.host_check import HostMiddleware
from eaglelocal.server.middleware.normalize_path import PathMiddleware
from eaglelocal.server.middleware.refusal import error_body
from eaglelocal.server.middleware.request_body import BodyMiddleware
from eaglelocal.server.monitor import routes as monitor
from eaglelocal.server.ollama import model_routes as ollama_models
from eaglelocal.server.ollama import routes as ollama
from eaglelocal.server.ollama.schema import OLLAMA_ERRORS
from eaglelocal.server.openai import embedding_routes as openai_embeddings
from eaglelocal.server.openai import routes as openai
from eaglelocal.server.openai.reply_schema import ERRORS
from eaglelocal.server.request_record import current_record
from eaglelocal.server.rerank import routes as rerank
from eaglelocal.server.responses import routes as responses
from eaglelocal.server.responses.stored_responses import StoredResponses
from eaglelocal.server.server_state import ServerState

DESCRIPTION = "Local models with speculative decoding, in the formats of OpenAI, Anthropic, Ollama and llama-server."
DIALECTS = (openai, responses, anthropic, openai_embeddings, rerank, ollama, ollama_models, llama_server, monitor)
OLLAMA = (ollama, ollama_models)
PATHS = frozenset(route.path for dialect in DIALECTS for route in dialect.router.routes if isinstance(route, Route))
IDLE_CHECK_S = 5.0

_log = logging.getLogger("eaglelocal.server")


def create_app(server: ServerState, access: Access) -> ASGIApp:
    """Return the application. The caller also loads the first model (`server.models.start`)."""
    app = FastAPI(
        title="eaglelocal", version=__version__, description=DESCRIPTION, lifespan=_lifespan,
        docs_url=None, redoc_url=None,
        routes=[route for dialect in DIALECTS for route in dialect.router.routes],  # include_router would copy each
    )  # fmt: skip
    app.state.server_state = server
    app.state.stored_responses = defaultdict[str, StoredResponses](StoredResponses)  # by owner
    server.metrics.set_engine_source(lambda: read_gauges(server))
    _add_exception_handlers(app)
    app.openapi = lambda: build_openapi(app)  # type: ignore[method-assign]
    with_body = BodyMiddleware(app, is_shared=len(access.keys.by_name) > 1)
    guarded: ASGIApp = ApiKeyMiddleware(with_body, access)
    if access.origins:  # HostMiddleware has already refused other origins
        guarded = CORSMiddleware(guarded, allow_origin_regex=".*", allow_methods=["*"], allow_headers=["*"])
    return PathMiddleware(AccessLogMiddleware(HostMiddleware(guarded, access)))


def build_openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, built once. It has no 422: invalid bodies get a 400, as from OpenAI."""
    if app.openapi_schema is None:
        routes = _documented_routes()
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=routes)
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        app.openapi_schema = schema
    return app.openapi_schema


def _documented_routes() -> list[BaseRoute]:
    """Return the routes with their error replies. Only the document has these: FastAPI makes a schema for each one."""
    documented = APIRouter()
    for dialect in DIALECTS:
        documented.include_router(dialect.router, responses=OLLAMA_ERRORS if dialect in OLLAMA else ERRORS)
    return documented.routes


def _add_exception_handlers(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _make_handler(validation_errors.validation_problem))
    app.add_exception_handler(HTTPException, _make_handler(validation_errors.http_problem))
    app.add_exception_handler(404, _not_found)
    app.add_exception_handler(Problem, _make_handler(to_problem))
    app.add_exception_handler(EagleLocalError, _make_handler(to_problem))
    app.add_exception_handler(Exception, _make_handler(to_problem))


def _make_handler(convert: Callable[[Exception], Problem]) -> Callable[[Request, Exception], JSONResponse]:
    def handle(request: Request, error: Exception) -> JSONResponse:
        return _error_response(request, convert(error))

    return handle


def _not_found(request: Request, error: Exception) -> JSONResponse:
    """Answer 404; if the path exists under /v1, say so."""
    path = f"/v1{request.url.path}"
    if path not in PATHS:
        return _error_response(request, validation_errors.http_problem(error))
    message = f"there is no {request.url.path} here, but {path}: the base URL of OpenAI's clients ends with /v1"
    return _error_response(request, Problem(404, message, NOT_FOUND))


def _error_response(request: Request, problem: Problem) -> JSONResponse:
    current_record().problem = problem
    return JSONResponse(error_body(problem, request.url.path), problem.status, dict(problem.headers))


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    server: ServerState = app.state.server_state
    idle_watch = asyncio.create_task(_watch_idle(server))
    try:
        yield
    finally:
        idle_watch.cancel()
        await server.models.close()


async def _watch_idle(server: ServerState) -> None:
    while True:
        await asyncio.sleep(IDLE_CHECK_S)
        await asyncio.to_thread(server.metrics.read_totals)
        await server.models.unload_idle()


def read_gauges(server: ServerState) -> MetricGauges:
    models = server.models.loaded
    finished = [choice.finished for _, choice in list(server.recent) if choice.finished is not None]
    gains = [gain for one in finished if (gain := one.speculation.speedup_estimate) is not None]
    choices = [choice for _, choice in list(server.active.values())]
    return MetricGauges(
        snapshots=tuple(model.client.snapshot() for model in models),
        restarts={model.name: model.client.restarts for model in models},
        running=sum(choice.started is not None for choice in choices),
        waiting=sum(choice.started is None for choice in choices),
        speedup=sum(gains) / len(gains) if gains else None,
    )
