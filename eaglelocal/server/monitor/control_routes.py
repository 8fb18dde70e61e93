"""POST /v1/requests/{id}/cancel and /v1/speculation: the commands of a monitor.

An owner may cancel their own requests; all else is for operators (see Access.operators).
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from eaglelocal.core.request import parse_spec
from eaglelocal.server.dependencies import IsOperator, Owner, Server
from eaglelocal.server.http_errors import NOT_FOUND, PERMISSION, Problem
from eaglelocal.server.openai.reply_schema import CancelReply, SwitchReply
from eaglelocal.server.openai.schema import SwitchBody
from eaglelocal.server.routing import BodyRoute

router = APIRouter(tags=["Monitor"], route_class=BodyRoute)


@router.post("/v1/requests/{request_id:path}/cancel")
async def cancel(request_id: str, server: Server, owner: Owner, is_operator: IsOperator) -> CancelReply:
    """Cancel an answer, and all answers of the same call. Its client gets an error after what was sent so far."""
    entry = server.active.get(request_id)
    if entry is None:
        raise Problem(404, "no such request is running or waiting", NOT_FOUND, code="request_not_found")
    call, choice = entry
    if choice.request.owner != owner and not is_operator:
        raise Problem(403, "this request belongs to another key", PERMISSION)
    call.cancel(cancellation())
    return CancelReply(id=request_id)


@router.post("/v1/speculation")
async def switch_drafting(body: SwitchBody, server: Server, is_operator: IsOperator) -> SwitchReply:
    """Set how to draft for requests that do not say it themselves, running ones included."""
    if not is_operator:
        raise Problem(403, "only the operator may switch drafting for all requests", PERMISSION)
    clients = [model.client for model in server.models.loaded]
    if not clients:
        raise Problem(503, "no model is loaded", code="model_not_loaded", headers={"Retry-After": "2"})
    snapshots = [await asyncio.to_thread(client.snapshot) for client in clients]
    if not any(snapshot.spec for snapshot in snapshots):
        raise Problem(400, "drafting cannot be switched: the model was loaded without a draft", code="no_draft")
    spec = parse_spec(body.spec)
    await server.models.set_spec(spec)
    return SwitchReply(spec=str(spec))


def cancellation() -> Problem:
    """Return the error for a cancelled answer, with a status on which clients do not retry."""
    return Problem(403, "the answer was cancelled at the server", PERMISSION, code="cancelled")
