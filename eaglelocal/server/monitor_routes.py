"""GET /health, /metrics, /v1/snapshot and /v1/events: the state of the server, for people, Prometheus and monitors.

Statistics only: no prompt, no answer, no key. Operators (see Access.operators) see all. Any other owner sees their own
requests, the loaded models, and sums over all owners, which show how busy the server is, but no names, ids or figures
of others, no paths, and nothing about learning. A monitor's commands are POST /v1/requests/{id}/cancel and
/v1/speculation: an owner may cancel their own requests; everything else is for operators.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import asdict
from typing import Annotated, Literal

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from eaglelocal.client.http_server import SNAPSHOT_COUNTS, SNAPSHOT_SECONDS
from eaglelocal.core.adapters import adapter_objects
from eaglelocal.core.events import EngineSnapshot
from eaglelocal.core.request import LOCAL, parse_spec
from eaglelocal.core.sampling import RECOMMENDED, SamplingParams, fill_recommended
from eaglelocal.core.stats import encode_stats
from eaglelocal.server.answer_encoder import encode_event
from eaglelocal.server.answer_response import EVENT_STREAM
from eaglelocal.server.answer_state import AnswerState, ServedClient
from eaglelocal.server.http_errors import CANCELLED, CANCELLED_STATUS, NOT_FOUND, PERMISSION, RATE_LIMIT, Problem
from eaglelocal.server.loaded_models import LoadedModel
from eaglelocal.server.routing import RouteTable
from eaglelocal.server.schema import Body, ErrorReply, ReplyModel
from eaglelocal.server.server_state import ServerState


class Health(ReplyModel):
    status: str
    model: str | None = None
    detail: str = ""


class CancelReply(ReplyModel):
    id: str
    cancelled: bool = True


class SwitchReply(ReplyModel):
    spec: str


routes = RouteTable("Monitor", ErrorReply)

HEALTHY_STATES = frozenset({"ready", "idle"})
EVENT_INTERVAL_S = 0.5
MAX_EVENT_STREAMS = 8  # of an owner: each one holds a connection for as long as its client likes
NUM_RECENT_SHOWN = 20
LARGE_FIELDS = (
    "template",
    "bos_text",
    "eos_text",
)  # left out because the snapshot is sent twice a second; /props returns them
PUBLIC_MODEL_FIELDS = (  # what a client needs to know
    *("name", "target", "draft", "n_ctx", "num_slots", "n_vocab", "task", "embedding_size", "trained_ctx", "max_draft"),
    *("sees_images", "takes_tools", "chat_template", "sampling", "adapters", "state"),
)
# Totals are for operators: with two keys, the difference between two snapshots would reveal the other owner's use.
PUBLIC_ENGINE_FIELDS = ("spec", "cache_cells")
OPERATOR_FIELDS = ("learning", "drift", "answered", "refused", "failed")


class SwitchBody(Body):
    """POST /v1/speculation"""

    spec: Literal["auto", "off", "pid"] | Annotated[int, Field(ge=0, le=16)]  # as --spec


@routes.add("HEAD", "/health")
@routes.add("GET", "/health", reply=Health, others={503: Health})
async def health(server: ServerState, owner: str, is_operator: bool) -> Response:
    """Return 200 when requests are answered; 503 with the state when they have to wait or cannot be answered.

    Without a key, only the state is returned; the reason is for operators.
    """
    loaded = server.models.current
    health = Health(
        status="ok" if server.state in HEALTHY_STATES else server.state,
        model=loaded.name if loaded and owner else None,
        detail=server.models.trouble if is_operator else "",
    )
    headers = {} if server.state in HEALTHY_STATES else {"Retry-After": "2"}
    return JSONResponse(health.model_dump(), 200 if server.state in HEALTHY_STATES else 503, headers)


@routes.add("GET", "/metrics", reply=str)
async def metrics(server: ServerState, is_operator: bool) -> Response:
    """Return the metrics in Prometheus' text format; others than operators read only the load."""
    return Response(await asyncio.to_thread(server.metrics.text, is_operator), media_type=CONTENT_TYPE_LATEST)


