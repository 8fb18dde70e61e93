"""GET /health, /metrics, /v1/snapshot and /v1/events: the state of the server, for people, Prometheus and monitors.

Statistics only: no prompt, no answer, no key. And the commands of a monitor, POST /v1/requests/{id}/cancel and
/v1/speculation: an owner may cancel their own requests; all else is for operators (see Access.operators).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Literal

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from eaglelocal.client.http_server import SNAPSHOT_COUNTS, SNAPSHOT_SECONDS
from eaglelocal.core.adapters import adapter_objects
from eaglelocal.core.events import EngineSnapshot
from eaglelocal.core.request import LOCAL, parse_spec
from eaglelocal.core.sampling import RECOMMENDED, SamplingParams, fill_recommended
from eaglelocal.core.stats import encode_stats
from eaglelocal.server.answer_encoder import encode_event
from eaglelocal.server.answer_response import EVENT_STREAM
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.http_errors import CANCELLED, CANCELLED_STATUS, NOT_FOUND, PERMISSION, Problem
from eaglelocal.server.loaded_models import LoadedModel
from eaglelocal.server.openai.field_types import Body
from eaglelocal.server.openai.reply_schema import CancelReply, ErrorReply, Health, SwitchReply
from eaglelocal.server.request_states import name_state
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.server_state import ServerState

routes = RouteTable("Monitor", ErrorReply)

HEALTHY_STATES = frozenset({"ready", "idle"})
EVENT_INTERVAL_S = 0.5
NUM_RECENT_SHOWN = 20
LARGE_FIELDS = (
    "template",
    "bos_text",
    "eos_text",
)  # left out because the snapshot is sent twice a second; /props has them


class SwitchBody(Body):
    """POST /v1/speculation"""

    spec: Literal["auto", "off", "pid"] | Annotated[int, Field(ge=0, le=16)]  # as --spec


@routes.add("HEAD", "/health")
@routes.add("GET", "/health", reply=Health, others={503: Health})
async def health(server: ServerState, owner: str) -> Response:
    """Return 200 when requests are answered; 503 with the state when they have to wait, or cannot be answered.

    Without a key, only the state is returned.
    """
    loaded = server.models.current
    health = Health(
        status="ok" if server.state in HEALTHY_STATES else server.state,
        model=loaded.name if loaded and owner else None,
        detail=server.models.trouble if owner else "",
    )
    headers = {} if server.state in HEALTHY_STATES else {"Retry-After": "2"}
    return JSONResponse(health.model_dump(), 200 if server.state in HEALTHY_STATES else 503, headers)


@routes.add("GET", "/metrics", reply=str)
async def metrics(server: ServerState) -> Response:
    """Return the metrics in Prometheus' text format."""
    return Response(await asyncio.to_thread(server.metrics.text), media_type=CONTENT_TYPE_LATEST)


@routes.add("GET", "/v1/snapshot", reply=dict[str, object])
async def snapshot(server: ServerState, is_operator: bool) -> dict[str, object]:
    """Return what a monitor shows, at this moment."""
    return await take_snapshot(server) | {"is_operator": is_operator}


@routes.add("GET", "/v1/events", stream=EVENT_STREAM)
async def events(server: ServerState, is_operator: bool) -> Response:
    """Stream snapshots as server-sent events, two a second, for as long as they are read."""
    return StreamingResponse(
        _events(server, is_operator), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
    )


async def _events(server: ServerState, is_operator: bool) -> AsyncIterator[str]:
    while not server.is_draining:
        yield encode_event(await take_snapshot(server) | {"is_operator": is_operator})
        await asyncio.sleep(EVENT_INTERVAL_S)


async def take_snapshot(server: ServerState) -> dict[str, object]:
    loaded = server.models.current
    engines = {one.name: await asyncio.to_thread(one.client.snapshot) for one in server.models.loaded}
    engine = engines.get(loaded.name) if loaded else None
    states = server.name_active_states()
    active = [request_row(call.model, choice, states[choice.request.id]) for call, choice in server.active.values()]
    recent = [request_row(model, choice, name_state(choice)) for model, choice in server.recent][-NUM_RECENT_SHOWN:]
    running, waiting = server.count_active()
    return {
        "time": time.time(),
        "uptime_s": time.time() - server.started_at,
        "state": server.state,
        "detail": server.models.failure,
        "model": None if loaded is None else model_fields(loaded, server.defaults),
        "models": list(server.models.names.shown),
        "loaded": [
            encode_loaded_model(one, engines[one.name], server.defaults)
            for one in server.models.loaded
            if one.name in engines
        ],
        "running": running,
        "waiting": waiting,
        "answered": server.num_answered,
        "refused": server.num_refused,
        "failed": server.num_failed,
        "engine": engine_fields(engine) if engine else None,
        "restarts": loaded.client.restarts if loaded else 0,
        "requests": active,
        "recent": recent[::-1],
        "learning": asdict(server.read_learning()),
        "drift": [asdict(report) | {"text": report.text} for report in server.drift.reports()],
    }


