"""The ASGI application: routes behind the middlewares of middleware/, and errors in the format of the API called."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from eaglelocal import __version__
from eaglelocal.errors import EagleLocalError
from eaglelocal.server import validation_errors
from eaglelocal.server.access import Access
from eaglelocal.server.anthropic import routes as anthropic
from eaglelocal.server.dependencies import ServerState
from eaglelocal.server.http_errors import NOT_FOUND, Problem, problem_of
from eaglelocal.server.llama_server import routes as llama_server
from eaglelocal.server.llama_server import state_routes as llama_server_state
from eaglelocal.server.metrics import MetricGauges
from eaglelocal.server.middleware.access_log import AccessLogMiddleware
from eaglelocal.server.middleware.api_key import ApiKeyMiddleware
from eaglelocal.server.middleware.host_check import HostMiddleware
from eaglelocal.server.middleware.normalize_path import PathMiddleware
from eaglelocal.server.middleware.refusal import error_body
from eaglelocal.server.middleware.request_body import BodyMiddleware
from eaglelocal.server.monitor import control_routes as monitor_control
from eaglelocal.server.monitor import routes as monitor
from eaglelocal.server.ollama import model_routes as ollama_models
from eaglelocal.server.ollama import routes as ollama
from eaglelocal.server.openai import embedding_routes as openai_embeddings
from eaglelocal.server.openai import routes as openai
from eaglelocal.server.openai.reply_schema import ERRORS
from eaglelocal.server.rerank import routes as rerank
from eaglelocal.server.responses import routes as responses
from eaglelocal.server.responses.stored_responses import StoredResponses

DESCRIPTION = "Local models that draft ahead. Shapes are OpenAI's, Anthropic's, Ollama's and llama-server's."
DIALECTS = (
    *(openai, responses, anthropic, openai_embeddings, rerank, ollama, ollama_models),
    *(llama_server, llama_server_state, monitor, monitor_control),
)
PATHS = frozenset(route.path for dialect in DIALECTS for route in dialect.router.routes if isinstance(route, Route))
IDLE_CHECK_S = 5.0

_log = logging.getLogger("eaglelocal.server")


def create_app(serving: ServerState, access: Access) -> ASGIApp:
    """Build the application. The caller also loads the first model (`serving.models.start`)."""
    app = FastAPI(
        title="eaglelocal", version=__version__, description=DESCRIPTION, responses=ERRORS, lifespan=_lifespan,
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    app.state.serving = serving
    app.state.memories = defaultdict[str, StoredResponses](StoredResponses)  # of /v1/responses, by owner
    serving.metrics.read_from(lambda: gauges_of(serving))
    serving.models.before_close = serving.metrics.look
    for dialect in DIALECTS:
        app.include_router(dialect.router)
    _catch(app)
    app.openapi = lambda: document_of(app)  # type: ignore[method-assign]
    reading = BodyMiddleware(app, is_shared=len(access.keys.by_name) > 1)
    behind: ASGIApp = ApiKeyMiddleware(reading, access)
    if access.origins:  # HostMiddleware has already refused other origins
        behind = CORSMiddleware(behind, allow_origin_regex=".*", allow_methods=["*"], allow_headers=["*"])
    return PathMiddleware(AccessLogMiddleware(HostMiddleware(behind, access)))


def document_of(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, built once; without FastAPI's 422, because invalid bodies are answered with 400,
    as OpenAI does.
    """
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        for path in made["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            made["components"]["schemas"].pop(name, None)
        app.openapi_schema = made
    return app.openapi_schema


def _catch(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _on(validation_errors.of_validation))
    app.add_exception_handler(HTTPException, _on(validation_errors.of_http))
    app.add_exception_handler(404, _not_found)
    app.add_exception_handler(Problem, _on(problem_of))
    app.add_exception_handler(EagleLocalError, _on(problem_of))
    app.add_exception_handler(Exception, _on(problem_of))


def _on(to_problem: Callable[[Exception], Problem]) -> Callable[[Request, Exception], JSONResponse]:
    def handle(request: Request, error: Exception) -> JSONResponse:
        return _told(request, to_problem(error))

    return handle


def _not_found(request: Request, error: Exception) -> JSONResponse:
    """Return 404; if the path exists under /v1, say so."""
    path = f"/v1{request.url.path}"
    if path not in PATHS:
        return _told(request, validation_errors.of_http(error))
    message = f"there is no {request.url.path} here, it is {path}: the base URL of OpenAI's clients ends with /v1"
    return _told(request, Problem(404, message, NOT_FOUND))


def _told(request: Request, problem: Problem) -> JSONResponse:
    return JSONResponse(error_body(problem, request.url.path), problem.status, dict(problem.headers))


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    serving: ServerState = app.state.serving
    watching = asyncio.create_task(_watch_idle(serving))
    try:
        yield
    finally:
        watching.cancel()
        await serving.models.close()


async def _watch_idle(serving: ServerState) -> None:
    while True:
        await asyncio.sleep(IDLE_CHECK_S)
        await asyncio.to_thread(serving.metrics.look)
        await serving.models.look_after()


def gauges_of(serving: ServerState) -> MetricGauges:
    residents = serving.models.residents
    finished = [choice.finished for _, choice in list(serving.recent) if choice.finished is not None]
    gains = [gain for one in finished if (gain := one.speculation.speedup_estimate) is not None]
    choices = [choice for _, choice in list(serving.active.values())]
    return MetricGauges(
        snapshots=tuple(one.loaded.client.snapshot() for one in residents),
        restarts={one.loaded.name: one.loaded.client.restarts for one in residents},
        running=sum(choice.started is not None for choice in choices),
        waiting=sum(choice.started is None for choice in choices),
        speedup=sum(gains) / len(gains) if gains else None,
    )