@routes.add("GET", "/v1/snapshot", reply=dict[str, object])
async def snapshot(server: ServerState, owner: str, is_operator: bool) -> dict[str, object]:
    """Return the current snapshot for a monitor."""
    loaded = server.models.current
    engines = {one.name: await asyncio.to_thread(one.client.snapshot) for one in server.models.loaded}
    engine = engines.get(loaded.name) if loaded else None
    states = server.name_active_states()
    active = [(call.model, choice, states[choice.request.id]) for call, choice in server.active.values()]
    recent = [(model, choice, choice.state) for model, choice in reversed(server.recent)]
    running, waiting = server.count_active()
    model_keys, engine_keys = (None, None) if is_operator else (PUBLIC_MODEL_FIELDS, PUBLIC_ENGINE_FIELDS)

    def is_shown(choice: AnswerState) -> bool:
        return is_operator or choice.request.owner == owner

    found = {
        "time": time.time(),
        "uptime_s": time.time() - server.started_at,
        "state": server.state,
        "detail": server.models.failure if is_operator else "",
        "model": None if loaded is None else choose(model_fields(loaded, server.defaults), model_keys),
        "models": list(server.models.names.shown),
        "loaded": [
            choose(encode_loaded_model(one, server.defaults), model_keys)
            | {"engine": choose(engine_fields(engines[one.name]), engine_keys)}
            for one in server.models.loaded
            if one.name in engines
        ],
        "running": running,
        "waiting": waiting,
        "answered": server.num_answered,
        "refused": server.num_refused,
        "failed": server.num_failed,
        "engine": choose(engine_fields(engine), engine_keys) if engine else None,
        "restarts": loaded.client.restarts if loaded else 0,
        "requests": [request_row(*row) for row in active if is_shown(row[1])],
        "recent": [request_row(*row) for row in recent if is_shown(row[1])][:NUM_RECENT_SHOWN],
        "learning": asdict(server.read_learning()),
        "drift": [asdict(report) | {"text": report.text} for report in server.drift.reports()],
        "is_operator": is_operator,
    }
    return found if is_operator else {name: value for name, value in found.items() if name not in OPERATOR_FIELDS}


@routes.add("GET", "/v1/events", stream=EVENT_STREAM, others={429: ErrorReply})
async def events(server: ServerState, owner: str, is_operator: bool) -> Response:
    """Stream snapshots as server-sent events, two a second, until the client disconnects. 429: too many streams."""
    if server.event_streams[owner] >= MAX_EVENT_STREAMS:
        what = f"this key has {MAX_EVENT_STREAMS} streams of /v1/events open, and may have no more"
        raise Problem(429, what, RATE_LIMIT, code="too_many_streams")
    return SnapshotStream(server, owner, is_operator)


class SnapshotStream(StreamingResponse):
    """A stream of snapshots, counted while it is open."""

    def __init__(self, server: ServerState, owner: str, is_operator: bool) -> None:
        self._server, self._owner, self._is_operator = server, owner, is_operator
        super().__init__(self._encode(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._server.event_streams[self._owner] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._server.event_streams[self._owner] -= 1

    async def _encode(self) -> AsyncIterator[str]:
        while not self._server.is_draining:
            yield encode_event(await snapshot(self._server, self._owner, self._is_operator))
            await asyncio.sleep(EVENT_INTERVAL_S)


def choose(fields: Mapping[str, object], names: Collection[str] | None) -> dict[str, object]:
    """Return the fields with these names; None means all."""
    return {name: value for name, value in fields.items() if names is None or name in names}


def encode_loaded_model(one: LoadedModel, defaults: SamplingParams) -> dict[str, object]:
    """Return a loaded model's info, and its use."""
    return model_fields(one, defaults) | {
        "state": one.client.state,
        "total_bytes": one.info.total_bytes,
        "users": one.num_users,
        "idle_s": 0.0 if one.num_users else round(time.monotonic() - one.used_at, 1),
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
        # the JSON field of the block size is called `at_once`
        "costs": {"at_once" if name == "block_size" else name: cost for name, cost in asdict(snapshot.costs).items()},
    }


def request_row(model: str, choice: AnswerState, state: str) -> dict[str, object]:
    """Return the row of a request: its statistics and its owner, never its content."""
    stats = choice.finished.speculation if choice.finished else None
    client = choice.client if choice.request.owner == LOCAL else ServedClient()  # without keys all owners are the same
    return {
        "id": choice.request.id,
        "owner": choice.request.owner,
        "client": client.name,
        "client_number": client.number,
        "model": model,
        "state": state,
        "drafting": choice.drafting_state,
        "prompt_tokens": choice.prompt_tokens,
        "cached_tokens": choice.cached_tokens,
        "read_tokens": choice.num_read,
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
    what = "the answer was cancelled at the server, by its operator or with this key; the request itself is fine"
    # gRPC's CANCELLED maps to this status: clients do not retry it, and it is not their fault
    call.cancel(Problem(CANCELLED_STATUS, what, CANCELLED, code="cancelled"))
    return CancelReply(id=request_id)


@routes.add("POST", "/v1/speculation", reply=SwitchReply)
async def switch_drafting(body: SwitchBody, server: ServerState, is_operator: bool) -> SwitchReply:
    """Set the spec of requests that set none, running ones included."""
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