def encode_loaded_model(one: LoadedModel, engine: EngineSnapshot, defaults: SamplingParams) -> dict[str, object]:
    """Return a loaded model's info, its use, and its engine's totals."""
    return model_fields(one, defaults) | {
        "state": one.client.state,
        "total_bytes": one.info.total_bytes,
        "users": one.num_users,
        "idle_s": 0.0 if one.num_users else round(time.monotonic() - one.used_at, 1),
        "engine": engine_fields(engine),
    }


def model_fields(loaded: LoadedModel, defaults: SamplingParams) -> dict[str, object]:
    """Return a loaded model's info. `sampling`: the defaults for requests that do not set them."""
    params = fill_recommended(defaults, loaded.info.sampling)
    sampling = {name: getattr(params, name) for name in sorted(RECOMMENDED)}
    info = {name: value for name, value in asdict(loaded.info).items() if name not in LARGE_FIELDS}
    return {"name": loaded.name, **info, "sampling": sampling, "adapters": adapter_objects(loaded.present_adapters)}


def engine_fields(snapshot: EngineSnapshot) -> dict[str, object]:
    return {
        "pid": snapshot.engine_pid,
        **{name: getattr(snapshot, name) for name in (*SNAPSHOT_COUNTS, *SNAPSHOT_SECONDS)},
        "miscounted_slots": snapshot.miscounted_slots,
        "emitted_tokens": snapshot.speculation.emitted_tokens,
        "spec": snapshot.spec,
        "draft_version": snapshot.draft_version,
        "store_problem": snapshot.store_problem,
        "speculation": encode_stats(snapshot.speculation),
        # the block size is called `at_once` there
        "costs": {"at_once" if name == "block_size" else name: cost for name, cost in asdict(snapshot.costs).items()},
    }


def request_row(model: str, choice: AnswerState, state: str) -> dict[str, object]:
    """Return the row of a request: its statistics and its owner, never its content."""
    stats = choice.finished.speculation if choice.finished else None
    return {
        "id": choice.request.id,
        "owner": choice.request.owner,
        "client": choice.client if choice.request.owner == LOCAL else "",  # without keys all owners are the same
        "model": model,
        "state": state,
        "drafting": choice.drafting_state,
        "prompt_tokens": choice.prompt_tokens,
        "cached_tokens": choice.cached_tokens,
        "completion_tokens": choice.num_tokens,
        "accepted_tokens": choice.num_accepted,
        "tok_s": round(choice.tok_s, 2),
        "ttft_s": round(choice.first_token_at - choice.requested_at, 4) if choice.first_token_at else None,
        "age_s": round((choice.ended_at or time.perf_counter()) - choice.requested_at, 3),
        "speculation": encode_stats(stats) if stats else None,
    }


@routes.add("POST", "/v1/requests/{request_id:path}/cancel", reply=CancelReply)
async def cancel(request_id: str, server: ServerState, owner: str, is_operator: bool) -> CancelReply:
    """Cancel an answer, and all answers of the same call. Its client gets an error after what was sent so far."""
    entry = server.active.get(request_id)
    if entry is None:
        raise Problem(404, "no such request is running or waiting", NOT_FOUND, code="request_not_found")
    call, choice = entry
    if choice.request.owner != owner and not is_operator:
        raise Problem(403, "this request belongs to another key", PERMISSION)
    call.cancel(cancellation())
    return CancelReply(id=request_id)


@routes.post("/v1/speculation", SwitchBody, reply=SwitchReply)
async def switch_drafting(body: SwitchBody, server: ServerState, is_operator: bool) -> SwitchReply:
    """Set how to draft for requests that do not say it themselves, running ones included."""
    if not is_operator:
        raise Problem(403, "only the operator may switch drafting for all requests", PERMISSION)
    clients = [model.client for model in server.models.loaded]
    if not clients:
        raise Problem(503, "no model is loaded", code="model_not_loaded", headers={"Retry-After": "2"})
    snapshots = [await asyncio.to_thread(client.snapshot) for client in clients]
    if not any(snapshot.spec for snapshot in snapshots):
        raise Problem(400, "drafting cannot be switched: the model was loaded without a draft", code="no_draft")
    spec = parse_spec(body.spec, name="spec", hint="")
    await server.models.set_spec(spec)
    return SwitchReply(spec=str(spec))


def cancellation() -> Problem:
    """Return the error for a cancelled answer.

    The status is the one to which gRPC's CANCELLED maps: clients do not retry it, and it is no fault of theirs.
    """
    what = "the answer was cancelled at the server, by its operator or with this key; the request itself is fine"
    return Problem(CANCELLED_STATUS, what, CANCELLED, code="cancelled")
