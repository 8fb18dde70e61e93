"""The ASGI application: routes behind the middlewares of middleware.py, and errors in the format of the API called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from eaglelocal.server import embedding_routes, monitor_routes
from eaglelocal.server.access import Access
from eaglelocal.server.access_log import AccessLogMiddleware
from eaglelocal.server.answer_encoder import dump_json
from eaglelocal.server.anthropic import routes as anthropic
from eaglelocal.server.connections import num_kept
from eaglelocal.server.llama_server import routes as llama_server
from eaglelocal.server.metrics import MetricGauges
from eaglelocal.server.middleware import (
    ApiKeyMiddleware,
    BodyMiddleware,
    CallLimitMiddleware,
    HostMiddleware,
    PathMiddleware,
)
from eaglelocal.server.ollama import model_routes as ollama_models
from eaglelocal.server.ollama import routes as ollama
from eaglelocal.server.openai import routes as openai
from eaglelocal.server.responses import routes as responses
from eaglelocal.server.routing import ApiRouter, RouteTable
from eaglelocal.server.schema import ErrorReply
from eaglelocal.server.server_state import ServerState

own_routes = RouteTable("", ErrorReply)
TABLES = (
    *(openai.routes, responses.routes, anthropic.routes, embedding_routes.routes, embedding_routes.rank_routes),
    *(ollama.routes, ollama_models.routes, llama_server.routes, monitor_routes.routes, own_routes),
)
PATHS = frozenset(route.path for table in TABLES for route in table.routes)
IDLE_CHECK_S = 5.0


def create_app(server: ServerState, access: Access) -> ASGIApp:
    """Return the application. The caller also loads the first model (`server.models.start`)."""
    server.metrics.read_gauges = lambda: read_gauges(server)
    router = ApiRouter([route for table in TABLES for route in table.routes], server)
    app = Router(default=router, redirect_slashes=False, lifespan=lambda _: _lifespan(server))
    num_answered = server.limits.num_connections - num_kept(server.limits.num_connections)
    limited = CallLimitMiddleware(app, num_answered, is_shared=access.keys.is_shared)
    guarded: ASGIApp = ApiKeyMiddleware(BodyMiddleware(limited, is_shared=access.keys.is_shared), access)
    if access.origins:  # HostMiddleware has already refused other origins
        guarded = CORSMiddleware(guarded, allow_origin_regex=".*", allow_methods=["*"], allow_headers=["*"])
    http = PathMiddleware(AccessLogMiddleware(HostMiddleware(guarded, access), server.count_call))

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        await (http if scope["type"] == "http" else app)(scope, receive, send)  # else the start and the end

    return dispatch


@cache
def encode_document() -> bytes:
    """Return the OpenAPI document as JSON. It is made on first use, with the schemas of all bodies and replies."""
    from eaglelocal.server.openapi import make_document

    return dump_json(make_document(TABLES)).encode()


@own_routes.add("HEAD", "/openapi.json")
@own_routes.add("GET", "/openapi.json")
async def openapi() -> Response:
    """Return the OpenAPI document."""
    return Response(encode_document(), media_type="application/json")


@asynccontextmanager
async def _lifespan(server: ServerState) -> AsyncIterator[None]:
    idle_watch = asyncio.create_task(_watch_idle(server))
    try:
        yield
    finally:
        idle_watch.cancel()
        await server.models.close()
        await asyncio.to_thread(server.drift.save)


async def _watch_idle(server: ServerState) -> None:
    while True:
        await asyncio.sleep(IDLE_CHECK_S)
        await asyncio.to_thread(server.metrics.read_totals)
        await asyncio.to_thread(server.drift.save)
        await server.models.unload_idle()


def read_gauges(server: ServerState) -> MetricGauges:
    models = server.models.loaded
    finished = [choice.finished for _, choice in list(server.recent) if choice.finished is not None]
    gains = [gain for one in finished if (gain := one.speculation.speedup_estimate) is not None]
    running, waiting = server.count_active()
    return MetricGauges(
        snapshots=tuple(model.client.snapshot() for model in models),
        restarts={model.name: model.client.restarts for model in models},
        running=running,
        waiting=waiting,
        refused=server.num_refused,
        failed=server.num_failed,
        speedup=sum(gains) / len(gains) if gains else None,
        learning=server.read_learning(),
        drift=tuple(server.drift.shares()),
    )
